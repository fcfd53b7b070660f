"""A StoreCluster's status, folded from what the metastore says of its stores."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from evenkeel.model.conditions import (
    STALLING,
    Condition,
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
from evenkeel.reconcile.metastore_adoption import MetastoreSeen, metastore_status, metastore_words, not_adopted
from evenkeel.reconcile.partition_status import Problem
from evenkeel.reconcile.store_states import leaving

__all__ = ["Held", "cluster_problem_status", "cluster_status"]

_SHOWN = 100
_NAMED = 5


class Held(NamedTuple):
    """What is still to leave a store."""

    replicas: int = 0
    bytes: int | None = None
    """None unless stores report the sizes of all of them."""
    tables: frozenset[str] = frozenset()
    """The keys of the tables that they belong to."""


class _Facts(NamedTuple):
    """What conditions are told from."""

    cluster: StoreCluster
    status: StoreClusterStatus
    known: KnownStores
    ready: int
    """Stores that are wanted and registered."""
    versions: Versions
    skewed: Mapping[str, int]
    """By store whose wall clock is off most others': by how many seconds it is ahead."""
    refused: Problem | None
    """Why the spec is not carried out, and will not be unless somebody changes something."""


def cluster_status(
    cluster: StoreCluster,
    known: KnownStores,
    *,
    loads: Mapping[str, StoreLoad],
    held: Mapping[str, Held],
    held_up: Mapping[str, Problem] | None = None,
    tables: int,
    versions: Versions,
    dropped: tuple[DroppedTable, ...] = (),
    metastore: MetastoreSeen | None = None,
    left_to_adopt: int = 0,
    now: str,
) -> StoreClusterStatus:
    """What is true of the stores at the moment `now`.

    `held` is what partitions name on each store that is to be emptied. `held_up` says by the key of a table why its
    replicas cannot be placed as wanted.
    """
    going = leaving(cluster, known.names)
    before = cluster.status or StoreClusterStatus()
    draining = sorted(name for name, state in known.states.items() if state.draining)
    drains = {drain.store: drain for drain in before.drains}
    kept = {name: _kept_by(left, held_up or {}) for name, left in sorted(held.items())}
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
    told = merge_conditions(before.conditions, found)
    return status.model_copy(update={"conditions": with_kstatus(told, now=now)})


def cluster_problem_status(cluster: StoreCluster, problem: Problem, *, now: str) -> StoreClusterStatus:
    """The status of before, with what is wrong: for when what the metastore says cannot be read."""
    before, generation = cluster.status or StoreClusterStatus(), cluster.metadata.generation
    wrong = [
        condition("Ready", None, problem.reason, problem.message, now=now, generation=generation),
        condition("Degraded", True, problem.reason, problem.message, now=now, generation=generation),
    ]
    if problem.reason is Reason.METASTORE_MISMATCH:
        wrong.append(
            condition("MetastoreMismatch", True, problem.reason, problem.message, now=now, generation=generation)
        )
    conditions = with_kstatus(merge_conditions(before.conditions, wrong), now=now)
    return before.model_copy(update={"conditions": conditions})


def _metastore_condition(cluster: StoreCluster, seen: MetastoreSeen, *, left: int, now: str) -> Condition:
    words = metastore_words(cluster, seen, left=left)
    return condition("MetastoreMismatch", *words, now=now, generation=cluster.metadata.generation)


def _kept_by(left: Held, held_up: Mapping[str, Problem]) -> tuple[Problem, ...]:
    """Why replicas of tables cannot leave a store, table by table."""
    found = [(f"table {table_name(key)}: ", held_up[key]) for key in sorted(left.tables) if key in held_up]
    # The planner's errors name the table themselves.
    return tuple(Problem(why.reason, table + why.message.removeprefix(table)) for table, why in found)


def _refused(
    cluster: StoreCluster, departing: Mapping[str, tuple[Problem, ...]], metastore: MetastoreSeen | None
) -> Problem | None:
    """Why the spec is not carried out: a metastore that is not there to adopt, or stores that can never be emptied.

    A store that a user wants to be emptied by an annotation is not part of the spec.
    """
    if metastore is not None and (why := not_adopted(cluster, metastore)):
        return Problem(Reason.SPEC_INVALID, why)
    for name, problems in departing.items():
        for problem in problems:
            if problem.reason in STALLING:
                remedy = "change the table, or raise spec.stores again"
                return Problem(problem.reason, f"store {name} cannot be emptied: {problem.message}; {remedy}")
    return None


def _drain(name: str, left: Held, before: StoreDrain | None, kept_by: tuple[Problem, ...], now: str) -> StoreDrain:
    """How empty the store is, by what it held when it was first seen draining."""
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
    """When the store will be empty at the rate since it began to drain, in bytes or else in replicas."""
    if (before.replicas_left, before.bytes_left) == (drain.replicas_left, drain.bytes_left):
        return unless_past(before.expected_at, now)
    copied = (drain.bytes_total or 0) - (drain.bytes_left or 0)
    done, left = (copied, drain.bytes_left) if copied and drain.bytes_left else (gone, drain.replicas_left)
    return projected(drain.started_at or now, now, done=done, left=left) if done else None


def _conditions(facts: _Facts, *, now: str) -> list[Condition]:
    emptying = [drain.store for drain in facts.status.drains if drain.percentage < 100]
    problems = list(_troubles(facts))
    told = (
        ("Ready", *_ready(facts)),
        (
            "Progressing",
            bool(emptying),
            Reason.REBALANCING if emptying else Reason.AS_EXPECTED,
            f"being emptied: {_named(emptying)}" if emptying else "",
        ),
        (
            "Degraded",
            bool(problems),
            problems[0].reason if problems else Reason.AS_EXPECTED,
            "; ".join(problem.message for problem in problems),
        ),
    )
    generation = facts.cluster.metadata.generation
    return [condition(*entry, now=now, generation=generation) for entry in told]  # type: ignore[arg-type]


def _ready(facts: _Facts) -> tuple[bool, Reason, str]:
    """As many stores as are wanted are registered, and nothing of the spec is refused."""
    if facts.refused is not None:
        generation = facts.cluster.metadata.generation
        return False, facts.refused.reason, f"generation {generation} is not carried out: {facts.refused.message}"
    wanted = facts.cluster.spec.stores
    ready = facts.ready >= wanted
    reason = Reason.AS_EXPECTED if ready else Reason.STORES_NOT_READY
    return ready, reason, f"{facts.ready} of {wanted} stores are registered"


def _troubles(facts: _Facts) -> Iterator[Problem]:
    if facts.known.problems:
        first = next(iter(facts.known.problems.values()))
        yield Problem(Reason.MALFORMED_RECORD, first)
    if facts.versions.problem:
        yield Problem(Reason.SPEC_INVALID, facts.versions.problem)
    if facts.refused is not None:
        yield facts.refused
    yield from _unsupported(facts)
    if lost := facts.status.lost:
        given_up = [name for name in lost if facts.known.states[name].replace_in]
        elsewhere = f"; replicas of {_named(given_up)} are made anew elsewhere" if given_up else ""
        yield Problem(Reason.STORES_LOST, f"lost: {_named(lost)}{elsewhere}")
    if facts.skewed:
        clocks = _named(f"{name} ({ahead:+d} s)" for name, ahead in facts.skewed.items())
        yield Problem(Reason.CLOCK_SKEW, f"wall clocks differ from most stores': {clocks}; check NTP on their nodes")


def _unsupported(facts: _Facts) -> Iterator[Problem]:
    version, registered = facts.versions.version, facts.known.registered
    foreign = sorted(name for name, record in registered.items() if not record.supported.includes(version))
    if foreign:
        supported = registered[foreign[0]].supported
        yield Problem(
            Reason.VERSION_UNSUPPORTED,
            f"the cluster version is {version}, which these stores do not support: {_named(foreign)} ({supported}); "
            "run a release there that supports it",
        )


def _named(names: Iterable[str]) -> str:
    listed = list(names)
    return ", ".join(listed[:_NAMED]) + (f" and {len(listed) - _NAMED} more" if len(listed) > _NAMED else "")
