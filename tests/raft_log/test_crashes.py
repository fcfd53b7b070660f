"""Acknowledged records survive a crash at any time, whatever unsynced writes survive it.

A round is there as a whole or not at all, and only the one under way may be either. Random lives are in `walk.py`; here
are crashes at every place of one life, and lives that shrink.
"""

from __future__ import annotations

import errno
from contextlib import suppress
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from evenkeel_raft.errors import LogFailedError
from evenkeel_raft.log.log_rebuild import Recovered
from evenkeel_raft.log.log_records import Record
from evenkeel_raft.log.shared_log import SharedLog
from tests.raft_log.model import Model, Writer, from_recovered
from tests.raft_log.sim import CrashError, SimDisk, at_operation
from tests.raft_log.support import open_log

RNG = st.randoms(use_true_random=False)


class Life:
    """A log on a simulated disk, and the model of what it acknowledged."""

    def __init__(self, rng: Random) -> None:
        self.rng = rng
        self.disk = SimDisk()
        self.writer = Writer(rng)
        self.acknowledged = Model()
        self.log, found = open_log(self.disk)
        assert self.acknowledged.equals(found)

    def write(self) -> None:
        records = self.writer.round()
        for record in records:
            self.log.heads.admit(record)
        self.log.write(records)
        self._acknowledge(records)

    def _acknowledge(self, records: list[Record]) -> None:
        for record in records:
            self.acknowledged.apply(record)

    def reopen(self, *, clean: bool) -> None:
        """Restart the process with the disk intact."""
        self.log.close(clean=clean)
        self._begin(*open_log(self.disk))

    def crash(self) -> None:
        """Fail the power, possibly several times and during recovery."""
        self.disk.crash(self.rng)
        while self.rng.random() < 0.3:
            self.disk.before = at_operation(self.rng.randrange(6), CrashError())
            with suppress(CrashError):
                open_log(self.disk)
            self.disk.crash(self.rng)
        self._begin(*open_log(self.disk))

    def _begin(self, log: SharedLog, found: Recovered) -> None:
        recovered = from_recovered(found)
        assert recovered in (self.acknowledged, self.writer.model)
        self.log = log
        self.acknowledged = recovered.copy()
        self.writer.model = recovered.copy()
        # Nothing else may appear later: the next crash leaves what was read.
        assert from_recovered(open_log(self.disk)[1]) == recovered
        self.log, _ = open_log(self.disk)


def test_crash_at_every_operation() -> None:
    """A fixed script survives a crash at each of its disk changes, in three different ways."""

    def script(rng: Random, stop: int) -> tuple[Life, bool]:
        life = Life(rng)
        life.disk.before = at_operation(stop, CrashError())
        try:
            for _ in range(70):
                life.write()
                life.log.maintain()
        except CrashError:
            return life, True
        return life, False

    whole, _ = script(Random(5), 10**9)
    assert whole.log.stats().moved_bytes > 0
    for stop in range(whole.disk.operations):
        life, crashed = script(Random(5), stop)
        for way in range(3 if crashed else 0):
            life.rng = Random(stop * 10 + way)
            if way == 0:
                life.crash()
            else:
                life.write()
                life.disk.before = at_operation(1, CrashError())
                with pytest.raises(CrashError):
                    life.write()
                life.crash()


def test_a_failed_sync_is_not_believed_after_a_restart() -> None:
    """A round of a failed fsync is in the page cache; a recovery that trusts it would lose it with the power."""
    for seed in range(30):
        life = Life(Random(seed))
        for _ in range(life.rng.randrange(1, 30)):
            life.write()

        def before(operation: str, _name: str) -> None:
            if operation == "sync":
                raise OSError(errno.EIO, "the disk is dying")

        life.disk.before = before
        with pytest.raises(LogFailedError):
            life.write()
        life.disk.before = lambda _operation, _name: None
        life.reopen(clean=False)
        durable = life.acknowledged.copy()
        life.disk.crash(life.rng)
        assert durable.equals(open_log(life.disk)[1])


class CrashMachine(RuleBasedStateMachine):
    """Random crashes as a Hypothesis state machine, so that failures shrink."""

    def __init__(self) -> None:
        super().__init__()
        self.life = Life(Random(0))

    @rule(rng=RNG)
    def write(self, rng: Random) -> None:
        self._draw_from(rng)
        self.life.write()

    @rule(rng=RNG, stop=st.integers(0, 7))
    def crash_in_a_round(self, rng: Random, stop: int) -> None:
        self._draw_from(rng)
        self.life.disk.before = at_operation(stop, CrashError())
        with suppress(CrashError):
            self.life.write()
            self.life.log.maintain()
        self.life.crash()

    @rule()
    def maintain(self) -> None:
        self.life.log.maintain()

    @rule(clean=st.booleans())
    def reopen(self, clean: bool) -> None:
        self.life.reopen(clean=clean)

    @invariant()
    def disk_use_is_bounded(self) -> None:
        stats = self.life.log.stats()
        assert stats.disk_bytes <= 2.5 * stats.live_bytes + 12 * self.life.log.settings.segment_bytes

    def _draw_from(self, rng: Random) -> None:
        self.life.rng = self.life.writer.rng = rng


TestCrashMachine = CrashMachine.TestCase
TestCrashMachine.settings = settings(max_examples=40, stateful_step_count=30, deadline=None, derandomize=True)
