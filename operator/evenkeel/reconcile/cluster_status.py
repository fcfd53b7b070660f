"""A StoreCluster's status, folded from what the metastore says of its stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from evenkeel.model.conditions import Condition, Reason, condition, merge_conditions
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus, StoreDrain
from evenkeel.protocol.records import StoreLoad
from evenkeel.reconcile.known import KnownStores
from evenkeel.reconcile.partitions import Trouble
from evenkeel.reconcile.stores import leaving

__all__ = ["cluster_status", "troubled_cluster_status"]

_SHOWN = 100
_NAMED = 5


class _Facts(NamedTuple):
    """What conditions are told from."""

    cluster: StoreCluster
    status: StoreClusterStatus
    known: KnownStores
    ready: int
    """Stores that are wanted and registered."""


def cluster_status(
    cluster: StoreCluster,
    known: KnownStores,
    *,
    loads: Mapping[str, StoreLoad],
    held: Mapping[str, int],
    held_up: str = "",
    tables: int,
    now: str,
) -> StoreClusterStatus:
    """What is true of the stores at the moment `now`.

    `held` is how many replicas partitions name on each store that is to be
    emptied, and `held_up` what keeps them from leaving.
    """
    going = leaving(cluster, known.names)
    before = cluster.status or StoreClusterStatus()
    draining = sorted(name for name, state in known.states.items() if state.draining)
    drains = {drain.store: drain for drain in before.drains}
    status = StoreClusterStatus(
        observed_generation=cluster.metadata.generation,
        stores=len(known.names),
        ready_stores=len(known.registered),
        selector=before.selector,
        tables=tables,
        replicas=sum(load.replicas for load in loads.values()),
        zones_from=before.zones_from,
        lost=tuple(sorted(known.lost - going))[:_SHOWN],
        drains=tuple(_drain(name, held.get(name, 0), drains.get(name), held_up) for name in draining)[:_SHOWN],
    )
    facts = _Facts(cluster, status, known, ready=len(known.registered.keys() - going))
    told = _conditions(facts, now=now)
    return status.model_copy(update={"conditions": merge_conditions(before.conditions, told)})


def troubled_cluster_status(cluster: StoreCluster, trouble: Trouble, *, now: str) -> StoreClusterStatus:
    """The status of before, with what is wrong: for when what the metastore says cannot be read."""
    before = cluster.status or StoreClusterStatus()
    generation = cluster.metadata.generation
    wrong = condition("Degraded", True, trouble.reason, trouble.message, now=now, generation=generation)
    return before.model_copy(update={"conditions": merge_conditions(before.conditions, [wrong])})


def _drain(name: str, left: int, before: StoreDrain | None, held_up: str) -> StoreDrain:
    """How empty the store is, by how many it held when it was first seen draining."""
    if not left:
        return StoreDrain(store=name, percentage=100)
    done = before.percentage if before is not None and before.percentage < 100 else 0
    most = max(left, round(before.replicas_left * 100 / (100 - done)) if before is not None else 0)
    return StoreDrain(store=name, replicas_left=left, percentage=100 * (most - left) // most, reason=held_up[:1024])


def _conditions(facts: _Facts, *, now: str) -> list[Condition]:
    status, wanted = facts.status, facts.cluster.spec.stores
    emptying = [drain.store for drain in status.drains if drain.percentage < 100]
    ready = facts.ready >= wanted
    troubles = list(_troubles(facts))
    told = (
        (
            "Ready",
            ready,
            Reason.AS_EXPECTED if ready else Reason.STORES_NOT_READY,
            f"{facts.ready} of {wanted} stores are registered",
        ),
        (
            "Progressing",
            bool(emptying),
            Reason.REBALANCING if emptying else Reason.AS_EXPECTED,
            f"being emptied: {_named(emptying)}" if emptying else "",
        ),
        (
            "Degraded",
            bool(troubles),
            troubles[0].reason if troubles else Reason.AS_EXPECTED,
            "; ".join(trouble.message for trouble in troubles),
        ),
    )
    generation = facts.cluster.metadata.generation
    return [condition(*entry, now=now, generation=generation) for entry in told]  # type: ignore[arg-type]


def _troubles(facts: _Facts) -> Iterator[Trouble]:
    if facts.known.problems:
        first = next(iter(facts.known.problems.values()))
        yield Trouble(Reason.MALFORMED_RECORD, first)
    if not facts.status.lost:
        return
    lost = facts.status.lost
    given_up = [name for name in lost if facts.known.states[name].replace or facts.known.states[name].replace_in]
    elsewhere = f"; replicas of {_named(given_up)} are made anew elsewhere" if given_up else ""
    yield Trouble(Reason.STORES_LOST, f"lost: {_named(lost)}{elsewhere}")


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_NAMED]) + (f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else "")
