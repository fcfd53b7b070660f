"""Whether a replica is still a member of its group: asked of every store that may lead it, and answered by the leader.

A leader answers after a quorum has confirmed it, so the answer is not of the past: an old leader, cut off, could
otherwise let go of a replica that the group has taken back.
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
    """Both sides of the question."""

    def __init__(self, replicas: Mapping[int, Replica], *, peers: Peers, clock: Clock, patience: float) -> None:
        self._replicas = replicas
        self._peers = peers
        self._clock = clock
        self._patience = patience
        self._number = 0
        self._waiting: dict[int, tuple[set[str], asyncio.Future[bool]]] = {}

    async def ask(self, group: int, store: str, replica: int, *, of: Iterable[str]) -> bool:
        """Whether some leader says that the replica is excluded; false if nobody says so in time."""
        self._number += 1
        number, asked = self._number, {name for name in of if name != store}
        if not asked:
            return False
        future: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._waiting[number] = (asked, future)
        give_up = self._clock.call_at(self._clock.now() + self._patience, lambda: _settle(future, excluded=False))
        try:
            for name in sorted(asked):
                self._peers.say(name, Inquiry(number, group, store, replica))
            return await future
        finally:
            give_up.cancel()
            del self._waiting[number]

    def judged(self, store: str, verdict: Verdict) -> None:
        """A store answered."""
        asked, future = self._waiting.get(verdict.number, (set[str](), None))
        if future is None or store not in asked:
            return
        asked.discard(store)
        if verdict.excluded or not asked:
            _settle(future, excluded=verdict.excluded)

    def asked(self, store: str, inquiry: Inquiry) -> None:
        """A store wants to know."""

        def answer(excluded: bool) -> None:
            self._peers.say(store, Verdict(inquiry.number, excluded))

        here = self._replicas.get(inquiry.group)
        if here is None or inquiry.store != store:
            answer(False)
        else:
            here.judge((inquiry.store, inquiry.replica), answer)


def _settle(future: asyncio.Future[bool], *, excluded: bool) -> None:
    if not future.done():
        future.set_result(excluded)
