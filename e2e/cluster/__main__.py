"""`python -m e2e.cluster`: a Kubernetes cluster for developers, the same that the tests use."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from e2e.cluster import images, netns
from e2e.cluster.binaries import shell_path
from e2e.cluster.cluster_errors import ClusterError, UnavailableError
from e2e.cluster.kind import KindCluster
from e2e.cluster.netns import NetnsCluster
from e2e.cluster.provider import Cluster, chosen

_DEFAULT_NAME = "dev"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; return the exit status."""
    options = _parser().parse_args(arguments)
    # SIGTERM is handled like Ctrl-C: everything that was started is removed.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    verb: Callable[[argparse.Namespace], None] = options.verb
    try:
        verb(options)
    except ClusterError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("stopped; everything was removed", file=sys.stderr)
        return 130
    return 0


def _up(options: argparse.Namespace) -> None:
    kubeconfig = _up_in_kind(options) if options.provider == "kind" else _up_in_namespaces(options)
    print(f'export KUBECONFIG="{kubeconfig}" PATH="{shell_path()}"')


def _up_in_kind(options: argparse.Namespace) -> Path:
    cluster = KindCluster(options.name)
    cluster.up()
    return cluster.kubeconfig


def _up_in_namespaces(options: argparse.Namespace) -> Path:
    cluster = netns.ensure(options.name, nodes=options.nodes, owner=options.volume_owner, say=_say)
    return cluster.plane.kubeconfig


def _down(options: argparse.Namespace) -> None:
    if options.after_input:
        # The owner of the cluster holds the other end of the pipe, and handles Ctrl-C.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        sys.stdin.read()
    if options.provider == "kind":
        KindCluster(options.name).down()
    elif options.name in netns.clusters():
        NetnsCluster.load(options.name).down()
    elif not options.after_input:
        _say(f"there is no cluster {options.name}")


def _status(_: argparse.Namespace) -> None:
    """List the clusters of provider netns; `kind get clusters` lists those of kind."""
    names = netns.clusters()
    if not names:
        print("no clusters")
    for name in names:
        cluster = NetnsCluster.load(name)
        print(f"{name}: {cluster.network.block}, KUBECONFIG={cluster.plane.kubeconfig}")
        for part, running in cluster.running().items():
            print(f"  {part:<24} {'runs' if running else 'is down'}")


def _load(options: argparse.Namespace) -> None:
    kind = options.provider == "kind"
    cluster: Cluster = KindCluster(options.name) if kind else NetnsCluster.load(options.name)
    for tag in options.tags:
        cluster.load_images(images.export(tag))
        _say(f"every node has {tag}")


def _prepare(_: argparse.Namespace) -> None:
    """Prepare this machine for the tests, which decide whether they can run without a cluster."""
    if chosen() == "netns":
        try:
            netns.prepare()
        except UnavailableError as error:
            _say(f"no cluster here: {error}")


def _provider() -> str:
    """Return the provider to use by default."""
    return "kind" if os.environ.get("EVENKEEL_CLUSTER") == "kind" else "netns"


def _say(what: str) -> None:
    print(what, file=sys.stderr, flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m e2e.cluster", description=__doc__)
    verbs = parser.add_subparsers(required=True, metavar="up|down|status|load|prepare")

    def add(name: str, verb: Callable[[argparse.Namespace], None], help_: str) -> Any:
        sub = verbs.add_parser(name, help=help_)
        sub.add_argument("--name", default=_DEFAULT_NAME, help=f"name of the cluster, by default {_DEFAULT_NAME}")
        sub.add_argument("--provider", choices=("netns", "kind"), default=_provider())
        sub.set_defaults(verb=verb)
        return sub

    up = add("up", _up, "make a cluster, and print how to reach it")
    up.add_argument("--nodes", type=int, default=3, help="of netns; kind has three")
    up.add_argument("--volume-owner", type=int, default=65532, metavar="UID", help="who may write on its volumes")
    down = add("down", _down, "take a cluster away")
    down.add_argument("--after-input", action="store_true", help="but only when there is nothing more to read")
    add("status", _status, "list clusters and their parts")
    load = add("load", _load, "give every node images that docker, podman or buildah has")
    load.add_argument("tags", nargs="+", metavar="TAG")
    add("prepare", _prepare, "install and build what a cluster needs")
    return parser


if __name__ == "__main__":
    sys.exit(main())
