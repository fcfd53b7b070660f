"""Where runs begin: small worlds to search through entirely, and larger ones drawn at random."""

from __future__ import annotations

import random

from evenkeel.protocol.records import Retarget
from tests.explorer.world import Scenario, Wish

FAULTS = {
    "desired": 3, "write": 3, "compact": 2, "crash": 2, "pause": 2, "cut": 2, "wipe": 1, "lose": 1, "declare": 2,
    "takeover": 2, "halt": 1, "blank": 1, "vanish": 2, "mute": 2, "glimpse": 4, "lag": 2, "backup": 1,
    "replace": 2, "readopt": 1,
}  # fmt: skip


def draw(rng: random.Random) -> Scenario:
    """A random scenario: three to five stores, one to three voters, every retarget mode, some of the faults."""
    stores = tuple("abcde"[: rng.randint(3, 5)])
    wishes = [_desired(rng, stores) for _ in range(4)]
    if rng.random() < 0.1:
        wishes.append(Wish(()))
    if rng.random() < 0.1:
        wishes.append(Wish(None))
    budget = {kind: rng.randint(0, most) for kind, most in FAULTS.items()}
    budget["desired"] = rng.randint(1, 4)
    return Scenario(
        stores=stores,
        wishes=tuple(wishes),
        mode=rng.choice(list(Retarget)),
        ready=rng.random() < 0.9,
        budget=budget,
    )


def _desired(rng: random.Random, stores: tuple[str, ...]) -> Wish:
    names = rng.sample(stores, rng.randint(1, min(4, len(stores))))
    count = rng.choice([size for size in (1, 2, 3) if size <= len(names)])
    return Wish(tuple(names[:count]), tuple(names[count:]))


EVERYTHING = dict.fromkeys(FAULTS.keys() - {"backup", "replace", "readopt"}, 1)
"""What is exhausted everywhere; another metastore has scenarios of its own."""


def _small(stores: str, *wishes: Wish, mode: Retarget = Retarget.ADJUST, ready: bool = True) -> Scenario:
    budget = EVERYTHING | {"desired": len(wishes) - 1}
    return Scenario(stores=tuple(stores), wishes=wishes, mode=mode, ready=ready, budget=budget)


SMALL = {
    "hand over": _small("ab", Wish(("a",)), Wish(("b",))),
    "promote": _small("ab", Wish(("a",), ("b",)), Wish(("a", "b"))),
    "replace": _small("abc", Wish(("a", "b")), Wish(("a", "c"))),
    "grow in two steps": _small("abc", Wish(("a",)), Wish(("a", "b", "c"))),
    "away and back": _small("abc", Wish(("a",)), Wish(("a", "b")), Wish(("a",))),
    "cancel": _small("abc", Wish(("a",)), Wish(("a",), ("b",)), Wish(("a",), ("c",)), mode=Retarget.CANCEL),
    "queue": _small("ab", Wish(("a",)), Wish(("a", "b")), Wish(("a",), ("b",)), mode=Retarget.QUEUE),
    "create": _small("ab", Wish(("a", "b")), Wish(("a",)), ready=False),
    "drop": _small("ab", Wish(("a", "b")), Wish(None)),
    "another metastore": Scenario(
        stores=("a", "b"),
        wishes=(Wish(("a",)), Wish(("b",))),
        budget={"desired": 1, "replace": 1, "crash": 1, "mute": 1},
    ),
    "adopted in place": Scenario(
        stores=("a", "b"),
        wishes=(Wish(("a",)), Wish(("a", "b"))),
        budget={"desired": 1, "readopt": 1, "cut": 1, "mute": 1},
    ),
}
"""Small enough to be searched through entirely, up to so many departures from the usual schedule."""
