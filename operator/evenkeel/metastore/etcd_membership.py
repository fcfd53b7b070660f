"""List, add and remove the members of an etcd cluster."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple

from aetcd import rpc

from evenkeel.metastore._etcd_connection import Connection, Opener
from evenkeel.metastore._etcd_requests import Link
from evenkeel.metastore.etcd_settings import EtcdSettings

__all__ = ["Member", "Membership"]


class Member(NamedTuple):
    """One member of an etcd cluster."""

    number: int
    name: str
    """Empty until the member has started for the first time, if it was added later."""
    peer_urls: tuple[str, ...]
    started: bool
    """Whether the member has ever published its client URLs, which it does first."""


class Membership:
    """Reads and changes the members of a cluster; an async context manager that closes its connection."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._link = Link(settings, Opener(settings))

    async def __aenter__(self) -> Membership:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._link.close()

    async def members(self) -> list[Member]:
        """Return all members; raise UnreachableError if etcd has no quorum."""
        answer = await self._link.call(_list, rpc.MemberListRequest(linearizable=True), repeatable=True)
        return [Member(found.ID, found.name, tuple(found.peerURLs), bool(found.clientURLs)) for found in answer.members]

    async def remove(self, member: Member) -> None:
        """Remove a member. Etcd refuses if the remaining members would have no quorum."""
        await self._link.call(_remove, rpc.MemberRemoveRequest(ID=member.number), repeatable=False)

    async def add(self, peer_url: str) -> None:
        """Add a member at this address; it must start without data."""
        await self._link.call(_add, rpc.MemberAddRequest(peerURLs=[peer_url]), repeatable=False)


def _list(connection: Connection) -> Any:
    return connection.cluster.MemberList


def _remove(connection: Connection) -> Any:
    return connection.cluster.MemberRemove


def _add(connection: Connection) -> Any:
    return connection.cluster.MemberAdd
