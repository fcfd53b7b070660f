"""Checks whether a replica is still a member: asks every store that may lead its group, and answers such inquiries.

A leader answers only after a quorum has confirmed it. Otherwise a deposed leader that is cut off could let a store
delete a replica that the group has added again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

from evenkeel.runtime.clock import Clock
from evenkeel_raft.host.raft_replica import Replica
from evenkeel_raft.net.peer_frames import Inquiry, Verdict
from evenkeel_raft.net.peers import Peers

__all__ = ["MembershipChecks"]


class MembershipChecks:
    """Sends and answers inquiries about membership."""

    def __init__(self, replicas: Mapping[int, Replica], *, peers: Peers, clock: Clock, timeout: float) -> None:
        self._replicas = replicas
        self._peers = peers
        self._clock = clock
        self._timeout = timeout
        self._number = 0
        self._waiting: dict[int, tuple[set[str], asyncio.Future[bool]]] = {}

    async def ask(self, group: int, store: str, replica: int, *, of: Iterable[str]) -> bool:
        """Return whether a leader says that the replica is excluded; False if none says so before the timeout."""
        self._number += 1
        number, asked = self._number, {name for name in of if name != store}
        if not asked:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (asked, future)
        timer = self._clock.call_at(self._clock.now() + self._timeout, lambda: _settle(future, excluded=False))
        try:
            for name in sorted(asked):
                self._peers.send_frame(name, Inquiry(number, group, store, replica))
            return await future
        finally:
            timer.cancel()
            del self._waiting[number]

    def on_verdict(self, store: str, verdict: Verdict) -> None:
        """Process an answer to an inquiry."""
        asked, future = self._waiting.get(verdict.number, (set[str](), None))
        if future is None or store not in asked:
            return
        asked.discard(store)
        if verdict.excluded or not asked:
            _settle(future, excluded=verdict.excluded)

    def on_inquiry(self, store: str, inquiry: Inquiry) -> None:
        """Answer an inquiry of another store."""

        def answer(excluded: bool) -> None:
            self._peers.send_frame(store, Verdict(inquiry.number, excluded))

        local = self._replicas.get(inquiry.group)
        if local is None or local.stopped or inquiry.store != store:
            answer(False)
        else:
            local.reads.check_excluded((inquiry.store, inquiry.replica), answer)


def _settle(future: asyncio.Future[bool], *, excluded: bool) -> None:
    if not future.done():
        future.set_result(excluded)
