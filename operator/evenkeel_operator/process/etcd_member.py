"""Prepares the start of a member of the bundled etcd: `python -m evenkeel_operator.process.etcd_member`.

A member with data starts with it. A member without data is either new, or has lost its volume. In the latter case it
must neither vote again under its old identity nor form a new cluster: the other members, if they have a quorum, remove
the old member and add a new one, which they bring up to date.

A member alone cannot tell the two cases apart. So the operator records in a ConfigMap that the cluster has been formed;
from then on a member without data waits until others answer.
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
"""Key that the operator adds to the ConfigMap once the cluster has answered."""
_POD: Final = "$(POD_NAME)"
_WAIT_SECONDS = 3.0
_REQUEST_TIMEOUT_SECONDS = 3.0
"""Time after which other members count as unreachable."""

Config = dict[str, Any]
"""Content of etcd's configuration file."""


async def prepare(name: str, folder: Path, endpoints: Sequence[str]) -> Config:
    """Return the configuration to start with; `folder` is the mounted ConfigMap."""
    config = _read(folder / "etcd.yaml", name)
    if _has_data(config):
        return config
    while not await _join(config, endpoints):
        if not (folder / FORMED).exists():
            return config
        print(
            f"{name} has no data, but this etcd has been formed; waiting for a member with data. If there is none, "
            f"restore a volume, or delete `{FORMED}` from the ConfigMap to start with an empty etcd and adopt it "
            "(spec.adoptMetastore)",
            file=sys.stderr,
            flush=True,
        )
        await asyncio.sleep(_WAIT_SECONDS)
    return {**config, "initial-cluster-state": "existing"}


async def _join(config: Config, endpoints: Sequence[str]) -> bool:
    """Add this member to the cluster; return False if no other member answers."""
    others = [endpoint for endpoint in endpoints if endpoint not in config["advertise-client-urls"].split(",")]
    if not others:
        return False
    try:
        async with Membership(_settings(config, others)) as membership:
            await joined(membership, config["initial-advertise-peer-urls"])
    except MetastoreError as error:
        print(f"no other member answers: {error}", file=sys.stderr, flush=True)
        return False
    return True


async def joined(membership: Membership, peer_url: str) -> None:
    """Add a member without data at a peer URL, in place of any member with data there."""
    here = [member for member in await membership.members() if peer_url in member.peer_urls]
    for member in here:
        if member.started:
            print(f"replacing member {member.number:x}, which has lost its data", file=sys.stderr, flush=True)
            await membership.remove(member)
    if all(member.started for member in here):
        await membership.add(peer_url)


def _settings(config: Config, endpoints: Sequence[str]) -> EtcdSettings:
    """Return client settings; the certificate of a member is valid for clients too."""
    files = config.get("client-transport-security", {})
    ca, cert, key = (files.get(name) for name in ("trusted-ca-file", "cert-file", "key-file"))
    return EtcdSettings(
        endpoints=tuple(endpoints),
        ca=Path(ca) if ca else None,
        cert=Path(cert) if cert else None,
        key=Path(key) if key else None,
        connect_timeout=1.0,
        request_timeout=_REQUEST_TIMEOUT_SECONDS,
    )


def _read(file: Path, name: str) -> Config:
    try:
        found = msgspec.yaml.decode(file.read_text().replace(_POD, name), type=Config)
    except (OSError, msgspec.MsgspecError) as error:
        raise InvalidInputError(f"cannot use etcd's configuration {file}: {error}") from error
    return found


def _has_data(config: Config) -> bool:
    """Decide as etcd itself does."""
    return any((Path(config["data-dir"]) / "member" / "wal").glob("*.wal"))


def main(arguments: Sequence[str]) -> int:
    """Write the configuration; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m evenkeel_operator.process.etcd_member")
    parser.add_argument("--name", required=True, help="name of the member, which is the name of its pod")
    parser.add_argument(
        "--config-map", required=True, type=Path, metavar="FOLDER", help="mounted ConfigMap with etcd.yaml"
    )
    parser.add_argument("--endpoints", required=True, help="client URLs of the members, separated by commas")
    parser.add_argument("--output", required=True, type=Path, metavar="FILE", help="file to write the configuration to")
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
