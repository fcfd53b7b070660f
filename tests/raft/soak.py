"""Simulate random seeds for a given time.

python -m tests.raft.soak --seconds 60 [--first 1]       prints seeds/s, events/s, and every seed that fails
python -m tests.raft.soak --seed 4711                    one seed, with its traceback
"""

from __future__ import annotations

import argparse
import sys
import time

from tests.raft.sim.run import run


def soak(seconds: float, first: int) -> int:
    """Run seeds from `first` on; return how many failed."""
    start = time.perf_counter()
    seed, events, failed = first, 0, 0
    while (elapsed := time.perf_counter() - start) < seconds:
        try:
            events += run(seed).events
        except Exception as error:
            failed += 1
            print(f"seed {seed} FAILED: {type(error).__name__}: {error}", flush=True)
            print(f"  again, with its traceback: python -m tests.raft.soak --seed {seed}", flush=True)
        seed += 1
    count = seed - first
    print(
        f"seeds {first}..{seed - 1}: {failed} failed; {count / elapsed:.1f} seeds/s, {events / elapsed:,.0f} events/s, "
        f"{elapsed:.0f} s"
    )
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int)
    args = parser.parse_args()
    if args.seed is not None:
        print(run(args.seed))
        return 0
    return 1 if soak(args.seconds, args.first) else 0


if __name__ == "__main__":
    sys.exit(main())
