"""Walks through the states of a log: anything is submitted, and anything fails between any two steps.

    make walk-log SECONDS=60
    python -m tests.raft_log.walk --seconds 60 [--first 1]     print seeds/s, events/s, and every seed that fails
    python -m tests.raft_log.walk --seed 4711                  run one seed, with its traceback

Records are submitted and cut into rounds as the sidecar does it, so one round may hold appends of several leaders, and
copies of entries that the same round truncates. Now and then a clone of the disk is recovered, after a killed process
or after a lost power supply: it must hold what was acknowledged, and its index must be that of the log that runs.
"""

from __future__ import annotations

import argparse
import errno
import sys
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from random import Random

from msgspec import Struct

from evenkeel_raft.errors import DiskFullError, LogFailedError
from evenkeel_raft.log.live_index import GroupIndex, Index
from evenkeel_raft.log.log_frames import HEADER_BYTES
from evenkeel_raft.log.log_rebuild import Recovered
from evenkeel_raft.log.log_records import Record
from evenkeel_raft.log.round_queue import Rounds, Submission
from evenkeel_raft.log.shared_log import LogSettings, SharedLog
from tests.raft_log.model import Habits, Model, Writer, from_recovered
from tests.raft_log.sim import CrashError, SimDisk, at_operation
from tests.raft_log.support import open_log

STEPS = 200
BACKLOG = 30
UNBOUNDED = 1 << 40


class Mix(Struct, frozen=True):
    """A seed's probabilities per step, and its log's settings."""

    habits: Habits
    settings: LogSettings
    together: tuple[int, ...]  # records submitted in one step
    write: float
    maintain: float
    restart: float
    crash: float
    failed_sync: float
    full: float
    check: float


def draw(seed: int) -> Mix:
    """Draw a seed's mix. Most faults are off in most seeds, so that states between them get old enough."""
    rng = Random(f"mix {seed}")

    def at_times(probability: float, most: float) -> float:
        return rng.random() * most if rng.random() < probability else 0.0

    habits = Habits(
        groups=rng.choice((1, 2, 4, 8)),
        payload=rng.choice((4, 30, 60)),
        entries=rng.choice(((0, 1, 1, 2, 5), (1, 2, 5, 15), (1,))),
        same_group=rng.choice((0.0, 0.7, 0.9)),
        election=rng.choice((0.15, 0.4)),
        truncation=rng.choice((0.1, 0.25, 0.6)),
        commit=rng.choice((0.02, 0.1, 0.3)),
        snapshot=rng.choice((0.0, 0.02, 0.07)),
        compaction=rng.choice((0.02, 0.1, 0.3)),
        destruction=rng.choice((0.0, 0.01, 0.05)),
    )
    settings = LogSettings(
        segment_bytes=HEADER_BYTES + rng.choice((300, 800, 2000)),
        round_bytes=rng.choice((150, 600, 2000)),
        garbage_factor=rng.choice((0.0, 0.5, 1.0)),
    )
    return Mix(
        habits=habits,
        settings=settings,
        together=rng.choice(((0, 1, 1, 2, 3, 6), (0, 1, 2), (2, 6, 12))),
        write=rng.choice((0.5, 0.8, 1.0)),
        maintain=rng.choice((0.0, 0.3, 0.8)),
        restart=at_times(0.5, 0.1),
        crash=at_times(0.6, 0.15),
        failed_sync=at_times(0.3, 0.05),
        full=at_times(0.4, 0.3),
        check=rng.choice((0.05, 0.2)),
    )


class Walk:
    """A log on a simulated disk, its waiting records, and the model of what it acknowledged."""

    def __init__(self, seed: int) -> None:
        self.mix = draw(seed)
        self.rng = Random(seed)
        self.disk = SimDisk()
        self.writer = Writer(self.rng, habits=self.mix.habits)
        self.rounds = Rounds(self.mix.settings.round_bytes)
        self.durable = Model()
        self.attempts: list[list[Record]] = []  # rounds after the last durable one that may be on the disk
        self.full = False
        self.events: Counter[str] = Counter()
        self.moved = 0
        self.log, found = self._open(self.disk)
        assert self.durable.equals(found)

    def _open(self, disk: SimDisk) -> tuple[SharedLog, Recovered]:
        self.events["recovery"] += 1
        return open_log(disk, self.mix.settings)

    # Steps

    def step(self) -> None:
        """Take one random step."""
        rng, mix = self.rng, self.mix
        try:
            self._choose_faults()
            self.submit()
            while rng.random() < mix.write and self.write():
                pass
            while rng.random() < mix.maintain and self.maintain():
                pass
            if self.full and rng.random() < 0.3:
                self.full = not self.log.has_room()
            if rng.random() < mix.restart:
                self.events["restart"] += 1
                self.log.close(clean=rng.random() < 0.5)
                self._begin()
        except CrashError:
            self._crash()
        except LogFailedError as failure:
            self._fail(failure)
        if rng.random() < mix.check:
            self.check()

    def _choose_faults(self) -> None:
        rng, mix, disk = self.rng, self.mix, self.disk
        disk.before = lambda _operation, _name: None
        if rng.random() < mix.crash:
            disk.before = at_operation(rng.randrange(12), CrashError())
        elif rng.random() < mix.failed_sync:
            disk.before = _failing("sync", errno.EIO)
        elif rng.random() < mix.full / 3:
            disk.before = _failing("write", errno.ENOSPC)
        if rng.random() < mix.full:
            more = rng.randrange(4) * self.mix.settings.segment_bytes
            disk.capacity = rng.choice((UNBOUNDED, disk.used() + more))

    def submit(self) -> None:
        """Submit records, which then wait for a round."""
        count = self.rng.choice(self.mix.together) if len(self.rounds) < BACKLOG else 0
        for _ in range(count):
            record = self.writer.draw(self.durable)
            self.log.heads.admit(record)
            self.rounds.add(Submission(record))
            self.events["record"] += 1

    def write(self) -> bool:
        """Write the next round; returns whether there was one and it is durable."""
        draft = self.rounds.draft(urgent=self.full)
        if not draft:
            return False
        records = [piece.record for piece in draft]
        self.attempts.append(records)
        try:
            self.log.write(records)
        except DiskFullError:
            self.events["full"] += 1
            self.full = True
            return False
        self.events["round"] += 1
        self.rounds.written(draft)
        for record in records:
            self.durable.apply(record)
        self.attempts.clear()
        return True

    def maintain(self) -> bool:
        """Collect or prepare files; returns whether there is more to do."""
        before = self.log.stats().rounds
        more = self.log.maintain()
        if self.log.stats().rounds > before:
            self.events["collection"] += 1
            self.attempts.clear()
        return more

    # Faults

    def _crash(self) -> None:
        """Fail the power, possibly several times and during recovery."""
        self.events["crash"] += 1
        self.disk.crash(self.rng)
        while self.rng.random() < 0.4:
            self.disk.before = at_operation(self.rng.randrange(8), CrashError())
            with suppress(CrashError):
                self._open(self.disk)
            if self.rng.random() < 0.7:
                self.disk.crash(self.rng)
        self.disk.before = lambda _operation, _name: None
        self._begin()

    def _fail(self, failure: LogFailedError) -> None:
        """Stop the process after a disk failure; any other failure is a bug."""
        if not isinstance(failure.__cause__, OSError):
            raise failure
        self.events["failure"] += 1
        self.log.close(clean=False)
        self.disk.before = lambda _operation, _name: None
        if self.rng.random() < 0.5:
            self._crash()
        else:
            self._begin()

    def _begin(self) -> None:
        """Start a process on the disk; unwritten records are lost."""
        self.moved += self.log.stats().moved_bytes
        self.log, found = self._open(self.disk)
        self.durable = self._known(found)
        self.attempts.clear()
        self.writer.model = self.durable.copy()
        self.rounds = Rounds(self.mix.settings.round_bytes)
        self.full = False

    # Checks

    def _known(self, found: Recovered) -> Model:
        """Return the recovered state: the acknowledged one, or the one after the round in progress."""
        recovered = from_recovered(found)
        if recovered != self.durable:
            assert any(recovered == self.durable.after(records) for records in self.attempts), "another state recovered"
        return recovered

    def check(self) -> None:
        """Recover a clone of the disk, as if the process or the power failed now."""
        twin = self.disk.clone()
        if self.rng.random() < 0.5:
            twin.crash(self.rng)
        log, found = self._open(twin)
        if self._known(found) == self.durable and not self.attempts:
            _compare(self.log._index, log._index)
        # Nothing else may appear later: the next crash leaves what was read.
        twin.crash(self.rng)
        assert from_recovered(self._open(twin)[1]) == from_recovered(found), "a second recovery found another state"

    def end(self) -> None:
        """On a working disk, everything submitted becomes durable."""
        self.disk.before = lambda _operation, _name: None
        self.disk.capacity, self.full = UNBOUNDED, False
        while len(self.rounds):
            assert self.write(), "what was submitted cannot be written"
        assert self.durable == self.writer.model
        for _ in range(20):
            self.maintain()
        self.check()
        self.moved += self.log.stats().moved_bytes


def _failing(operation: str, code: int) -> Callable[[str, str], None]:
    def before(what: str, _name: str) -> None:
        if what == operation:
            raise OSError(code, "simulated")

    return before


def _compare(running: Index, rebuilt: Index) -> None:
    """Check that both indexes agree on all places and live rounds."""
    assert _places(running) == _places(rebuilt), "the index of the running log is not that of its disk"
    lives = [
        {round_ for segment in index.segments for round_ in range(segment.first_round, segment.next_round)
         if segment.live_in(round_)}
        for index in (running, rebuilt)
    ]  # fmt: skip
    assert lives[0] == lives[1], "other rounds are live in the running log than on its disk"


def _places(index: Index) -> dict[str, object]:
    def of_group(group: GroupIndex) -> object:
        rounds = {number: round_ for first, end, round_, _ in group.entries for number in range(first, end)}
        places = (group.identity.round, group.hard_state.round, group.meta.round)
        return group.replica, group.generation, places, rounds

    return {
        "groups": {number: of_group(group) for number, group in index.groups.items()},
        "retired": {number: (replica, place.round) for number, (replica, place) in index.retired.items()},
        "metastore": index.metastore.round,
    }


# Running


class Outcome(Struct, frozen=True):
    """Statistics of a seed's run."""

    seed: int
    events: dict[str, int]
    moved_bytes: int


def run(seed: int, *, steps: int = STEPS) -> Outcome:
    """Walk with a seed; raises if a check fails."""
    walk = Walk(seed)
    for _ in range(steps):
        walk.step()
    walk.end()
    return Outcome(seed, dict(walk.events), walk.moved)


def walk(seconds: float, first: int) -> int:
    """Run seeds from `first` on; return how many failed."""
    start = time.perf_counter()
    seed, failed = first, 0
    events: Counter[str] = Counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        try:
            events.update(run(seed).events)
        except Exception as error:
            failed += 1
            print(f"seed {seed} FAILED: {type(error).__name__}: {error}", flush=True)
            print(f"  again, with its traceback: python -m tests.raft_log.walk --seed {seed}", flush=True)
        seed += 1
    total = events.total()
    print(", ".join(f"{count:,} {event}" for event, count in events.most_common()))
    print(
        f"seeds {first}..{seed - 1}: {failed} failed; {(seed - first) / elapsed:.1f} seeds/s, {total:,} events, "
        f"{total / elapsed:,.0f} events/s, {elapsed:.0f} s"
    )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.raft_log.walk", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="how long to run seeds")
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seed", type=int, help="run only this seed")
    args = parser.parse_args()
    if args.seed is not None:
        print(run(args.seed))
        return 0
    return 1 if walk(args.seconds, args.first) else 0


if __name__ == "__main__":
    sys.exit(main())
