"""A StoreCluster's status, derived from its stores in the metastore; for Ready see `readiness`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from evenkeel.model.conditions import (
    STALLING,
    Condition,
    ConditionType,
    Reason,
    condition,
    merge_conditions,
    projected,
    unless_past,
    with_kstatus,
)
from evenkeel.model.storecluster import DroppedTable, StoreCluster, StoreClusterStatus, StoreDrain
from evenkeel.protocol.keys import table_name
from evenkeel.protocol.records import StoreLoad
from evenkeel.reconcile.cluster_version import Versions
from evenkeel.reconcile.known_stores import KnownStores
from evenkeel.reconcile.metastore_adoption import MetastoreSeen, metastore_mismatch, metastore_status, not_adopted
from evenkeel.reconcile.readiness import Problem, Verdict, degraded, store_cluster_ready, store_cluster_ready_unreadable
from evenkeel.reconcile.store_states import leaving

__all__ = ["Held", "cluster_problem_status", "cluster_status"]

_SHOWN = 100
_NAMED = 5


class Held(NamedTuple):
    """The replicas that still have to leave a draining store."""

    replicas: int = 0
    bytes: int | None = None
    """Their total size; None unless stores report the size of each."""
    tables: frozenset[str] = frozenset()
    """The keys of their tables."""


class _Facts(NamedTuple):
    """The inputs of the conditions."""

    cluster: StoreCluster
    status: StoreClusterStatus
    known: KnownStores
    ready: int
    """Registered stores that are not scaled away."""
    versions: Versions
    skewed: Mapping[str, int]
    """By store whose wall clock differs from most others', how many seconds it is ahead."""
    refused: Problem | None
    """Why the spec cannot be applied unless a user changes something."""


def cluster_status(
    cluster: StoreCluster,
    known: KnownStores,
    *,
    loads: Mapping[str, StoreLoad],
    held: Mapping[str, Held],
    blocked: Mapping[str, Problem] | None = None,
    tables: int,
    versions: Versions,
    dropped: tuple[DroppedTable, ...] = (),
    metastore: MetastoreSeen | None = None,
    left_to_adopt: int = 0,
    now: str,
) -> StoreClusterStatus:
    """Return the StoreCluster's status at the time `now`.

    `held` is, by draining store, the replicas that still have to leave it. `blocked` is, by table key, why the table
    cannot be placed as desired.
    """
    going = leaving(cluster, known.names)
    before = cluster.status or StoreClusterStatus()
    draining = sorted(name for name, state in known.states.items() if state.draining)
    drains = {drain.store: drain for drain in before.drains}
    kept = {name: _kept_by(left, blocked or {}) for name, left in sorted(held.items())}
    status = StoreClusterStatus(
        observed_generation=cluster.metadata.generation,
        stores=len(known.names),
        ready_stores=len(known.registered),
        selector=before.selector,
        tables=tables,
        replicas=sum(load.replicas for load in loads.values()),
        zones_from=before.zones_from,
        version=versions.version,
        supported_version=versions.supported,
        metastore=before.metastore if metastore is None else metastore_status(cluster, metastore),
        lost=tuple(sorted(known.lost - going))[:_SHOWN],
        dropped=dropped[:_SHOWN],
        drains=tuple(
            _drain(name, held.get(name, Held()), drains.get(name), kept.get(name, ()), now)
            for name in draining[:_SHOWN]
        ),
    )
    facts = _Facts(
        cluster,
        status,
        known,
        ready=len(known.registered.keys() - going),
        versions=versions,
        skewed={name: load.clock_ahead for name, load in sorted(loads.items()) if load.clock_ahead},
        refused=_refused(cluster, {name: kept[name] for name in kept if name in going}, metastore),
    )
    found = _conditions(facts, now=now)
    if metastore is not None:
        found.append(_metastore_condition(cluster, metastore, left=left_to_adopt, now=now))
    conditions = merge_conditions(before.conditions, found)
    return status.model_copy(update={"conditions": with_kstatus(conditions, now=now)})


def cluster_problem_status(cluster: StoreCluster, problem: Problem, *, now: str) -> StoreClusterStatus:
    """Return the previous status with a problem, if the metastore cannot be read."""
    before, generation = cluster.status or StoreClusterStatus(), cluster.metadata.generation
    changed = [
        condition("Ready", *store_cluster_ready_unreadable(problem), now=now, generation=generation),
        condition("Degraded", True, problem.reason, problem.message, now=now, generation=generation),
    ]
    if problem.reason is Reason.METASTORE_MISMATCH:
        changed.append(
            condition("MetastoreMismatch", True, problem.reason, problem.message, now=now, generation=generation)
        )
    conditions = with_kstatus(merge_conditions(before.conditions, changed), now=now)
    return before.model_copy(update={"conditions": conditions})


def _metastore_condition(cluster: StoreCluster, seen: MetastoreSeen, *, left: int, now: str) -> Condition:
    verdict = metastore_mismatch(cluster, seen, left=left)
    return condition("MetastoreMismatch", *verdict, now=now, generation=cluster.metadata.generation)


def _kept_by(left: Held, blocked: Mapping[str, Problem]) -> tuple[Problem, ...]:
    """Return, table by table, why replicas cannot leave a store."""
    found = [(f"table {table_name(key)}: ", blocked[key]) for key in sorted(left.tables) if key in blocked]
    # The planner's errors name the table themselves.
    return tuple(Problem(why.reason, table + why.message.removeprefix(table)) for table, why in found)


def _refused(
    cluster: StoreCluster, departing: Mapping[str, tuple[Problem, ...]], metastore: MetastoreSeen | None
) -> Problem | None:
    """Return why the spec cannot be applied: the metastore to adopt is missing, or a store to remove cannot drain.

    A drain that the annotation asks for is not part of the spec.
    """
    if metastore is not None and (why := not_adopted(cluster, metastore)):
        return Problem(Reason.SPEC_INVALID, why)
    for name, problems in departing.items():
        for problem in problems:
            if problem.reason in STALLING:
                remedy = "change the table, or raise spec.stores again"
                return Problem(problem.reason, f"store {name} cannot drain: {problem.message}; {remedy}")
    return None


def _drain(name: str, left: Held, before: StoreDrain | None, kept_by: tuple[Problem, ...], now: str) -> StoreDrain:
    """Return a store's drain progress, relative to what it held when the drain was first seen."""
    if not left.replicas:
        return StoreDrain(store=name, percentage=100)
    if before is None or before.percentage == 100:
        before = StoreDrain(store=name, started_at=now)
    most = max(left.replicas, round(before.replicas_left * 100 / (100 - before.percentage)))
    total = before.bytes_total if left.bytes is None else max(left.bytes, before.bytes_total or 0)
    drain = StoreDrain(
        store=name,
        replicas_left=left.replicas,
        bytes_left=left.bytes,
        bytes_total=total,
        percentage=100 * (most - left.replicas) // most,
        started_at=before.started_at or now,
        reason="; ".join(problem.message for problem in kept_by)[:1024],
    )
    return drain.model_copy(update={"expected_at": _empty_at(drain, before, most - left.replicas, now)})


def _empty_at(drain: StoreDrain, before: StoreDrain, gone: int, now: str) -> str | None:
    """Return when the store will be empty at the rate since the drain's start, in bytes or else in replicas."""
    if (before.replicas_left, before.bytes_left) == (drain.replicas_left, drain.bytes_left):
        return unless_past(before.expected_at, now)
    copied = (drain.bytes_total or 0) - (drain.bytes_left or 0)
    done, left = (copied, drain.bytes_left) if copied and drain.bytes_left else (gone, drain.replicas_left)
    return projected(drain.started_at or now, now, done=done, left=left) if done else None


def _conditions(facts: _Facts, *, now: str) -> list[Condition]:
    wanted, generation = facts.cluster.spec.stores, facts.cluster.metadata.generation
    found: tuple[tuple[ConditionType, Verdict], ...] = (
        ("Ready", store_cluster_ready(facts.ready, wanted, generation=generation, refused=facts.refused)),
        ("Progressing", _progressing(facts)),
        ("Degraded", degraded(_problems(facts))),
    )
    return [condition(kind, *verdict, now=now, generation=generation) for kind, verdict in found]


def _progressing(facts: _Facts) -> Verdict:
    draining = [drain.store for drain in facts.status.drains if drain.percentage < 100]
    if not draining:
        return Verdict(False, Reason.AS_EXPECTED)
    return Verdict(True, Reason.REBALANCING, f"draining: {_named(draining)}")


def _problems(facts: _Facts) -> Iterator[Problem]:
    if facts.known.problems:
        first = next(iter(facts.known.problems.values()))
        yield Problem(Reason.MALFORMED_RECORD, first)
    if facts.versions.problem:
        yield Problem(Reason.SPEC_INVALID, facts.versions.problem)
    if facts.refused is not None:
        yield facts.refused
    yield from _unsupported(facts)
    if lost := facts.status.lost:
        replaced = [name for name in lost if facts.known.states[name].replace_in]
        elsewhere = f"; replicas of {_named(replaced)} are being replaced" if replaced else ""
        yield Problem(Reason.STORES_LOST, f"lost: {_named(lost)}{elsewhere}")
    if facts.skewed:
        clocks = _named(f"{name} ({ahead:+d} s)" for name, ahead in facts.skewed.items())
        yield Problem(Reason.CLOCK_SKEW, f"wall clocks differ from most stores': {clocks}; check NTP on their nodes")


def _unsupported(facts: _Facts) -> Iterator[Problem]:
    version, registered = facts.versions.version, facts.known.registered
    unsupported = sorted(name for name, record in registered.items() if not record.supported.includes(version))
    if unsupported:
        supported = registered[unsupported[0]].supported
        yield Problem(
            Reason.VERSION_UNSUPPORTED,
            f"these stores do not support cluster version {version}: {_named(unsupported)} ({supported}); run a "
            "release on them that supports it",
        )


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_NAMED]) + (f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else "")
