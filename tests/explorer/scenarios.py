"""Initial worlds: small ones to search exhaustively, and larger random ones."""

from __future__ import annotations

import random

from evenkeel.protocol.records import Retarget
from tests.explorer.world import Scenario, Target

FAULTS = {
    "desired": 3, "write": 3, "compact": 2, "crash": 2, "pause": 2, "cut": 2, "wipe": 1, "lose": 1, "declare": 2,
    "takeover": 2, "halt": 1, "blank": 1, "vanish": 2, "mute": 2, "glimpse": 4, "lag": 2, "backup": 1,
    "replace": 2, "readopt": 1,
}  # fmt: skip


def draw(rng: random.Random) -> Scenario:
    """Return a random scenario: three to five stores, one to three voters, any retarget mode, some faults."""
    stores = tuple("abcde"[: rng.randint(3, 5)])
    targets = [_desired(rng, stores) for _ in range(4)]
    if rng.random() < 0.1:
        targets.append(Target(()))
    if rng.random() < 0.1:
        targets.append(Target(None))
    budget = {kind: rng.randint(0, most) for kind, most in FAULTS.items()}
    budget["desired"] = rng.randint(1, 4)
    return Scenario(
        stores=stores,
        targets=tuple(targets),
        mode=rng.choice(list(Retarget)),
        ready=rng.random() < 0.9,
        budget=budget,
    )


def _desired(rng: random.Random, stores: tuple[str, ...]) -> Target:
    names = rng.sample(stores, rng.randint(1, min(4, len(stores))))
    count = rng.choice([size for size in (1, 2, 3) if size <= len(names)])
    return Target(tuple(names[:count]), tuple(names[count:]))


EVERYTHING = dict.fromkeys(FAULTS.keys() - {"backup", "replace", "readopt"}, 1)
"""The budget of every exhaustive search; scenarios with another metastore have their own."""


def _small(stores: str, *targets: Target, mode: Retarget = Retarget.ADJUST, ready: bool = True) -> Scenario:
    budget = EVERYTHING | {"desired": len(targets) - 1}
    return Scenario(stores=tuple(stores), targets=targets, mode=mode, ready=ready, budget=budget)


SMALL = {
    "hand over": _small("ab", Target(("a",)), Target(("b",))),
    "promote": _small("ab", Target(("a",), ("b",)), Target(("a", "b"))),
    "replace": _small("abc", Target(("a", "b")), Target(("a", "c"))),
    "grow in two steps": _small("abc", Target(("a",)), Target(("a", "b", "c"))),
    "away and back": _small("abc", Target(("a",)), Target(("a", "b")), Target(("a",))),
    "cancel": _small("abc", Target(("a",)), Target(("a",), ("b",)), Target(("a",), ("c",)), mode=Retarget.CANCEL),
    "queue": _small("ab", Target(("a",)), Target(("a", "b")), Target(("a",), ("b",)), mode=Retarget.QUEUE),
    "create": _small("ab", Target(("a", "b")), Target(("a",)), ready=False),
    "drop": _small("ab", Target(("a", "b")), Target(None)),
    "another metastore": Scenario(
        stores=("a", "b"),
        targets=(Target(("a",)), Target(("b",))),
        budget={"desired": 1, "replace": 1, "crash": 1, "mute": 1},
    ),
    "adopted in place": Scenario(
        stores=("a", "b"),
        targets=(Target(("a",)), Target(("a", "b"))),
        budget={"desired": 1, "readopt": 1, "cut": 1, "mute": 1},
    ),
}
"""Scenarios that are small enough to search exhaustively, up to a number of deviations from the usual schedule."""
