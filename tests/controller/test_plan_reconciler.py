"""RebalancePlans and PartitionAssignments from the user's view."""

from __future__ import annotations

from typing import Any

import pytest

from evenkeel.model.rebalanceplan import RebalancePlan, RebalancePlanStatus
from evenkeel.model.table import Table
from evenkeel.reconcile.plan_status import KEPT_PLANS
from tests.controller.support import Scene, conditions_of, table

MANUAL = ", approval: Manual"


async def plan(scene: Scene, name: str) -> RebalancePlanStatus:
    status = (await scene.plan(name)).status
    assert status is not None
    return status


async def approve(scene: Scene, name: str, digest: str) -> None:
    def edit(document: dict[str, Any]) -> None:
        document["spec"]["approvedHash"] = digest

    await scene.resources.change(RebalancePlan, name, edit)


async def test_each_plan_is_an_object(scene: Scene) -> None:
    """Every plan has an object with its number and current state."""
    await scene.make_table()
    first = await plan(scene, "orders-1")
    assert (first.state, first.totals.partitions) == ("Done", 8)
    await scene.change(replicas=4)
    await scene.pass_time(3)
    second = await plan(scene, "orders-2")
    assert (second.state, second.totals.moves, len(second.moves)) == ("Running", 8, 8)
    assert second.moves[0].reason == "replicas 3 -> 4"
    assert (await plan(scene, "orders-1")).state == "Done"
    await scene.arrive()
    await scene.pass_time(3)
    assert (await plan(scene, "orders-2")).state == "Done"


async def test_only_the_last_few_are_kept(scene: Scene) -> None:
    """RebalancePlans of old plans are removed, users' dry runs are not."""
    await scene.make_table()
    await scene.apply(
        "apiVersion: evenkeel.dev/v1alpha1\nkind: RebalancePlan\nmetadata: {name: mine}\n"
        "spec: {table: orders, dryRun: true}\n"
    )
    for number in range(2, 10):
        await scene.change(replicas=4 if number % 2 == 0 else 3)
        await scene.pass_time(1)
        await scene.arrive()
    await scene.pass_time(3)
    assert await scene.plan_names() == ["mine", *(f"orders-{n}" for n in range(10 - KEPT_PLANS, 10))]
    assert (await plan(scene, "orders-8")).state in ("Done", "Superseded")


async def test_a_manual_plan_waits_for_the_approval_of_its_hash(scene: Scene) -> None:
    """Nothing moves before the approval, a wrong hash is refused with the right one, and the plan is carried out."""
    await scene.make_table(table(more=MANUAL))
    await scene.change(replicas=4)
    await scene.pass_time(3)
    waits = await plan(scene, "orders-2")
    assert (waits.state, conditions_of(waits)["Approved"]) == ("AwaitingApproval", ("False", "AwaitingApproval"))
    assert (await scene.conditions())["Progressing"] == ("False", "AwaitingApproval")
    assert await scene.arrive() == 0
    await approve(scene, "orders-2", waits.hash)
    await scene.pass_time(3)
    runs = await plan(scene, "orders-2")
    assert (runs.state, conditions_of(runs)["Approved"], runs.hash) == ("Running", ("True", "Approved"), waits.hash)
    assert await scene.arrive() == 8
    await scene.pass_time(3)
    assert (await plan(scene, "orders-2")).state == "Done"


async def test_an_approval_of_a_plan_that_was_superseded_starts_nothing(scene: Scene) -> None:
    """The newer plan needs its own approval."""
    await scene.make_table(table(more=MANUAL))
    await scene.change(replicas=4)
    await scene.pass_time(3)
    first = await plan(scene, "orders-2")
    await scene.change(replicas=2)
    await scene.pass_time(3)
    await approve(scene, "orders-2", first.hash)
    await scene.pass_time(3)
    assert (await plan(scene, "orders-2")).state == "Superseded"
    assert (await plan(scene, "orders-3")).state == "AwaitingApproval"
    assert await scene.arrive() == 0


async def test_a_wrong_hash_is_named(scene: Scene) -> None:
    """A wrong approval starts nothing."""
    await scene.make_table(table(more=MANUAL))
    await scene.change(replicas=4)
    await scene.pass_time(3)
    await approve(scene, "orders-2", "0" * 32)
    await scene.pass_time(3)
    assert conditions_of(await plan(scene, "orders-2"))["Approved"] == ("False", "SpecInvalid")
    assert await scene.arrive() == 0


async def test_dry_runs_are_answered_once(scene: Scene) -> None:
    """A dry run reports moves, and bytes and time if they are known, and changes nothing."""
    await scene.make_table(table(more=", movement: {bytesPerSecond: 1k}"))
    await scene.report_sizes("main-0", await scene.key(), dict.fromkeys(range(8), 1000))
    await scene.apply(
        "apiVersion: evenkeel.dev/v1alpha1\nkind: RebalancePlan\nmetadata: {name: what-if}\n"
        "spec: {table: orders, dryRun: true, whatIf: {replicas: 5, addStores: 1}}\n"
    )
    await scene.pass_time(3)
    status = await plan(scene, "what-if")
    assert (status.state, status.totals.moves, status.totals.bytes, status.totals.seconds) == ("DryRun", 16, 16000, 8)
    assert {move.target for move in status.moves} >= {"main-4"}
    assert (await scene.view(0)).pending is None
    await scene.change(replicas=4)
    await scene.pass_time(3)
    assert await plan(scene, "what-if") == status


@pytest.mark.parametrize(
    ("what_if", "reason", "words"),
    [
        ("replicas: 9", "NoFeasiblePlacement", "replicas 9 need 9 stores but only 4 are usable"),
        ("removeStores: [main-7]", "SpecInvalid", "got main-7; allowed: existing stores (main-0, main-1"),
        ("consensusSize: 5", "SpecInvalid", "spec.consensusSize: got 5"),
    ],
)
async def test_impossible_dry_runs_fail(scene: Scene, what_if: str, reason: str, words: str) -> None:
    """A dry run fails for the same reason as the change itself."""
    await scene.make_table()
    await scene.apply(
        "apiVersion: evenkeel.dev/v1alpha1\nkind: RebalancePlan\nmetadata: {name: what-if}\n"
        f"spec: {{table: orders, dryRun: true, whatIf: {{{what_if}}}}}\n"
    )
    await scene.pass_time(3)
    status = await plan(scene, "what-if")
    assert (status.state, conditions_of(status)["Accepted"]) == ("Failed", ("False", reason))
    assert words in status.conditions[0].message


async def test_dry_runs_of_a_missing_table_report_that_and_wait_for_it(scene: Scene) -> None:
    """The name may be wrong, or the table may be created later."""
    await scene.apply(
        "apiVersion: evenkeel.dev/v1alpha1\nkind: RebalancePlan\nmetadata: {name: what-if}\n"
        "spec: {table: orders, dryRun: true, whatIf: {replicas: 5, addStores: 1}}\n"
    )
    await scene.pass_time(3)
    status = await plan(scene, "what-if")
    assert (status.state, conditions_of(status)["Accepted"]) == (None, ("False", "TableMissing"))
    assert "Table orders does not exist; create it" in status.conditions[0].message
    await scene.make_table()
    await scene.pass_time(3)
    status = await plan(scene, "what-if")
    assert (status.state, conditions_of(status)["Accepted"]) == ("DryRun", ("True", "AsExpected"))


def assignment(stores: str, partition: int = 0, leader: str = "") -> str:
    led = f", leader: {leader}" if leader else ""
    return (
        "apiVersion: evenkeel.dev/v1alpha1\nkind: PartitionAssignment\nmetadata: {name: orders-0}\n"
        f"spec: {{table: orders, from: 0, partitions: [{{partition: {partition}, stores: [{stores}]{led}}}]}}\n"
    )


async def test_a_users_assignment_is_reported_as_ignored_in_full_auto(scene: Scene) -> None:
    """An ignored assignment moves nothing; the condition goes with it."""
    await scene.make_table()
    await scene.apply(assignment("main-1, main-2, main-3"))
    await scene.pass_time(3)
    status = (await scene.slice()).status
    assert status is not None
    assert conditions_of(status) == dict.fromkeys(("Ready", "Accepted"), ("False", "SpecIgnored"))
    assert "mode FullAuto" in status.conditions[0].message
    assert await scene.arrive() == 0
    await scene.resources.change(
        type(await scene.slice()), "orders-0", lambda document: document["spec"].update(partitions=[])
    )
    await scene.pass_time(3)
    status = (await scene.slice()).status
    assert status is not None
    assert conditions_of(status) == {"Ready": ("True", "AsExpected")}


@pytest.mark.parametrize("mode", ["SemiAuto", "Customized"])
async def test_a_users_assignment_counts_where_users_choose(scene: Scene, mode: str) -> None:
    """Its partition moves to the chosen stores and leader; the others stay."""
    await scene.make_table()
    before = [(await scene.view(p)).stable for p in range(8)]
    await scene.apply(assignment("main-3, main-1, main-2", leader="main-1"))
    await scene.change(rebalancer={"mode": mode})
    await scene.pass_time(3)
    await scene.arrive()
    await scene.pass_time(3)
    await scene.obey()
    await scene.pass_time(3)
    after = [(await scene.view(p)).stable for p in range(8)]
    assert after[1:] == before[1:]
    status = (await scene.slice()).status
    assert status is not None
    assert conditions_of(status) == dict.fromkeys(("Ready", "Accepted"), ("True", "AsExpected"))
    assert {peer.store for peer in status.partitions[0].stable} == {"main-1", "main-2", "main-3"}
    assert status.partitions[0].leader == "main-1"


async def test_an_impossible_assignment_reports_why(scene: Scene) -> None:
    """Both the table and the assignment report the problem."""
    await scene.make_table()
    await scene.change(rebalancer={"mode": "Customized"})
    await scene.pass_time(3)
    await scene.apply(assignment("main-1, main-2, main-9"))
    await scene.pass_time(3)
    status = (await scene.slice()).status
    assert status is not None
    assert conditions_of(status) == dict.fromkeys(("Ready", "Accepted"), ("False", "RebalancerFailed"))
    assert "store main-9, which does not exist" in status.conditions[0].message
    assert (await scene.conditions())["Degraded"] == ("True", "RebalancerFailed")


async def test_what_is_made_for_a_table_can_be_found_by_its_label(scene: Scene) -> None:
    """Plans and assignments have the table's name as a label."""
    await scene.make_table()
    found = [await scene.plan("orders-1"), await scene.slice()]
    assert {one.metadata.labels["evenkeel.dev/table"] for one in found} == {"orders"}
    assert isinstance(await scene.table(), Table)
