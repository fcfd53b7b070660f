"""The members of an etcd cluster, as most of them know it: who they are, and one put in the place of another."""

from __future__ import annotations

from types import TracebackType
from typing import Any, NamedTuple

from aetcd import rpc

from evenkeel.metastore._etcd_connection import Connection, Opener
from evenkeel.metastore._etcd_requests import Link
from evenkeel.metastore.etcd_settings import EtcdSettings

__all__ = ["Member", "Membership"]


class Member(NamedTuple):
    """One member."""

    number: int
    name: str
    """Empty until it has been started, if it was added later."""
    peer_urls: tuple[str, ...]
    started: bool
    """Whether it has ever told where clients reach it, which is what it does first."""


class Membership:
    """Asks any endpoint that answers; an async context manager that hangs up."""

    def __init__(self, settings: EtcdSettings) -> None:
        self._link = Link(settings, Opener(settings))

    async def __aenter__(self) -> Membership:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._link.close()

    async def members(self) -> list[Member]:
        """All of them; UnreachableError where there is no majority that could tell."""
        answer = await self._link.call(_list, rpc.MemberListRequest(linearizable=True), repeatable=True)
        return [Member(found.ID, found.name, tuple(found.peerURLs), bool(found.clientURLs)) for found in answer.members]

    async def remove(self, member: Member) -> None:
        """Let it vote no more. Etcd refuses where what is left would have no majority."""
        await self._link.call(_remove, rpc.MemberRemoveRequest(ID=member.number), repeatable=False)

    async def add(self, peer_url: str) -> None:
        """Expect a member there, which has nothing yet."""
        await self._link.call(_add, rpc.MemberAddRequest(peerURLs=[peer_url]), repeatable=False)


def _list(connection: Connection) -> Any:
    return connection.cluster.MemberList


def _remove(connection: Connection) -> Any:
    return connection.cluster.MemberRemove


def _add(connection: Connection) -> Any:
    return connection.cluster.MemberAdd
