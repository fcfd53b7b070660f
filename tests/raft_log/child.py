"""A process with a log in a real directory, for tests that kill it or take its space away.

`kill DIRECTORY SEED ROUNDS` goes on writing what the seed says after so many rounds, and prints how many are durable.
`full DIRECTORY` loses and regains the right to make files, and prints what happens.
"""

from __future__ import annotations

import resource
import sys
from itertools import count
from pathlib import Path
from random import Random

from evenkeel_raft.core.raft_types import HardState
from evenkeel_raft.errors import DiskFullError
from evenkeel_raft.log.log_disk import FileDisk
from evenkeel_raft.log.log_records import Created
from evenkeel_raft.log.shared_log import LogSettings, SharedLog
from tests.raft_log.model import Model, Writer
from tests.raft_log.support import append, compacted, open_log, state, write

SETTINGS = LogSettings(segment_bytes=24 << 10, round_bytes=4 << 10)


def states(seed: int, rounds: int) -> list[Model]:
    """Return the log's contents after each round, for a seed."""
    writer = Writer(Random(seed), payload=300)
    found = [writer.model.copy()]
    for _ in range(rounds):
        writer.round()
        found.append(writer.model.copy())
    return found


def kill(directory: Path, seed: int, rounds: int) -> None:
    log, _ = open_log(FileDisk(directory), SETTINGS)
    writer = Writer(Random(seed), payload=300)
    for _ in range(rounds):
        writer.round()
    for number in count(rounds + 1):
        write(log, *writer.round())
        print(number, flush=True)
        if number % 7 == 0:
            log.maintain()


def append_until_full(log: SharedLog, first: int) -> int:
    for index in count(first):
        try:
            log.write([append(1, index, index, size=1000)])
        except DiskFullError:
            return index - 1
    raise AssertionError


def full(directory: Path) -> None:
    log, _ = open_log(FileDisk(directory), SETTINGS)
    write(log, Created(1, 1, 0))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SETTINGS.segment_bytes - 1, hard))
    while log.maintain():
        pass
    print("full at once", append_until_full(log, 1), flush=True)
    resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    while log.maintain():
        pass
    for index in range(1, 41):
        log.write([append(1, index, index, size=1000)])
    resource.setrlimit(resource.RLIMIT_FSIZE, (SETTINGS.segment_bytes - 1, hard))
    last = append_until_full(log, 41)
    log.write([state(1, HardState(7, 3, 0))])
    log.write([compacted(1, last - 1)])
    while log.maintain():
        pass
    log.write([append(1, last + 1, last + 10, size=1000)])
    print("durable", last, flush=True)


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["kill", directory, seed, rounds]:
            kill(Path(directory), int(seed), int(rounds))
        case ["full", directory]:
            full(Path(directory))
