"""Main program of `make explore SECONDS=...`: search until the time is up or a failure is found, and save its trace."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tests.explorer import mutations, scenarios, search
from tests.explorer.search import Failure


class Progress:
    """Counts states and prints progress."""

    def __init__(self, seconds: float) -> None:
        self.began = time.monotonic()
        self.end = self.began + seconds
        self.said = self.began
        self.states = self.walks = 0

    @property
    def over(self) -> bool:
        return time.monotonic() >= self.end

    def tick(self, what: str) -> None:
        now = time.monotonic()
        if now - self.said >= 5:
            self.said = now
            print(self.summary(what), flush=True)

    def summary(self, what: str) -> str:
        spent = max(time.monotonic() - self.began, 1e-9)
        rate = self.states / spent
        return f"{spent:6.0f} s {self.states:>10,} states {rate:>7,.0f} states/s {self.walks:>7,} walks  {what}"


def explore(progress: Progress, seed: int) -> Failure | None:
    """Alternate random walks and exhaustive searches, with increasing depth."""
    tasks = exhaustive(progress)
    for number in itertools.count(seed):
        rng = random.Random(number)
        failure, trace = search.walk(scenarios.draw(rng), rng, steps=rng.randint(20, 300))
        progress.walks += 1
        progress.states += len(trace)
        progress.tick(f"random, seed {number}")
        if failure is not None:
            print(f"seed {number}")
            return failure
        if number % 100 == 99 and (failure := next(tasks)) is not None:
            return failure
        if progress.over:
            return None
    raise AssertionError("unreachable")


def exhaustive(progress: Progress) -> Iterator[Failure | None]:
    """Search small scenarios in turn, with more and more deviations from the usual schedule."""
    for deviations in itertools.count(1):
        for (name, scenario), schedule in itertools.product(scenarios.SMALL.items(), search.SCHEDULES):
            before = progress.states

            def more(states: int, name: str = name, before: int = before, deviations: int = deviations) -> bool:
                progress.states = before + states
                progress.tick(f"{name}, {deviations} deviations")
                return not progress.over

            yield search.exhaust(scenario, deviations=deviations, schedule=schedule, more=more).failure


def _saved(path: Path) -> Failure:
    try:
        return msgspec.json.decode(path.read_bytes(), type=Failure)
    except (OSError, msgspec.DecodeError) as error:
        sys.exit(f"cannot replay {path}: not a trace that the explorer saved: {error}")


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.explorer", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1_000_000, help="first seed of the random walks")
    parser.add_argument(
        "--mutation", choices=[mutation.name for mutation in mutations.MUTATIONS], help="insert a known bug"
    )
    parser.add_argument(
        "--save", type=Path, default=Path("explorer-failure.json"), help="write a failing trace to this file"
    )
    parser.add_argument("--replay", type=Path, help="replay a saved trace instead of searching")
    options = parser.parse_args()
    mutation = mutations.by_name(options.mutation).patch() if options.mutation else contextlib.nullcontext()
    with mutation:
        if options.replay is not None:
            message = search.replay(_saved(options.replay))
            print(message or "the trace runs without a failure")
            return 1 if message else 0
        progress = Progress(options.seconds)
        failure = explore(progress, options.seed)
    print(progress.summary("done" if failure is None else "FAILED"))
    if failure is None:
        return 0
    print(failure)
    options.save.write_bytes(msgspec.json.encode(failure))
    bug = f" --mutation {options.mutation}" if options.mutation else ""
    print(f"replay it with: {sys.executable} -m tests.explorer{bug} --replay {options.save}")
    return 1


if __name__ == "__main__":
    sys.exit(main())
