"""The verbs on a controller in virtual time: their output, effects and errors."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator, Awaitable
from pathlib import Path
from typing import Any

import pytest

from evenkeel.cli import local_commands, resource_commands, table_commands, watch_output
from evenkeel.cli.local_session import LocalSession
from evenkeel.cli.options import Output
from evenkeel.cli.resource_output import notes_of
from evenkeel.cli.validate_command import Checked, collect
from evenkeel.errors import InvalidInputError, PlanningError
from evenkeel.local.cluster_directory import Layout
from evenkeel.model.conditions import Reason, condition
from evenkeel.model.crd import PRESENTATIONS
from evenkeel.model.resource_loading import load_yaml
from evenkeel.model.storecluster import StoreCluster
from evenkeel.model.table import Table, TableStatus
from tests.controller.support import KEYS, Scene, store_cluster, table

EXAMPLES = Path(__file__).parents[2] / "examples"
TABLE, JSON = Output.TABLE, Output.JSON
Capture = pytest.CaptureFixture[str]


@pytest.fixture
async def scene() -> AsyncIterator[Scene]:
    async with Scene() as found:
        await found.make_table()
        yield found


@pytest.fixture(autouse=True)
def _never_sleep(monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in (
        (watch_output, "_REFRESH_SECONDS"),
        (resource_commands, "_POLL_SECONDS"),
        (table_commands, "_POLL_SECONDS"),
    ):
        monkeypatch.setattr(module, name, 0)


@pytest.fixture
def session(scene: Scene, tmp_path: Path) -> LocalSession:
    return LocalSession(Layout(tmp_path), scene.metastore)


async def until_done(scene: Scene, work: Awaitable[None]) -> None:
    """Advance time until a verb returns."""
    done = asyncio.ensure_future(work)
    while not done.done():
        await scene.pass_time(0.5)
    await done


def checked(*texts: str) -> Checked:
    return Checked(resources=[("test", 1, resource) for text in texts for resource in load_yaml(text)])


# Resources


async def test_apply_prints_results(session: LocalSession, capsys: Capture) -> None:
    """One line per resource, those that others refer to first; or the same as JSON."""
    given = checked(table("new"), table(replicas=2), store_cluster(4))
    await resource_commands.apply(session, given, TABLE)
    assert capsys.readouterr().out.splitlines() == [
        "storecluster.evenkeel.dev/main unchanged",
        "table.evenkeel.dev/new created",
        "table.evenkeel.dev/orders configured",
    ]
    await resource_commands.apply(session, given, JSON)
    assert {entry["result"] for entry in json.loads(capsys.readouterr().out)} == {"unchanged"}


async def test_get_lists(session: LocalSession, capsys: Capture) -> None:
    """Aligned columns, or documents as JSON."""
    await resource_commands.get(session, "tables", "", TABLE, watch=False)
    head, row = capsys.readouterr().out.splitlines()
    assert head.split()[:6] == ["NAME", "READY", "PARTITIONS", "REPLICAS", "MOVING", "LEADERLESS"]
    assert row.split()[:8] == ["orders", "True", "8", "3/3", "0", "0", "1", "100%"]
    assert head.index("READY") == row.index("True")
    await resource_commands.get(session, "tbl", "", JSON, watch=False)
    [document] = json.loads(capsys.readouterr().out)
    assert (document["kind"], document["status"]["partitions"]) == ("Table", 8)
    await resource_commands.get(session, "table/orders", "", JSON, watch=False)
    assert json.loads(capsys.readouterr().out) == document


async def test_get_of_one_shows_its_problems(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """Conditions that report a problem are printed below the row."""
    await scene.change(replicas=9)
    await scene.pass_time(3)
    await resource_commands.get(session, "table", "orders", TABLE, watch=False)
    assert "Degraded is True, NoFeasiblePlacement: table orders: replicas 9 need 9 stores" in capsys.readouterr().out


@pytest.mark.parametrize(
    "kind", ["sc", "storeclusters", "pa", "plans", "rebalanceplan", *(face.short for face in PRESENTATIONS.values())]
)
async def test_all_kinds_can_be_listed(session: LocalSession, capsys: Capture, kind: str) -> None:
    """Kinds have plural, singular and short names."""
    await resource_commands.get(session, kind, "", TABLE, watch=False)
    assert len(capsys.readouterr().out.splitlines()) == 2


@pytest.mark.parametrize(
    ("what", "name", "words"),
    [
        ("nonsense", "", r"kind: got 'nonsense'; allowed: storeclusters, tables"),
        ("table", "nope", r"Table: got 'nope'; allowed: one that exists \(orders\)"),
        ("table/", "", r"name: got 'table/'; allowed"),
        ("plan/orders-9", "", r"RebalancePlan: got 'orders-9'; allowed: one that exists \(orders-1\)"),
    ],
)
async def test_missing_resources(session: LocalSession, what: str, name: str, words: str) -> None:
    """The error lists the existing resources."""
    with pytest.raises(InvalidInputError, match=words):
        await resource_commands.get(session, what, name, TABLE, watch=False)


@pytest.mark.parametrize("output", [TABLE, JSON])
async def test_watching_prints_what_changes(
    scene: Scene, session: LocalSession, capsys: Capture, output: Output
) -> None:
    """In a pipe, a listing is printed when anything but an age changes; as JSON, one line each time."""
    lines = 2 if output is TABLE else 1
    watching = asyncio.ensure_future(resource_commands.get(session, "tables", "", output, watch=True))
    await scene.pass_time(60, step=1)
    assert len(capsys.readouterr().out.splitlines()) == lines
    await scene.delete(KEYS.leader(await scene.key(), 0))
    await scene.pass_time(5)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == lines
    assert "False" in shown[-1]
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)


async def test_status(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """It shows tables, StoreClusters and their problems."""
    await scene.go("main-3")
    await scene.pass_time(3)
    await resource_commands.status(session, TABLE, watch=False)
    shown = capsys.readouterr().out
    assert "storecluster main: 3/4 stores, 1 tables" in shown
    assert "storecluster.evenkeel.dev/main: Degraded is True, StoresLost: lost: main-3" in shown
    await resource_commands.status(session, JSON, watch=False)
    assert set(json.loads(capsys.readouterr().out)) == {"storeClusters", "tables"}


async def test_delete_waits_until_the_resource_is_gone(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """With --no-wait it returns at once."""
    await scene.change(undeleteFor="0s")
    await resource_commands.delete(session, "table", "orders", wait=False)
    assert "is being deleted" in capsys.readouterr().out
    await scene.pass_time(1)
    await scene.confirm_drops(*(f"main-{n}" for n in range(4)))
    await until_done(scene, resource_commands.delete(session, "table/orders", "", wait=True))
    assert await scene.resources.get(Table, "orders") is None


async def test_scale(scene: Scene, session: LocalSession) -> None:
    """It sets replicas of a table and stores of a StoreCluster; an error names the field."""
    await resource_commands.scale(session, "table/orders", replicas=4)
    await resource_commands.scale(session, "storecluster/main", replicas=5)
    assert ((await scene.table()).spec.replicas, (await scene.cluster()).spec.stores) == (4, 5)
    await scene.change(consensusSize=3)
    with pytest.raises(InvalidInputError, match=r"spec.consensusSize: got 3; allowed: an odd number from 1 to 2"):
        await resource_commands.scale(session, "orders", replicas=2)
    with pytest.raises(InvalidInputError, match="only tables and storeclusters can be scaled"):
        await resource_commands.scale(session, "plan/orders-1", replicas=2)


async def test_pause_and_resume(scene: Scene, session: LocalSession) -> None:
    """A paused table starts no move; `resume` does not override spec.paused."""
    await resource_commands.pause(session, "orders", resume=False)
    await resource_commands.scale(session, "orders", replicas=4)
    await scene.pass_time(3)
    assert await scene.arrive() == 0
    await resource_commands.pause(session, "orders", resume=True)
    await scene.pass_time(3)
    assert await scene.arrive() == 8
    await scene.change(paused=True)
    with pytest.raises(InvalidInputError, match=r"orders: spec.paused: got true; allowed: false; change it"):
        await resource_commands.pause(session, "orders", resume=True)
    with pytest.raises(InvalidInputError, match="only tables and storeclusters can be paused"):
        await resource_commands.pause(session, "pa/orders-0", resume=False)


async def test_wait(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """It waits until a condition is True for the current spec; a timeout reports why it is not."""
    await resource_commands.wait_for(session, "table/orders", "Ready", within=5)
    assert capsys.readouterr().out == "table.evenkeel.dev/orders is Ready\n"
    await resource_commands.scale(session, "orders", replicas=9)
    with pytest.raises(InvalidInputError, match=r"orders: Balanced is not True after 0 s"):
        await resource_commands.wait_for(session, "orders", "Balanced", within=0)
    await scene.pass_time(3)
    with pytest.raises(InvalidInputError, match=r"is not True after 0 s: .*replicas 9 need 9 stores"):
        await resource_commands.wait_for(session, "orders", "Balanced", within=0)
    with pytest.raises(InvalidInputError, match=r"--for: got 'Rady'; allowed: one of Ready, Available, Progressing"):
        await resource_commands.wait_for(session, "orders", "Rady", within=5)


# Tables


async def test_partitions(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """It shows stable, pending and planned stores and the reason; learners have a star."""
    await scene.change(replicas=4)
    await scene.pass_time(3)
    await table_commands.partitions(session, "orders", TABLE, watch=False)
    head, first, *rest = capsys.readouterr().out.splitlines()
    assert head.split() == ["PARTITION", "LEADER", "STAGE", "STABLE", "PENDING", "PLANNED", "PROGRESS", "REASON"]
    assert re.search(r"^0 +main-\d +CatchingUp .*main-\d\*.* - +0% +none -> main-\d: replicas 3 -> 4$", first)
    assert len(rest) == 7
    await table_commands.partitions(session, "table/orders", JSON, watch=False)
    assert [entry["partition"] for entry in json.loads(capsys.readouterr().out)] == list(range(8))
    with pytest.raises(InvalidInputError, match="table: got 'sc/main'; allowed: a table"):
        await table_commands.partitions(session, "sc/main", TABLE, watch=False)


async def test_plan_changes_nothing(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """It shows moves with sizes and reasons, and totals with a duration if rates or throttles are known."""
    await scene.report_sizes("main-0", await scene.key(), dict.fromkeys(range(8), 2048))
    revision = (await scene.metastore.range("/")).revision
    await table_commands.plan(session, "orders", {"replicas": 4}, TABLE)
    *moves, summary = capsys.readouterr().out.splitlines()
    assert moves[0].split() == ["PARTITION", "FROM", "TO", "SIZE", "WHY"]
    assert re.search(r"^0 +- +main-\d +2\.0 KiB +replicas 3 -> 4$", moves[1])
    assert summary == (
        "plan 2 would have 8 moves in 8 partitions, 0 leader changes, 16.0 KiB to copy; nothing was changed"
    )
    assert (await scene.metastore.range("/")).revision == revision
    await scene.change(movement={"bytesPerSecond": "1Ki"})
    await scene.pass_time(3)
    await table_commands.plan(session, "orders", {"replicas": 4}, TABLE)
    assert "16.0 KiB to copy in about 4s" in capsys.readouterr().out


async def test_plan_as_data(session: LocalSession, capsys: Capture) -> None:
    """JSON output, under the assumptions of `whatIf`."""
    await table_commands.plan(session, "orders", {"addStores": 1}, JSON)
    found = json.loads(capsys.readouterr().out)
    assert (found["number"], found["sameAs"], found["totals"]["moves"]) == (2, None, len(found["moves"]))
    assert {move["to"] for move in found["moves"]} == {"main-4"}
    await table_commands.plan(session, "orders", {"removeStores": ["main-1"]}, JSON)
    assert {move["from"] for move in json.loads(capsys.readouterr().out)["moves"]} == {"main-1"}


async def test_plan_without_changes(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """Nothing would move, or the plan that awaits approval is named."""
    await table_commands.plan(session, "orders", {}, TABLE)
    assert capsys.readouterr().out == "nothing would move\n"
    await scene.change(approval="Manual", replicas=4)
    await scene.pass_time(3)
    await table_commands.plan(session, "orders", {}, TABLE)
    assert capsys.readouterr().out.splitlines()[-1] == ("plan 2 awaits approval: run `evenkeel approve plan/orders-2`")


@pytest.mark.parametrize(
    ("imagine", "words"),
    [
        ({"replicas": 900}, r"spec.whatIf.replicas: got 900; allowed: an integer from 1 to 99"),
        ({"removeStores": ["main-9"]}, r"whatIf.removeStores: got main-9; allowed: existing stores \(main-0"),
        ({"consensusSize": 2}, r"spec.consensusSize: got 2; allowed: an odd number"),
    ],
)
async def test_plan_with_invalid_assumptions(session: LocalSession, imagine: dict[str, Any], words: str) -> None:
    """The error has field, value and remedy."""
    with pytest.raises(InvalidInputError, match=words):
        await table_commands.plan(session, "orders", imagine, TABLE)
    with pytest.raises(PlanningError, match="replicas 9 need 9 stores"):
        await table_commands.plan(session, "orders", {"replicas": 9}, TABLE)


async def test_approve(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """An approved plan starts; with a hash only if it matches; a plan cannot be approved twice."""
    await scene.change(approval="Manual")
    await scene.pass_time(3)
    await resource_commands.scale(session, "orders", replicas=4)
    await scene.pass_time(3)
    with pytest.raises(InvalidInputError, match=r"--hash: got abc; allowed: [0-9a-f]{32}, the hash of plan orders-2"):
        await table_commands.approve(session, "plan/orders-2", digest="abc")
    await table_commands.approve(session, "orders-2", digest="")
    assert "rebalanceplan.evenkeel.dev/orders-2 approved: 8 moves, hash " in capsys.readouterr().out
    await scene.pass_time(3)
    assert await scene.arrive() == 8
    await scene.pass_time(3)
    with pytest.raises(InvalidInputError, match="plan orders-2: its state is Done; only a plan in state"):
        await table_commands.approve(session, "plan/orders-2", digest="")
    with pytest.raises(InvalidInputError, match="plan: got 'table/orders'; allowed: a plan"):
        await table_commands.approve(session, "table/orders", digest="")


async def test_hand_over(scene: Scene, session: LocalSession) -> None:
    """The store leads the partition until --release; a store that is not a voter is refused."""
    status = (await scene.slice()).status
    assert status is not None
    [first, *_] = status.partitions
    voters = [peer.store for peer in first.stable]
    wanted = next(store for store in voters if store != first.leader)
    await table_commands.hand_over(session, "orders", 0, wanted, release=False)
    await scene.pass_time(1)
    assert await scene.obey() == 1
    await scene.pass_time(60, step=1)
    shown = (await scene.slice()).status
    assert shown is not None
    assert shown.partitions[0].leader == wanted
    await table_commands.hand_over(session, "orders", 0, "", release=True)
    await scene.pass_time(1)
    await scene.obey()
    await scene.pass_time(3)
    shown = (await scene.slice()).status
    assert shown is not None
    assert shown.partitions[0].leader == first.leader
    [stranger] = {f"main-{n}" for n in range(4)} - set(voters)
    with pytest.raises(InvalidInputError, match=f"store: got '{stranger}'; allowed: a voter of partition 0"):
        await table_commands.hand_over(session, "orders", 0, stranger, release=False)
    with pytest.raises(InvalidInputError, match="partition: got 8; allowed: 0 to 7"):
        await table_commands.hand_over(session, "orders", 8, wanted, release=False)


async def test_explain(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """It shows the stores and moves of a partition in its recent plans, newest first."""
    await scene.change(replicas=4)
    await scene.pass_time(3)
    await scene.arrive()
    await scene.pass_time(3)
    await table_commands.explain(session, "orders", 2, TABLE)
    head, newest, oldest, now = capsys.readouterr().out.splitlines()
    assert head.split() == ["PLAN", "STORES", "WHY"]
    assert re.search(r"^2 .*none -> main-\d: replicas 3 -> 4$", newest)
    assert re.search(r"^1 .*partition 2 had no replica$", oldest)
    assert re.search(r"^now: stage Stable, leader main-\d$", now)
    await table_commands.explain(session, "orders", 2, JSON)
    assert [entry["plan"] for entry in json.loads(capsys.readouterr().out)["plans"]] == [2, 1]


# Stores


async def test_drain_and_undrain(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """`drain --wait` returns when the store is empty; after `undrain` replicas return."""

    async def empty() -> None:
        while await scene.arrive():
            await scene.pass_time(0.5)

    draining = asyncio.ensure_future(table_commands.drain(session, "main-1", undo=False, wait=True))
    while not draining.done():
        await scene.pass_time(1)
        await empty()
    assert capsys.readouterr().out.splitlines() == ["store main-1 draining", "store main-1 drained"]
    await table_commands.drain(session, "main-1", undo=True, wait=False)
    await scene.pass_time(3)
    assert await scene.arrive() > 0


async def test_a_blocked_drain_prints_the_reason(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """`drain --wait` prints once that there is no feasible placement."""
    await scene.change(replicas=4)
    await scene.pass_time(3)
    while await scene.arrive():
        await scene.pass_time(1)
    draining = asyncio.ensure_future(table_commands.drain(session, "main-1", undo=False, wait=True))
    for _ in range(60):
        await scene.pass_time(0.5)
    draining.cancel()
    first, second = capsys.readouterr().out.splitlines()
    assert first == "store main-1 draining"
    assert second.startswith("blocked: ")
    assert "replicas 4 need 4 stores" in second


@pytest.mark.parametrize("store", ["main-4", "main", "main-x", "other-0", "", "main--1", "main-00", "main-٣"])
async def test_a_store_that_does_not_exist(session: LocalSession, store: str) -> None:
    """The error names the existing stores."""
    with pytest.raises(InvalidInputError, match=rf"store: got '{store}'; allowed: main-0 to main-3"):
        await table_commands.drain(session, store, undo=False, wait=False)


async def test_local_up_changes_the_throttle(session: LocalSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """`local up` updates the throttle of an existing cluster, and refuses an invalid one."""

    async def up(*_: object) -> None:
        pass

    monkeypatch.setattr(local_commands, "_until_up", up)
    with pytest.raises(InvalidInputError, match=r"bytesPerSecond: got .*foo"):
        await local_commands._make_stores(session, name="main", stores=None, throttle="foo")
    await local_commands._make_stores(session, name="main", stores=None, throttle="20Mi")
    throttles = (await session.resources.need(StoreCluster, "main")).spec.throttles
    assert throttles.bytes_per_second is not None
    assert throttles.bytes_per_second.units == 20 << 20


async def test_client_endpoints(session: LocalSession) -> None:
    """An error reports that no store accepts clients."""
    with pytest.raises(InvalidInputError, match="StoreCluster main: no store accepts clients"):
        await session.endpoints("main")
    with pytest.raises(InvalidInputError, match="StoreCluster: got 'nope'"):
        await session.endpoints("nope")


async def test_examples_can_be_applied(tmp_path: Path) -> None:
    """All examples can be applied, and the tables of `main` without a user-defined class are placed."""
    async with Scene(stores=3) as scene:
        await resource_commands.apply(LocalSession(Layout(tmp_path), scene.metastore), collect([EXAMPLES]), TABLE)
        await scene.pass_time(5)
        for name in ("orders", "ledger"):
            assert (await scene.conditions(name))["Degraded"] == ("False", "AsExpected")
        assert (await scene.plan("orders-what-if")).status is not None


async def test_apply_continues_after_an_error(session: LocalSession, capsys: Capture) -> None:
    """Refused resources are reported together at the end; the others are applied."""
    given = checked(table(partitions=9), table("new"), table("other").replace("main", "nowhere"))
    with pytest.raises(InvalidInputError) as refused:
        await resource_commands.apply(session, given, TABLE)
    assert capsys.readouterr().out == "table.evenkeel.dev/new created\n"
    assert "spec.partitions: got 9" in str(refused.value)
    assert "spec.storeCluster: got 'nowhere'" in str(refused.value)


async def test_results_as_json(scene: Scene, session: LocalSession, capsys: Capture) -> None:
    """Verbs that change something print one JSON object."""
    await resource_commands.pause(session, "orders", JSON, resume=False)
    assert json.loads(capsys.readouterr().out)["result"] == "paused"
    await resource_commands.pause(session, "orders", JSON, resume=True)
    assert json.loads(capsys.readouterr().out)["result"] == "resumed"
    await resource_commands.scale(session, "orders", JSON, replicas=2)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["kind"], printed["name"], printed["result"], printed["replicas"]) == (
        "Table",
        "orders",
        "scaled",
        2,
    )
    assert printed["message"] == "table.evenkeel.dev/orders scaled"
    await scene.pass_time(5)
    await resource_commands.wait_for(session, "orders", "Ready", JSON, within=5)
    assert json.loads(capsys.readouterr().out)["result"] == "Ready"
    await table_commands.drain(session, "main-1", JSON, undo=False, wait=False)
    assert json.loads(capsys.readouterr().out)["result"] == "is being emptied"
    await table_commands.drain(session, "main-1", JSON, undo=True, wait=False)
    assert json.loads(capsys.readouterr().out)["store"] == "main-1"
    await resource_commands.delete(session, "table", "orders", JSON, wait=False)
    assert json.loads(capsys.readouterr().out)["result"] == "is being deleted"


def test_tracebacks_are_shortened() -> None:
    """The error of a user-defined class is shown in one line that says where the traceback is."""
    [found] = load_yaml(table())
    message = "class a:B raised: KeyError: 1; its traceback:\nTraceback (most recent call last):\n  File ..."
    entry = condition("Degraded", True, Reason.REBALANCER_FAILED, message, now="2026-01-01T00:00:00Z", generation=1)
    [note] = notes_of(found.model_copy(update={"status": TableStatus(conditions=(entry,))}))
    assert note.endswith("class a:B raised: KeyError: 1; its traceback in `evenkeel get table/orders -o json`")
