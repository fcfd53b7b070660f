"""A network that delays, loses, duplicates, reorders and partitions, independently in each direction."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from evenkeel_raft.core.raft_messages import Message
from tests.raft.sim.clock import Clock
from tests.raft.sim.mix import Mix
from tests.raft.sim.store import State

Deliver = Callable[[Message, State | None], None]
Settled = Callable[[Message], None]


class Network:
    """Carries messages between replicas; a snapshot's state travels with its message."""

    def __init__(self, clock: Clock, rng: Random, mix: Mix, deliver: Deliver) -> None:
        self.mix = mix
        self._clock, self._rng, self._deliver = clock, rng, deliver
        self._cut: set[tuple[int, int]] = set()

    def send(self, message: Message, state: State | None = None, settled: Settled | None = None) -> None:
        """Send a message; `settled` is called when it arrived or was lost."""
        rng, mix = self._rng, self.mix
        copies = 0 if rng.random() < mix.loss else 2 if rng.random() < mix.duplication else 1
        for _ in range(copies):
            self._clock.later(self._delay(), self._arrive, message, state)
        if settled is not None:
            self._clock.later(self._delay() + 20, settled, message)

    def _delay(self) -> int:
        rng, mix = self._rng, self.mix
        if rng.random() < mix.tail:
            return rng.randint(0, 1000)
        return rng.randint(0, 2 * mix.delay)

    def _arrive(self, message: Message, state: State | None) -> None:
        if (message.sender, message.receiver) not in self._cut:
            self._deliver(message, state)

    def partition(self, replicas: list[int], leader: int) -> None:
        """Cut links: the leader or a random side from the rest, in one or both directions, or single links."""
        rng = self._rng
        if rng.random() < 0.3:
            pairs = [(a, b) for a in replicas for b in replicas if a != b]
            self._cut.update(pair for pair in pairs if rng.random() < 0.3)
            return
        alone = rng.random() < 0.4
        side = {leader} if alone else {replica for replica in replicas if rng.random() < 0.4}
        both = rng.random() < 0.7
        for a in replicas:
            for b in replicas:
                if a in side and b not in side:
                    self._cut.add((a, b))
                    if both:
                        self._cut.add((b, a))

    def reaches(self, one: int, other: int) -> bool:
        """Whether two replicas reach each other."""
        return (one, other) not in self._cut and (other, one) not in self._cut

    def heal(self) -> None:
        """Restore all links."""
        self._cut.clear()
