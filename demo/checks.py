"""The checks at the end: every acknowledged row exists once, as it was last written."""

from __future__ import annotations

from collections.abc import Mapping

from demo.facts import Fingerprint, Sample, Tally, Verdict

__all__ = ["verdicts"]


def verdicts(
    *, expected: Fingerprint, found: Fingerprint, differing: int, tally: Tally, end: Sample, drained: Mapping[str, int]
) -> list[Verdict]:
    """Check what Spark counted, what readers saw and where the replicas are.

    `drained` is the number of replicas that each drained store still held.
    """
    return [
        _same("Spark's row count equals the number of acknowledged rows", expected.rows, found.rows),
        _same("the checksum equals that of the acknowledged rows", f"{expected.checksum:x}", f"{found.checksum:x}"),
        _same("the sum of amounts equals the acknowledged one", expected.amount, found.amount),
        Verdict("no row is missing or differs", differing == 0, f"{differing} rows"),
        Verdict("no read was stale", tally.stale == 0, f"{tally.stale} of {tally.reads} reads"),
        Verdict("no read or write failed", not tally.errors, "; ".join(tally.errors[:3]) or _counted(tally)),
        _led(end),
        *(
            Verdict(f"{store} held no replica after its drain", left == 0, f"{left} replicas")
            for store, left in drained.items()
        ),
    ]


def _same(what: str, expected: object, found: object) -> Verdict:
    detail = f"{found}" if expected == found else f"found {found}, expected {expected}"
    return Verdict(what, expected == found, detail)


def _counted(tally: Tally) -> str:
    return f"{tally.acknowledged} writes, {tally.reads} reads"


def _led(end: Sample) -> Verdict:
    counts = ", ".join(str(count) for _, count in sorted(end.leaders.items()))
    holds = end.leaderless == 0 and end.moving == 0
    return Verdict("every partition has a leader, and no replica is moving", holds, f"leaders per store: {counts}")
