"""What must hold in the end: every acknowledged row is there, once, as it was last written."""

from __future__ import annotations

from collections.abc import Mapping

from demo.facts import Fingerprint, Sample, Tally, Verdict

__all__ = ["verdicts"]


def verdicts(
    *, expected: Fingerprint, found: Fingerprint, differing: int, tally: Tally, end: Sample, drained: Mapping[str, int]
) -> list[Verdict]:
    """Judge what Spark counted, what readers saw, and where everything is; `drained` has what stores held then."""
    return [
        _same("Spark counts the rows that were acknowledged", expected.rows, found.rows),
        _same("their checksum is that of what was acknowledged", f"{expected.checksum:x}", f"{found.checksum:x}"),
        _same("and so is the sum of their amounts", expected.amount, found.amount),
        Verdict("no row is missing, or other than it was written", differing == 0, f"{differing} rows"),
        Verdict("no read was stale", tally.stale == 0, f"{tally.stale} of {tally.reads} reads"),
        Verdict("every read and write was answered", not tally.errors, "; ".join(tally.errors[:3]) or _counted(tally)),
        _led(end),
        *(
            Verdict(f"{store}, when it was drained, held nothing", left == 0, f"{left} replicas")
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
    return Verdict("every partition has a leader, and nothing moves any more", holds, f"stores lead {counts}")
