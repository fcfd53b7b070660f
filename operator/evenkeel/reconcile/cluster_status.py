"""A StoreCluster's status, folded from what the metastore says of its stores."""

from __future__ import annotations

from collections.abc import Mapping

from evenkeel.metastore.api import KeyValue
from evenkeel.model.conditions import Condition, ConditionType, Reason, merge_conditions
from evenkeel.model.storecluster import StoreCluster, StoreClusterStatus, StoreDrain
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import StoreLoad, StoreState
from evenkeel.reconcile.stores import read_stores

__all__ = ["cluster_status"]

_SHOWN = 100


def cluster_status(
    cluster: StoreCluster,
    kvs: Mapping[str, KeyValue],
    loads: Mapping[str, StoreLoad],
    *,
    keys: Keys,
    tables: int,
    now: str,
) -> StoreClusterStatus:
    """What is true of the stores at the moment `now`; `kvs` holds everything under `stores`."""
    registered, states = read_stores(kvs, keys)
    lost = sorted(name for name, state in states.items() if name not in registered and not state.draining)
    before = cluster.status
    status = StoreClusterStatus(
        observed_generation=cluster.metadata.generation,
        stores=len(registered.keys() | states.keys()),
        ready_stores=len(registered),
        tables=tables,
        replicas=sum(load.replicas for load in loads.values()),
        lost=tuple(lost[:_SHOWN]),
        drains=tuple(_drain(name, loads.get(name)) for name, state in sorted(states.items()) if state.draining)[
            :_SHOWN
        ],
    )
    merged = merge_conditions(
        before.conditions if before is not None else (), _conditions(cluster, status, states, now=now)
    )
    return status.model_copy(update={"conditions": merged})


def _drain(name: str, load: StoreLoad | None) -> StoreDrain:
    left = load.replicas if load is not None else 0
    return StoreDrain(store=name, replicas_left=left, percentage=100 if not left else 0)


def _conditions(
    cluster: StoreCluster, status: StoreClusterStatus, states: Mapping[str, StoreState], *, now: str
) -> list[Condition]:
    def condition(kind: ConditionType, holds: bool, reason: Reason, message: str) -> Condition:
        return Condition(
            type=kind,
            status="True" if holds else "False",
            reason=reason.value,
            message=message,
            last_transition_time=now,
            observed_generation=cluster.metadata.generation,
        )

    ready = status.ready_stores >= cluster.spec.stores
    words = f"{status.ready_stores} of {cluster.spec.stores} stores are registered"
    replaced = sorted(name for name, state in states.items() if state.replace)
    return [
        condition("Ready", ready, Reason.AS_EXPECTED if ready else Reason.STORES_NOT_READY, words),
        condition(
            "Progressing",
            bool(status.drains),
            Reason.REBALANCING if status.drains else Reason.AS_EXPECTED,
            f"{len(status.drains)} stores are being emptied" if status.drains else "",
        ),
        condition(
            "Degraded",
            bool(status.lost),
            Reason.STORES_LOST if status.lost else Reason.AS_EXPECTED,
            _lost_words(status, replaced),
        ),
    ]


def _lost_words(status: StoreClusterStatus, replaced: list[str]) -> str:
    if not status.lost:
        return ""
    words = f"lost: {', '.join(status.lost[:5])}{' ...' if len(status.lost) > 5 else ''}"
    return words + (f"; replicas of {', '.join(replaced[:5])} are made anew elsewhere" if replaced else "")
