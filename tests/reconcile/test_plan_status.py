"""Statuses of RebalancePlans, previews and dry runs."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from evenkeel.errors import InvalidInputError, PlanningError
from evenkeel.model.conditions import Reason
from evenkeel.model.rebalanceplan import RebalancePlan, RebalancePlanSpec, RebalancePlanStatus, WhatIf
from evenkeel.model.table import Table
from evenkeel.model.views import Move, StoresView, StoreView
from evenkeel.protocol.records import StoreRecord
from evenkeel.reconcile.desired_table import desired_table
from evenkeel.reconcile.plan_moves import format_moves, moves_of
from evenkeel.reconcile.plan_status import (
    CopyCosts,
    dry_run_status,
    failed_plan_status,
    owned_metadata,
    plan_object,
    plan_status,
)
from evenkeel.reconcile.planning import Preview, preview_table
from evenkeel.reconcile.readiness import Problem
from evenkeel.reconcile.what_if import what_if_stores, what_if_table
from tests.reconcile.support import KEYS, PARTITIONS, TABLE, Cluster, conditions, message, store_cluster, table

FIRST, LATER = "2026-01-01T00:00:00Z", "2026-01-01T00:01:00Z"


class Scene(Cluster):
    """A table, its newest plan, and the plan's RebalancePlan."""

    def __init__(self, **spec: Any) -> None:
        super().__init__(stores=5)
        self.table = table(**spec)
        self.reconcile(desired_table(self.table))

    def change(self, **spec: Any) -> None:
        self.table = table(generation=2, **spec)
        self.reconcile(msgspec.structs.replace(desired_table(self.table), max_concurrent=None))

    def object(self) -> RebalancePlan:
        plan = self.snapshot().plan
        assert plan is not None
        return plan_object(self.table, plan)

    def status(self, found: RebalancePlan, *, now: str = FIRST, **known: Any) -> RebalancePlanStatus:
        given: dict[str, Any] = {"table": self.table, "cluster": store_cluster(), "filling": {}, **known}
        given.setdefault("costs", CopyCosts({}, {}))
        return plan_status(found, self.snapshot(), **given, now=now)

    def preview(self, wanted: Table, what_if: WhatIf | None = None) -> Preview:
        imagined = what_if or WhatIf()
        return self.drive(
            preview_table(
                desired_table(wanted),
                keys=KEYS,
                table=TABLE,
                imagine=lambda stores: what_if_stores(stores, imagined, store_cluster="s"),
            )
        )


def seen(found: RebalancePlan, status: RebalancePlanStatus, **spec: Any) -> RebalancePlan:
    return found.model_copy(update={"status": status, "spec": found.spec.model_copy(update=spec)})


def costs(size: int, **rates: int) -> CopyCosts:
    return CopyCosts(dict.fromkeys(range(PARTITIONS), size), rates)


# Plans


def test_a_plan_is_an_object_of_its_number() -> None:
    """The object is named after table and number, belongs to the table, and shows hash, totals and first moves."""
    scene = Scene()
    scene.change(replicas=5)
    found = scene.object()
    assert (found.metadata.name, found.spec.table, found.spec.number) == ("orders-2", "orders", 2)
    assert found.metadata.labels == {"evenkeel.dev/table": "orders"}
    status = scene.status(found)
    plan = scene.snapshot().plan
    assert plan is not None
    assert (status.state, status.hash) == ("Running", plan.head.hash)
    assert (status.totals.partitions, status.totals.moves) == (PARTITIONS, 2 * PARTITIONS)
    assert len(status.moves) == 100
    assert (status.moves[0].source, status.moves[0].reason) == ("", "replicas 3 -> 5")
    assert conditions(status) == {"Ready": ("False", "Rebalancing"), "Approved": ("True", "AsExpected")}


def test_totals_stay_as_they_were_when_the_plan_was_made() -> None:
    """Progress follows the metastore; totals and moves do not change with the stores' reports."""
    scene = Scene()
    scene.change(replicas=5)
    found = scene.object()
    before = scene.status(found, costs=costs(100))
    for partition in range(35):
        scene.finish(partition)
    after = scene.status(seen(found, before), costs=costs(100, s0=5), now=LATER)
    assert (after.totals, after.moves, after.hash) == (before.totals, before.moves, before.hash)
    assert after.progress is not None
    assert (after.state, after.progress.percentage) == ("Running", 50)
    assert (after.progress.started_at, after.progress.expected_at) == (FIRST, "2026-01-01T00:02:00Z")
    for partition in range(35, PARTITIONS):
        scene.finish(partition)
    done = scene.status(seen(found, after), now=LATER)
    assert done.state == "Done"
    assert scene.status(seen(found, done), now="2026-01-02T00:00:00Z") == done


def test_a_plan_that_another_one_follows() -> None:
    """A plan with a successor is superseded unless it was done; its moves stay readable."""
    scene = Scene()
    first = scene.object()
    done = scene.status(first)
    scene.change(replicas=5)
    second = scene.object()
    running = scene.status(second)
    scene.change(replicas=4)
    assert scene.status(seen(first, done)).state == "Done"
    over = scene.status(seen(second, running))
    assert (over.state, over.moves, over.hash) == ("Superseded", running.moves, running.hash)


def test_a_plan_that_was_never_made() -> None:
    """A user's object with an unknown number reports that there is no such plan."""
    scene = Scene()
    stranger = RebalancePlan(
        metadata=owned_metadata(scene.table, "orders-9"), spec=RebalancePlanSpec(table="orders", number=9)
    )
    status = scene.status(stranger)
    assert status.state == "Failed"
    assert message(status, "Accepted") == "spec.number: got 9; allowed: the number of an existing plan, the newest is 1"


def test_approval() -> None:
    """An unapproved plan names the command to approve it; a wrong hash is refused; the right one is confirmed."""
    scene = Scene(approval="Manual")
    scene.change(replicas=5, approval="Manual")
    found = scene.object()
    waits = scene.status(found)
    no = ("False", "AwaitingApproval")
    assert (waits.state, conditions(waits)) == ("AwaitingApproval", {"Ready": no, "Approved": no})
    assert "evenkeel approve plan/orders-2" in message(waits, "Approved")
    wrong = scene.status(seen(found, waits, approved_hash="0" * 32))
    assert conditions(wrong) == dict.fromkeys(("Ready", "Approved"), ("False", "SpecInvalid"))
    assert f"allowed: {waits.hash}" in message(wrong, "Approved")
    right = seen(found, waits, approved_hash=waits.hash)
    scene.reconcile(desired_table(scene.table, plans=[right]))
    approved = scene.status(right)
    assert (approved.state, conditions(approved)) == (
        "Running",
        {"Ready": ("False", "Rebalancing"), "Approved": ("True", "Approved")},
    )


@pytest.mark.parametrize(
    ("movement", "throttles", "rates", "seconds"),
    [
        ({}, {}, {}, None),
        ({"bytesPerSecond": "1k"}, {}, {}, 3),
        ({}, {"bytesPerSecond": "1k"}, {}, 3),
        ({"bytesPerSecond": "100"}, {"bytesPerSecond": "1k"}, {}, 28),
        ({}, {}, {"s0": 700}, 4),
        ({}, {"bytesPerSecond": "1k"}, {"s0": 700}, 4),
        ({}, {"bytesPerSecond": "100"}, {"s0": 700}, 28),
        ({}, {}, {"s0": 10**6, "s1": 10**6, "s2": 10**6, "s3": 10**6, "s4": 28}, 100),
    ],
)
def test_bytes_and_time(
    movement: dict[str, str], throttles: dict[str, str], rates: dict[str, int], seconds: int | None
) -> None:
    """Bytes are counted if sizes are known, and the time is that of the slowest store, at measured or limited rates."""
    scene = Scene(movement=movement)
    scene.change(replicas=5, movement=movement)
    status = scene.status(scene.object(), costs=costs(100, **rates), cluster=store_cluster(throttles=throttles))
    assert (status.totals.bytes, status.totals.seconds) == (100 * 2 * PARTITIONS, seconds)
    assert status.moves[0].bytes == 100


def test_unknown_totals_are_left_out() -> None:
    """A plan of unknown size does not claim to copy nothing in no time."""
    scene = Scene()
    scene.change(replicas=5)
    status = scene.status(scene.object(), cluster=store_cluster(throttles={"bytesPerSecond": "1k"}))
    assert (status.totals.bytes, status.totals.seconds, status.moves[0].bytes) == (None, None, None)


def test_sizes_that_become_known_are_added() -> None:
    """Totals are added once, when all sizes are known, and only while the plan is running."""
    scene = Scene()
    scene.change(replicas=5)
    found = scene.object()
    first = scene.status(found)
    part = scene.status(seen(found, first), costs=CopyCosts({0: 100}, {}))
    assert (part.totals, part.moves) == (first.totals, first.moves)
    known = scene.status(seen(found, part), costs=costs(100, s0=700))
    assert (known.totals.bytes, known.totals.seconds, known.moves[0].bytes) == (100 * 2 * PARTITIONS, 4, 100)
    grown = scene.status(seen(found, known), costs=costs(200, s0=700))
    assert (grown.totals, grown.moves) == (known.totals, known.moves)
    for partition in range(PARTITIONS):
        scene.finish(partition)
    done = scene.status(seen(found, first), costs=costs(100))
    assert (done.state, done.totals) == ("Done", first.totals)


def test_a_time_that_has_passed_is_not_expected() -> None:
    """A stalled plan has no expected end until it makes progress again."""
    scene = Scene()
    scene.change(replicas=5)
    found = scene.object()
    first = scene.status(found)
    for partition in range(35):
        scene.finish(partition)
    shown = []
    for now in (LATER, "2026-01-01T00:01:59Z", "2026-01-01T00:02:00Z", "2026-01-01T05:00:00Z"):
        first = scene.status(seen(found, first), now=now)
        assert first.progress is not None
        shown.append(first.progress.expected_at)
    assert shown == ["2026-01-01T00:02:00Z", "2026-01-01T00:02:00Z", None, None]
    scene.finish(35)
    again = scene.status(seen(found, first), now="2026-01-01T05:00:00Z").progress
    assert again is not None
    assert again.expected_at is not None
    assert again.expected_at > "2026-01-01T05:00:00Z"


def test_a_part_of_the_bytes_is_not_reported_as_the_total() -> None:
    """If one partition's size is unknown, so is the plan's; moves of known size have it."""
    scene = Scene()
    scene.change(replicas=5)
    known = costs(100, s0=700)
    status = scene.status(scene.object(), costs=CopyCosts({0: 100}, known.rates))
    assert (status.totals.bytes, status.totals.seconds) == (None, None)
    assert (status.moves[0].bytes, status.moves[-1].bytes) == (100, None)


def test_bytes_make_the_progress() -> None:
    """Bytes of copies in progress count, and the remaining time follows from the rate since the start."""
    scene = Scene()
    scene.change(replicas=5)
    found, total = scene.object(), 100 * 2 * PARTITIONS
    first = scene.status(found, costs=costs(100))
    assert first.progress is not None
    assert (first.progress.bytes_done, first.progress.bytes_total, first.progress.percentage) == (0, total, 0)
    assert first.progress.expected_at is None
    filling = {partition: {f"s{number}": 0.25 for number in range(5)} for partition in range(PARTITIONS)}
    second = scene.status(seen(found, first), costs=costs(100), filling=filling, now=LATER)
    assert second.progress is not None
    assert (second.progress.bytes_done, second.progress.bytes_total) == (total // 4, total)
    assert (second.progress.percentage, second.progress.expected_at) == (25, "2026-01-01T00:04:00Z")
    assert scene.status(seen(found, second), costs=costs(100), filling=filling, now=LATER) == second
    for partition in range(PARTITIONS):
        scene.finish(partition)
    last = scene.status(seen(found, second), costs=costs(100), now=LATER)
    assert last.progress is not None
    assert (last.progress.bytes_done, last.progress.percentage, last.progress.expected_at) == (total, 100, None)


def test_a_tables_limit_is_in_its_record() -> None:
    """The limit is in the record in bytes, because sidecars do not parse quantities; absent if the table has none."""
    assert desired_table(table(movement={"bytesPerSecond": "0.5Mi"})).record.bytes_per_second == 1 << 19
    assert desired_table(table()).record.bytes_per_second is None


def test_moves_are_kept_as_lines() -> None:
    """Moves are stored as text and parsed unchanged."""
    scene = Scene()
    scene.change(replicas=4)
    scene.drain("s0")
    scene.reconcile(desired_table(scene.table))
    plan = scene.snapshot().plan
    assert plan is not None
    moves = list(moves_of(plan))
    assert {move.source for move in moves} == {"s0"}
    moves.append(Move(partition=69, source="s1", target=None, reason="a: b -> c: d"))
    plan = msgspec.structs.replace(
        plan,
        slices=(
            msgspec.structs.replace(plan.slices[0], reasons={p: tuple(m) for p, m in format_moves(moves).items()}),
        ),
    )
    assert list(moves_of(plan)) == moves


# Previews


def test_a_preview_changes_nothing() -> None:
    """A preview lists moves with their reasons, and writes nothing."""
    scene = Scene()
    before = scene.metastore.revision
    preview = scene.preview(table(replicas=5))
    assert (preview.plan.n, len(preview.moves), preview.newest) == (2, 2 * PARTITIONS, None)
    assert {move.reason for move in preview.moves} == {"replicas 3 -> 5"}
    assert scene.metastore.revision == before
    assert scene.reconcile(msgspec.structs.replace(desired_table(table(replicas=5)), max_concurrent=None)).plan == 2
    after = scene.snapshot().plan
    assert after is not None
    assert after.head.hash == preview.plan.head.hash


def test_a_preview_of_the_current_plan() -> None:
    """A preview names the newest plan if it has the same targets."""
    scene = Scene()
    assert scene.preview(scene.table).newest is not None
    assert scene.preview(scene.table).moves == ()
    scene.table = table(replicas=5)
    scene.reconcile(msgspec.structs.replace(desired_table(scene.table), max_concurrent=20))
    preview = scene.preview(scene.table)
    assert preview.newest is not None
    assert (preview.newest.n, len(preview.moves)) == (2, 2 * 50)


def test_a_preview_of_an_impossible_spec() -> None:
    """A preview fails like the reconciliation."""
    scene = Scene()
    with pytest.raises(PlanningError, match="replicas 9 need 9 stores"):
        scene.preview(table(replicas=9))
    with pytest.raises(InvalidInputError, match="partitions: got 8; allowed: 70"):
        scene.preview(table(partitions=8))


# What if


def test_what_if_stores() -> None:
    """Replicas would move to added stores, and off a removed one."""
    scene = Scene()
    more = scene.preview(scene.table, WhatIf(add_stores=1))
    assert {move.target for move in more.moves} == {"s-0"}
    fewer = scene.preview(scene.table, WhatIf(remove_stores=("s1",)))
    assert {move.source for move in fewer.moves} == {"s1"}
    with pytest.raises(InvalidInputError, match=r"removeStores: got s9; allowed: existing stores \(s0, s1"):
        scene.preview(scene.table, WhatIf(remove_stores=("s9",)))


def test_added_stores_have_free_names_and_balanced_zones() -> None:
    """Added stores get free numbers and the zones with the fewest stores."""
    stores = StoresView.of(
        StoreView(name="s-0", zone="a"), StoreView(name="s-2", zone="b"), StoreView(name="s-3", zone="b")
    )
    found = what_if_stores(stores, WhatIf(add_stores=3), store_cluster="s")
    assert [(store.name, store.zone) for store in found.stores] == [
        ("s-0", "a"),
        ("s-1", "a"),
        ("s-2", "b"),
        ("s-3", "b"),
        ("s-4", "a"),
        ("s-5", "b"),
    ]


def test_what_if_table() -> None:
    """The numbers of a what-if are validated like a user's."""
    imagined = what_if_table(table(consensusSize=3), WhatIf(replicas=5, consensus_size=5))
    assert (imagined.spec.replicas, imagined.spec.voters) == (5, 5)
    with pytest.raises(InvalidInputError, match=r"with whatIf: spec.consensusSize: got 3; allowed: .* 1 to 2"):
        what_if_table(table(consensusSize=3), WhatIf(replicas=2))


def test_a_dry_run_shows_what_would_happen() -> None:
    """A dry run has totals, moves and a hash, but no number."""
    scene = Scene()
    found = RebalancePlan(
        metadata=owned_metadata(scene.table, "what-if"), spec=RebalancePlanSpec(table="orders", dry_run=True)
    )
    preview = scene.preview(table(replicas=5))
    status = dry_run_status(found, preview, table=scene.table, cluster=None, costs=costs(10), now=FIRST)
    assert (status.state, status.totals.moves, status.totals.bytes) == ("DryRun", 2 * PARTITIONS, 20 * PARTITIONS)
    assert conditions(status) == dict.fromkeys(("Ready", "Accepted"), ("True", "AsExpected"))
    failed = failed_plan_status(found, Problem(Reason.NO_FEASIBLE_PLACEMENT, "too many"), now=FIRST)
    assert (failed.state, message(failed, "Accepted")) == ("Failed", "too many")


# Refusals


SCHEMA = {"columns": [{"name": "id", "type": "int64", "nullable": False}, {"name": "x", "type": "string"}]}


def test_a_shrinking_schema_is_refused_by_the_record() -> None:
    """An invalid update is refused even if admission let it pass, and the record is unchanged."""
    scene = Scene(schema=SCHEMA | {"primaryKey": ["id"]})
    before = scene.metastore.revision
    with pytest.raises(InvalidInputError, match=r"spec.schema.columns\[1\]: column x must stay at position 1"):
        scene.reconcile(desired_table(table()))
    assert scene.metastore.revision == before
    added = {"columns": [*SCHEMA["columns"], {"name": "y", "type": "int64"}], "primaryKey": ["id"]}
    scene.reconcile(desired_table(table(schema=added)))


def test_an_unreadable_spec_refuses_nothing() -> None:
    """A spec that another release wrote is replaced."""
    scene = Scene()
    record = scene.snapshot().record
    assert record is not None
    scene.put(KEYS.table(TABLE), msgspec.structs.replace(record, spec=msgspec.Raw(b'{"shape":"new"}')))
    scene.reconcile(desired_table(scene.table))
    scene.put(KEYS.store("s9"), StoreRecord(volume="v9"))
    assert scene.reconcile(desired_table(scene.table)).plan == 2
