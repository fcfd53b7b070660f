"""Provider `netns`: a whole Kubernetes on this machine, from programs that `make binaries` built, as root.

Everything that it creates has the cluster's name. The cluster's folder is created first and removed last, so a cluster
can always be taken down, even if its creation was interrupted.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import string
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from e2e.cluster.binaries import ROOT, cache_dir, lacking
from e2e.cluster.certificates import Identity
from e2e.cluster.cluster_errors import ClusterError, UnavailableError
from e2e.cluster.control_plane import Address, ControlPlane
from e2e.cluster.images import program_archive, program_image
from e2e.cluster.kubectl import Kubectl
from e2e.cluster.node import Node, cni_plugins
from e2e.cluster.node_volumes import STORAGE_CLASS, storage_class, volumes
from e2e.cluster.virtual_network import Network, claim
from evenkeel.metastore.etcd_server import free_port

__all__ = ["NetnsCluster", "check", "clusters", "ensure", "kept", "prepare"]

_PROGRAMS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl")
_IMAGES = ("pause", "coredns")
_COMMANDS = ("containerd", "runc", "ip", "iptables", "nsenter", "unshare", "openssl")
_DESCRIPTION = "network.json"
_ZONES = ("zone-a", "zone-b", "zone-c")
_VOLUMES_PER_NODE = 4

Say = Callable[[str], None]


def _silent(_: str) -> None: ...


def check() -> None:
    """Raise UnavailableError with the reason if this machine cannot run such a cluster."""
    _check_root()
    if missing := lacking(*_PROGRAMS, *_IMAGES):
        raise UnavailableError(f"not built yet: {', '.join(missing)} (make binaries ONLY=cluster)")
    if commands := [command for command in _COMMANDS if shutil.which(command) is None]:
        raise UnavailableError(f"not installed: {', '.join(commands)} (python -m e2e.cluster prepare)")
    cni_plugins()


def prepare() -> None:
    """Install and build what is missing, with output to the terminal."""
    _check_root()
    for command in (("need.sh", "disk=4096", *_COMMANDS, "cni"), ("build-binaries.sh", "cluster")):
        if subprocess.run([ROOT / "scripts" / command[0], *command[1:]], check=False).returncode != 0:
            raise UnavailableError(f"scripts/{command[0]} failed; its output above says what is missing")


def _check_root() -> None:
    if sys.platform != "linux" or os.geteuid() != 0:
        raise UnavailableError("nodes in network namespaces need Linux and root")


def clusters() -> list[str]:
    """Return the names of clusters that run or were left behind."""
    return sorted(file.parent.name for file in _home().glob(f"*/{_DESCRIPTION}"))


class NetnsCluster:
    """One cluster, by name."""

    storage_class = STORAGE_CLASS

    def __init__(self, name: str, network: Network, address: Address) -> None:
        self.name = name
        self.network = network
        self.folder = _home() / name
        self.plane = ControlPlane(self.folder, address)
        self.nodes = {node: Node(node, folder=self.folder / node, network=network) for node in network.nodes}

    @property
    def kubectl(self) -> Kubectl:
        """kubectl as administrator."""
        return self.plane.kubectl

    @classmethod
    def load(cls, name: str) -> NetnsCluster:
        """Return a cluster that runs or was left behind."""
        try:
            description = (_home() / name / _DESCRIPTION).read_bytes()
        except FileNotFoundError:
            raise ClusterError(f"there is no cluster {name}; there are: {', '.join(clusters()) or 'none'}") from None
        return cls(name, *msgspec.json.decode(description, type=tuple[Network, Address]))

    @classmethod
    def up(cls, name: str, *, nodes: int = 3, say: Say = _silent) -> NetnsCluster:
        """Create a cluster, and wait until its nodes are Ready and DNS works; remove everything on failure."""
        check()
        if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?", name):
            raise ClusterError(f"{name!r} is not a name for a cluster; use lower-case letters, digits and hyphens")
        if name in clusters():
            raise ClusterError(f"the cluster {name} exists already; take it down first")
        cluster = cls._claim(name, tuple(f"node-{number}" for number in range(1, nodes + 1)))
        try:
            cluster._start(say)
        except BaseException:
            cluster.down()
            raise
        return cluster

    def down(self) -> None:
        """Remove the cluster in any state; may be repeated after an interruption."""
        if not self.folder.exists():
            return
        self._on_all_nodes(Node.remove)
        self.plane.kill()
        self.network.remove()
        for file in self.folder.iterdir():
            # The description, by which a cluster is found, goes last.
            if file.name != _DESCRIPTION:
                _remove(file)
        _remove(self.folder)
        if left := list(self.residue()):
            raise ClusterError(f"the cluster {self.name} has left behind: {'; '.join(left)}")

    def load_images(self, *archives: Path) -> None:
        """Load images onto every node."""
        self._on_all_nodes(lambda node: node.load(*archives))

    def add_volumes(self, count: int = _VOLUMES_PER_NODE, *, owner: int) -> None:
        """Add this many empty volumes, owned by this user, to every node."""
        self.kubectl.apply(*volumes(self.nodes.values(), count, owner=owner))

    def kill_node(self, node: str) -> None:
        """Kill a node, as a power cut would."""
        self._node(node).kill()

    def start_node(self, node: str) -> None:
        """Start a node again, with its disk."""
        self._node(node).start()

    def partition_node(self, node: str) -> None:
        """Disconnect a node, which keeps running."""
        self.network.partition(self._node(node).name)

    def heal_node(self, node: str) -> None:
        """Reconnect a node."""
        self.network.heal(self._node(node).name)

    def cordon_node(self, node: str) -> None:
        """Cordon a node."""
        self.kubectl.cordon(node)

    def uncordon_node(self, node: str) -> None:
        """Uncordon a node."""
        self.kubectl.uncordon(node)

    def drain_node(self, node: str) -> None:
        """Drain a node, as PodDisruptionBudgets allow."""
        self.kubectl.drain(node)

    def kill_api_server(self) -> None:
        """Kill the API server."""
        self.plane.kill_api_server()

    def start_api_server(self) -> None:
        """Start the API server again, and wait until it is ready."""
        self.plane.start_api_server()

    def running(self) -> dict[str, bool]:
        """Return which parts and nodes run."""
        return self.plane.running() | {name: node.running for name, node in self.nodes.items()}

    def residue(self) -> Iterable[str]:
        """Return what exists of the cluster on this machine; nothing once it is down."""
        for node in self.nodes.values():
            yield from node.residue()
        yield from (f"process {pid}" for pid in _mentioning(self.folder))
        yield from (f"network namespace {name}" for name in self.network.namespaces())
        if self.network.has_interface():
            yield f"interface {self.network.interface}"
        mounts = Path("/proc/self/mountinfo").read_text().splitlines()
        yield from (f"mount {line.split()[4]}" for line in mounts if str(self.folder) in line)
        if self.folder.exists():
            yield f"folder {self.folder}"

    @classmethod
    def _claim(cls, name: str, nodes: tuple[str, ...]) -> NetnsCluster:
        network = claim(name, nodes)
        address = Address(
            ip=network.host_ip,
            port=6443,
            etcd_port=free_port(),
            etcd_peer_port=free_port(),
            services=network.services,
        )
        cluster = cls(name, network, address)
        try:
            cluster.folder.mkdir(parents=True, exist_ok=True)
            (cluster.folder / _DESCRIPTION).write_bytes(msgspec.json.encode((network, address)))
        except BaseException:
            network.remove()
            raise
        return cluster

    def _start(self, say: Say) -> None:
        began = time.monotonic()

        def report(what: str) -> None:
            say(f"{time.monotonic() - began:5.1f} s  {what}")

        self.network.make()
        others = {name: node.identity for name, node in self.nodes.items()}
        self.plane.start(others={**others, "kube-proxy": Identity("system:kube-proxy")})
        self.plane.start_controllers()
        report(f"API server at {self.plane.address.url}")
        for number, node in enumerate(self.nodes.values()):
            node.configure(self.plane, labels={"topology.kubernetes.io/zone": _ZONES[number % len(_ZONES)]})
        self._on_all_nodes(Node.start)
        self.load_images(*map(program_archive, _IMAGES))
        self.kubectl("apply", "--filename=-", stdin=self._coredns())
        self.kubectl.apply(storage_class())
        self.kubectl.wait("all nodes are Ready", self._all_ready, within=90)
        report(f"{len(self.nodes)} nodes Ready")
        self.kubectl("rollout", "status", "--namespace=kube-system", "deployment/coredns", "--timeout=90s", within=100)
        report("names resolve")

    def _on_all_nodes(self, action: Callable[[Node], object]) -> None:
        with ThreadPoolExecutor() as pool:
            list(pool.map(action, self.nodes.values()))

    def _all_ready(self) -> bool:
        nodes = self.kubectl.nodes()
        return set(nodes) == set(self.nodes) and all(nodes.values())

    def _coredns(self) -> str:
        template = string.Template((Path(__file__).parent / "coredns.yaml").read_text())
        return template.substitute(image=program_image("coredns"), address=self.network.dns_ip)

    def _node(self, name: str) -> Node:
        if name not in self.nodes:
            raise ClusterError(f"there is no node {name}; there are: {', '.join(self.nodes)}")
        return self.nodes[name]


def ensure(name: str, *, owner: int, nodes: int = 3, say: Say = _silent) -> NetnsCluster:
    """Return the cluster of that name; create it if it does not exist."""
    if name not in clusters():
        prepare()
        cluster = NetnsCluster.up(name, nodes=nodes, say=say)
        cluster.add_volumes(owner=owner)
        return cluster
    cluster = NetnsCluster.load(name)
    if down := [part for part, running in cluster.running().items() if not running]:
        raise ClusterError(f"the cluster {name} does not run {', '.join(down)}; take it down first")
    return cluster


@contextlib.contextmanager
def kept(name: str, *, nodes: int = 3, say: Say = _silent) -> Iterator[NetnsCluster]:
    """Yield a cluster that is taken down at the end of the block, even if this process is killed."""
    check()
    command = [sys.executable, "-m", "e2e.cluster", "down", "--name", name, "--after-input"]
    # The guardian process waits for the end of its input, which comes with the end of this process.
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, start_new_session=True):
        cluster = NetnsCluster.up(name, nodes=nodes, say=say)
        try:
            yield cluster
        finally:
            cluster.down()


def _home() -> Path:
    return cache_dir() / "clusters"


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


def _mentioning(folder: Path) -> Iterator[int]:
    """Return the processes that name this folder on their command line."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"{folder}/".encode() in file.read_bytes():
                yield int(file.parent.name)
