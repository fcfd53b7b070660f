"""Prepares the start of a member of the chart's own etcd: `python -m evenkeel_operator.process.etcd_member`.

A member with data goes on with it. One without is either there for the first time, or has lost its volume. Then it must
neither vote again under its old identity nor begin a cluster of its own: the others, if they are a majority, remove
what it was and add it anew, and fill it as any new member.

Which of the two it is nobody can tell who is alone. So the operator notes in a ConfigMap that the cluster has been
formed; from then on a member without data waits until others answer.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from evenkeel.errors import EvenkeelError, InvalidInputError, MetastoreError
from evenkeel.metastore.etcd_membership import Membership
from evenkeel.metastore.etcd_settings import EtcdSettings

__all__ = ["FORMED", "joined", "main", "prepare"]

FORMED: Final = "formed"
"""What the operator writes into the ConfigMap once the cluster has answered."""
_POD: Final = "$(POD_NAME)"
_WAIT_SECONDS = 3.0
_PATIENCE_SECONDS = 3.0
"""For which others are asked, before they are taken to be away."""

Config = dict[str, Any]
"""Etcd's configuration, as its file has it."""


async def prepare(name: str, folder: Path, endpoints: Sequence[str]) -> Config:
    """The configuration to start with; `folder` is what the ConfigMap looks like in a pod."""
    config = _read(folder / "etcd.yaml", name)
    if _has_data(config):
        return config
    while not await _others_know(config, endpoints):
        if not (folder / FORMED).exists():
            return config
        print(
            f"{name} has no data, though this etcd has been formed: it waits for others that have some. If none has, "
            f"bring back a volume, or delete `{FORMED}` from the ConfigMap to begin with an empty etcd, and have it "
            "adopted (spec.adoptMetastore)",
            file=sys.stderr,
            flush=True,
        )
        await asyncio.sleep(_WAIT_SECONDS)
    return {**config, "initial-cluster-state": "existing"}


async def _others_know(config: Config, endpoints: Sequence[str]) -> bool:
    """Whether a cluster answers; it then expects this member."""
    others = [endpoint for endpoint in endpoints if endpoint not in config["advertise-client-urls"].split(",")]
    if not others:
        return False
    try:
        async with Membership(_settings(config, others)) as membership:
            await joined(membership, config["initial-advertise-peer-urls"])
    except MetastoreError as error:
        print(f"nobody can be asked: {error}", file=sys.stderr, flush=True)
        return False
    return True


async def joined(membership: Membership, peer_url: str) -> None:
    """Have a cluster expect a member without data there, whoever it knew there before."""
    here = [member for member in await membership.members() if peer_url in member.peer_urls]
    for member in here:
        if member.started:
            print(f"member {member.number:x} has lost its data: it is replaced", file=sys.stderr, flush=True)
            await membership.remove(member)
    if all(member.started for member in here):
        await membership.add(peer_url)


def _settings(config: Config, endpoints: Sequence[str]) -> EtcdSettings:
    """Members have certificates that are good for both ends."""
    files = config.get("client-transport-security", {})
    ca, cert, key = (files.get(name) for name in ("trusted-ca-file", "cert-file", "key-file"))
    return EtcdSettings(
        endpoints=tuple(endpoints),
        ca=Path(ca) if ca else None,
        cert=Path(cert) if cert else None,
        key=Path(key) if key else None,
        connect_timeout=1.0,
        request_timeout=_PATIENCE_SECONDS,
    )


def _read(file: Path, name: str) -> Config:
    try:
        found = msgspec.yaml.decode(file.read_text().replace(_POD, name), type=Config)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidInputError(f"etcd's configuration {file} cannot be used: {error}") from error
    return found


def _has_data(config: Config) -> bool:
    """As etcd itself decides it."""
    return any((Path(config["data-dir"]) / "member" / "wal").glob("*.wal"))


def main(arguments: Sequence[str]) -> int:
    """0 once the configuration is written."""
    parser = argparse.ArgumentParser(prog="python -m evenkeel_operator.process.etcd_member")
    parser.add_argument("--name", required=True, help="of the member, which is its pod's")
    parser.add_argument("--config-map", required=True, type=Path, metavar="FOLDER", help="with etcd.yaml")
    parser.add_argument("--endpoints", required=True, help="where clients reach members, separated by commas")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="the configuration to start with")
    options = parser.parse_args(arguments)
    try:
        config = asyncio.run(prepare(options.name, options.config_map, options.endpoints.split(",")))
    except EvenkeelError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    options.output.write_bytes(msgspec.yaml.encode(config))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
