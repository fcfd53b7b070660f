"""Simulations of fixed seeds: no invariant breaks under faults, and the group converges after them."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from tests.raft.sim.mix import draw
from tests.raft.sim.run import run

FOUND = (167, 388, 447, 690, 717, 1902)
"""Seeds that once found a bug, from before disk failures were simulated."""


@pytest.mark.parametrize("seed", range(1, 101))
def test_seed(seed: int) -> None:
    """No invariant breaks under the seed's faults, histories are linearizable, and the group converges after them."""
    run(seed)


@pytest.mark.parametrize("seed", FOUND)
def test_seed_that_found_something(seed: int) -> None:
    """A seed that once found a bug passes."""
    run(seed, mix=replace(draw(seed), disk_fails_every=0))


def test_same_seed_does_the_same_again() -> None:
    """A failing seed can be replayed: two runs of one seed agree in every number."""
    assert run(152) == run(152)
