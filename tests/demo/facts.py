"""A short recording: ten quiet seconds, then ten in which replicas move and a store dies."""

from __future__ import annotations

from demo.facts import Facts, Operation, Sample, Step, Tally, Verdict
from demo.report import QUIET

STEPS = [Step(QUIET, 0.0, 10.0, False), Step("Scale <the table>", 10.0, 20.0, True)]
OPERATIONS = [
    *(Operation("write", second + 0.1, 0.010) for second in range(10)),
    *(Operation("read", second + 0.2, 0.001) for second in range(10)),
    *(Operation("write", second + 0.1, 0.030) for second in range(10, 20)),
]
SAMPLES = [
    Sample(
        at=0,
        leaders={"a": 2, "b": 2},
        replicas={"a": 4, "b": 4},
        moving=0,
        leaderless=0,
        copied={"a": 0, "b": 0},
        wasted={"a": 0, "b": 0},
    ),
    Sample(
        at=12,
        leaders={"a": 4, "b": 0},
        replicas={"a": 4, "b": 2},
        moving=3,
        leaderless=1,
        copied={"a": 3 << 20, "b": 5 << 20},
        wasted={"a": 1 << 20, "b": 0},
    ),
    Sample(
        at=19,
        leaders={"a": 2, "b": 2},
        replicas={"a": 4, "b": 4},
        moving=0,
        leaderless=0,
        copied={"a": 3 << 20, "b": 2 << 20},
        wasted={"a": 1 << 20, "b": 0},
    ),
]
TALLY = Tally(acknowledged=20, rows=160, reads=10, stale=0, unsure=0, errors=[])


def facts(*verdicts: Verdict) -> Facts:
    return Facts(
        title="A story", steps=STEPS, samples=SAMPLES, operations=OPERATIONS, tally=TALLY, verdicts=list(verdicts)
    )
