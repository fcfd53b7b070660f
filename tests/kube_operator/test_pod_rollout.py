"""Which pod a rollout replaces next."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from evenkeel.kube.object_kinds import Object
from evenkeel_operator.reconcilers.pod_rollout import next_to_replace, outdated

LIVE: Object = {
    "metadata": {"generation": 2},
    "spec": {"replicas": 3},
    "status": {"observedGeneration": 2, "updateRevision": "new"},
}


def pod(number: int, state: str) -> Object:
    """`new`, `old`, `new away`, `old going` and so on."""
    revision, _, how = state.partition(" ")
    metadata: dict[str, Any] = {"name": f"main-{number}", "labels": {"controller-revision-hash": revision}}
    if how == "going":
        metadata["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    conditions = [{"type": "Ready", "status": "False" if how == "away" else "True"}]
    return {"metadata": metadata, "status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("states", "expected"),
    [
        (["new", "new", "new"], None),
        (["old", "old", "old"], "main-2"),
        (["old", "old", "new"], "main-1"),
        (["old", "old", "new away"], None),
        (["old", "old", "new going"], None),
        (["old", "old going", "new"], None),
        (["old away", "old", "old"], "main-0"),
        (["old away", "old away", "new"], "main-1"),
        (["new away", "old", "old"], None),
        (["old", "old"], None),
    ],
    ids=lambda value: ", ".join(value) if isinstance(value, list) else value,
)
def test_one_at_a_time(states: list[str], expected: str | None) -> None:
    """Unready pods go first, then the last one; none while a new pod is unready, terminating or missing."""
    assert chosen(states) == expected


@pytest.mark.parametrize("state", ["new away", "new going", "old going"])
def test_stores_that_hold_nothing_do_not_block(state: str) -> None:
    """For example one that cannot be scheduled, or whose node is lost."""
    assert chosen(["old", "old", state]) is None
    assert chosen(["old", "old", state], idle={"main-2"}) == "main-1"


def chosen(states: list[str], *, idle: Collection[str] = ()) -> str | None:
    """Return the name of the pod to replace next."""
    found = next_to_replace(LIVE, [pod(number, state) for number, state in enumerate(states)], idle=idle)
    return None if found is None else str(found["metadata"]["name"])


@pytest.mark.parametrize(
    "live",
    [None, {"metadata": {"generation": 1}}, {**LIVE, "metadata": {"generation": 3}}],
    ids=["there is none", "nobody has looked at it", "it has changed since"],
)
def test_a_set_without_a_current_status(live: Object | None) -> None:
    """Until its controller has seen the newest template, no pod counts as outdated."""
    assert outdated(live, [pod(0, "old")]) == []
