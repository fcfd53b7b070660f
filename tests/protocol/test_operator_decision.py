"""The operator's decision: every case of the table, checked by the keys it writes."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from evenkeel.metastore.metastore_api import Delete, Put, Txn
from evenkeel.protocol.operator_decision import Case, Decision, retarget
from evenkeel.protocol.partition_view import PartitionView, previous
from evenkeel.protocol.records import Peer, Retarget, Stable, encode
from tests.protocol.support import PARTITION, peers, put, queue, read, remove, shown, shown_queue, stored, targets

PLAN = 5
MODES = {"A": Retarget.ADJUST, "C": Retarget.CANCEL, "Q": Retarget.QUEUE}


def decide(
    view: PartitionView, target: str, *, mode: Retarget = Retarget.ADJUST, gone: str = "", plan: int = PLAN
) -> Decision:
    """Return the decision on a target, with these replicas lost for good."""
    lost = {peer.id for peer in peers(gone)}

    def is_gone(peer: Peer) -> bool:
        return peer.id in lost

    return retarget(view, targets(target), keys=PARTITION, plan=plan, mode=mode, gone=is_gone)


class Row(NamedTuple):
    """The present keys, the target, and the expected result."""

    modes: str
    stable: str
    pending: str | None
    planned: str | None
    locked: bool
    gone: str
    target: str
    case: Case
    pending_after: str | None
    planned_after: str | None


def row(
    modes: str,
    stable: str,
    target: str,
    case: Case,
    *,
    pending: str | None = None,
    planned: str | None = None,
    locked: bool = False,
    gone: str = "",
    then: str | None = None,
    then_planned: str | None = None,
) -> Row:
    return Row(modes, stable, pending, planned, locked, gone, target, case, then, then_planned)


MOVE = "a1 b1 c2"
"""The change in progress in most rows: c joins `a1 b1`."""

TABLE = [
    # pending absent, stable == target
    row("ACQ", "a1 b1 c1", "a b c", Case.REACHED),
    row("ACQ", "a1 b1 c1", "c a b", Case.REACHED),
    row("ACQ", "a1 b1*", "b* a", Case.REACHED),
    row("ACQ", "a1 b1", "a b", Case.REACHED, planned="a1 c3"),
    # pending absent, stable != target
    row("ACQ", "a1 b1 c1", "a b d", Case.STARTED, then="a1 b1 d5"),
    row("ACQ", "a1 b1 c1", "a b c*", Case.STARTED, then="a1 b1 c1*"),
    row("ACQ", "a1", "a b c", Case.STARTED, then="a1 b5* | a1 b5 c5"),
    row("ACQ", "a1 b1 c1", "a b c@2", Case.STARTED, then="a1 b1 c5@2"),
    row("ACQ", "a1 b1 c1", "a b d", Case.STARTED, planned="a1 c3", then="a1 b1 d5"),
    # pending present, last(pending) == target
    row("ACQ", "a1 b1", "a b c", Case.UNDER_WAY, pending=MOVE, then=MOVE),
    row("ACQ", "a1 b1", "c b a", Case.UNDER_WAY, pending=MOVE, planned="a1 b1", then=MOVE),
    row("ACQ", "a1 b1", "a b c", Case.UNDER_WAY, pending=MOVE, planned="a1", locked=True, then=MOVE),
    row("ACQ", "a1", "a b c", Case.UNDER_WAY, pending="a1 b2* | a1 b2 c2", then="a1 b2* | a1 b2 c2"),
    row("ACQ", "a1 b1", "a b c", Case.UNDER_WAY, pending=MOVE, gone="c2", then=MOVE),
    # the head of a queue is not where it leads
    row("A", "a1", "a b*", Case.ADJUSTED, pending="a1 b2* | a1 b2", then="a1 b2*"),
    row("CQ", "a1", "a b*", Case.PLANNED, pending="a1 b2* | a1 b2", then="a1 b2* | a1 b2", then_planned="a1 b2*"),
    # pending present, another target, lock absent
    row("A", "a1 b1 c1", "a b e", Case.ADJUSTED, pending="a1 b1 d2", then="a1 b1 e5"),
    row("A", "a1 b1 c1", "a b e", Case.ADJUSTED, pending="a1 b1 d2", planned="a1 b1 f3", then="a1 b1 e5"),
    row("CQ", "a1 b1 c1", "a b e", Case.PLANNED, pending="a1 b1 d2", then="a1 b1 d2", then_planned="a1 b1 e5"),
    row(
        "CQ", "a1 b1 c1", "a b e", Case.PLANNED,
        pending="a1 b1 d2", planned="a1 b1 f3", then="a1 b1 d2", then_planned="a1 b1 e5",
    ),
    # away and back: the target is stable again
    row("A", "a1 b1", "a b", Case.RETURNED, pending=MOVE),
    row("A", "a1 b1", "b a", Case.RETURNED, pending=MOVE, planned="a1 d3"),
    row("CQ", "a1 b1", "a b", Case.PLANNED, pending=MOVE, then=MOVE, then_planned="a1 b1"),
    row("CQ", "a1 b1", "a b", Case.PLANNED, pending="a1 c2", then="a1 c2", then_planned="a1 b5"),
    # the lock freezes pending in every mode
    row("ACQ", "a1 b1", "a b", Case.PLANNED, pending=MOVE, locked=True, then=MOVE, then_planned="a1 b1"),
    row("ACQ", "a1 b1", "a b d", Case.PLANNED, pending=MOVE, locked=True, then=MOVE, then_planned="a1 b1 d5"),
    row(
        "ACQ", "a1 b1", "a b d", Case.PLANNED,
        pending=MOVE, locked=True, gone="c2", then=MOVE, then_planned="a1 b1 d5",
    ),
    # pending names a replica that cannot come back: a lost store, or a volume that was replaced
    row("ACQ", "a1 b1 c1", "a b e", Case.ADJUSTED, pending="a1 b1 d2", gone="d2", then="a1 b1 e5"),
    row("ACQ", "a1 b1 c1", "a b d@2", Case.ADJUSTED, pending="a1 b1 d2", gone="d2", then="a1 b1 d5@2"),
    row("ACQ", "a1 b1 c1", "a b c", Case.RETURNED, pending="a1 b1 d2", planned="a1 b1 e3", gone="d2"),
    row("ACQ", "a1", "a d", Case.ADJUSTED, pending="a1 b2* | a1 b2 c2", gone="c2", then="a1 d5* | a1 d5"),
    row(
        "CQ", "a1 b1 c1", "a b e", Case.PLANNED,
        pending="a1 b1 d2", gone="c1", then="a1 b1 d2", then_planned="a1 b1 e5",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("case", "mode"), [(case, mode) for case in TABLE for mode in case.modes])
def test_case(case: Row, mode: str) -> None:
    """The decision matches the table, and pending, planned and trigger are as the table says."""
    store = stored(
        stable=case.stable,
        pending=case.pending,
        planned=case.planned,
        trigger=1,
        lock_term=3 if case.locked else None,
    )
    before = read(store)
    decision = decide(before, case.target, mode=MODES[mode], gone=case.gone)
    assert decision.case is case.case
    assert store.txn(Txn(before.compares(PARTITION), decision.ops)).succeeded
    after = read(store)
    assert shown_queue(after.pending) == case.pending_after
    assert (None if after.planned is None else shown(after.planned.peers)) == case.planned_after
    assert after.trigger == PLAN
    assert (after.stable, after.stable_mod) == (before.stable, before.stable_mod)
    assert (after.lock, after.lock_mod) == (before.lock, before.lock_mod)


def test_the_table_has_every_line() -> None:
    """All cases that write are in the table, in every mode in which they can occur."""
    met = {(case.case, mode) for case in TABLE for mode in case.modes}
    writing = {Case.REACHED, Case.STARTED, Case.UNDER_WAY, Case.ADJUSTED, Case.RETURNED, Case.PLANNED}
    assert met == {(case, mode) for case in writing for mode in MODES}


@pytest.mark.parametrize("mode", Retarget)
@pytest.mark.parametrize(
    ("stable", "pending", "planned", "locked"),
    [
        ("a1 b1", None, None, False),
        ("a1 b1", MOVE, None, False),
        ("a1 b1", MOVE, None, True),
        ("a1 b1", MOVE, "a1 d3", True),
        (None, None, None, False),
    ],
)
@pytest.mark.parametrize("target", ["", "a*", "a* b* c*"])
def test_a_target_without_a_voter_is_refused(
    *, stable: str | None, pending: str | None, planned: str | None, locked: bool, target: str, mode: Retarget
) -> None:
    """An empty target, or one of learners only, writes nothing, not even the trigger."""
    store = stored(stable=stable, pending=pending, planned=planned, lock_term=1 if locked else None)
    assert decide(read(store), target, mode=mode) == Decision(Case.EMPTY_TARGET)


@pytest.mark.parametrize("mode", Retarget)
def test_without_stable_the_table_is_not_ready(mode: Retarget) -> None:
    """A partition without stable is not changed, even if it has a pending."""
    assert decide(read(stored()), "a b", mode=mode) == Decision(Case.NOT_READY)
    assert decide(read(stored(pending=MOVE)), "a b", mode=mode, gone="c2") == Decision(Case.NOT_READY)


@pytest.mark.parametrize(("trigger", "handled"), [(0, False), (PLAN - 1, False), (PLAN, True), (PLAN + 1, True)])
@pytest.mark.parametrize("case", TABLE)
def test_a_plan_is_handled_once(case: Row, trigger: int, handled: bool) -> None:
    """A trigger equal to or above the plan's number means that it was handled; nothing is written."""
    store = stored(stable=case.stable, pending=case.pending, trigger=trigger, lock_term=3 if case.locked else None)
    decision = decide(read(store), case.target, gone=case.gone)
    assert (decision == Decision(Case.HANDLED)) == handled


@pytest.mark.parametrize(
    ("mode", "trigger", "planned", "locked", "gone", "case"),
    [
        (Retarget.QUEUE, PLAN, "a1 b1 e5", False, "d2", Case.ADJUSTED),
        (Retarget.QUEUE, PLAN, "a1 b1 e5", True, "d2", Case.HANDLED),
        (Retarget.QUEUE, PLAN, "a1 b1 e5", False, "", Case.HANDLED),
        (Retarget.QUEUE, PLAN, None, False, "d2", Case.HANDLED),
        (Retarget.QUEUE, PLAN + 1, "a1 b1 e5", False, "d2", Case.HANDLED),
        (Retarget.ADJUST, PLAN, "a1 b1 e5", False, "d2", Case.HANDLED),
        (Retarget.CANCEL, PLAN, "a1 b1 e5", False, "d2", Case.HANDLED),
    ],
)
def test_a_queued_target_does_not_wait_for_lost_replicas(
    *, mode: Retarget, trigger: int, planned: str | None, locked: bool, gone: str, case: Case
) -> None:
    """If no leader would promote planned, and pending waits for a lost replica, the same plan replaces pending."""
    store = stored(
        stable="a1 b1 c1", pending="a1 b1 d2", planned=planned, trigger=trigger, lock_term=3 if locked else None
    )
    view = read(store)
    decision = decide(view, "a b e", mode=mode, gone=gone)
    assert decision.case is case
    if case is Case.ADJUSTED:
        store.txn(Txn(view.compares(PARTITION), decision.ops))
        assert shown_queue(read(store).pending) == "a1 b1 e5"
        assert read(store).planned is None


@pytest.mark.parametrize(
    ("stable", "pending", "locked", "target", "written"),
    [
        ("a1 b1", None, False, "a b c", "a1 b1 c5"),
        ("a1 b1", "a1 b1 c2", False, "a c", "a1 b1 c2* | a1 c2"),
        ("a1 b1", "a1 b1 c2", False, "a b c* d", "a1 b1 c2* d5"),
        ("a1", "a1 b2* | a1 b2 c2", False, "a c", "a1 c2* | a1 c2"),
        ("a1 b1", "a1 c2", False, "a b d", "a1 b1 d5"),
    ],
)
def test_pending_keeps_the_ids_of_stable_and_pending(
    stable: str, pending: str | None, locked: bool, target: str, written: str
) -> None:
    """Replicas of stable, or of any step of pending, keep their ids."""
    store = stored(stable=stable, pending=pending, lock_term=3 if locked else None)
    decision = decide(read(store), target)
    assert decision.ops[0] == Put(PARTITION.pending, encode(queue(written)))


def test_stable_comes_before_pending() -> None:
    """If stable and pending have different ids for a replica, stable's id is used."""
    view = read(stored(stable="a1 b1", pending="a1 b3 c3"))
    assert decide(view, "a b d").ops[0] == Put(PARTITION.pending, encode(queue("a1 b1 d5")))


@pytest.mark.parametrize(
    ("stable", "pending", "target", "written"),
    [
        ("a1 b1", "a1 b1 c2", "a c", "a1 c2"),
        ("a1 b1", "a1 c2", "a b", "a1 b5"),
        ("a1", "a1 b2* | a1 b2 c2", "a b c d*", "a1 b2 c2 d5*"),
        ("a1 b1", "a1 b1 c2* | a1 c2", "b c", "b5 c2"),
    ],
)
def test_planned_keeps_only_the_ids_of_where_pending_leads(
    stable: str, pending: str, target: str, written: str
) -> None:
    """A replica that pending removes gets a new id in planned, because it will be deleted first."""
    view = read(stored(stable=stable, pending=pending, lock_term=1))
    planned = Put(PARTITION.planned, encode({"peers": peers(written)}))
    assert decide(view, target).ops[0] == planned


def test_planned_ids_of_an_earlier_plan_are_forgotten() -> None:
    """A replica that was only in planned was never started, so a new plan assigns its own number."""
    view = read(stored(stable="a1 b1", pending=MOVE, planned="a1 d3", lock_term=1))
    assert decide(view, "a d").ops[0] == Put(PARTITION.planned, encode({"peers": peers("a1 d5")}))


@pytest.mark.parametrize("name", ["stable", "pending", "planned", "trigger", "lock"])
@pytest.mark.parametrize("change", ["rewritten", "removed"])
def test_a_decision_on_stale_keys_fails(name: str, change: str) -> None:
    """If any of the five keys is written after the read, even with the same value, the write fails."""
    store = stored(stable="a1 b1", pending=MOVE, planned="a1 d3", trigger=1, lock_term=1)
    view = read(store)
    decision = decide(view, "a b e")
    key = getattr(PARTITION, name)
    kv = store.get(key)
    assert kv is not None
    store.txn(Txn(success=(Delete(key) if change == "removed" else Put(key, kv.value),)))
    before = store.revision
    assert not store.txn(Txn(view.compares(PARTITION), decision.ops)).succeeded
    assert store.revision == before


def test_a_new_key_is_a_change() -> None:
    """A key that was absent must still be absent."""
    store = stored(stable="a1 b1")
    view = read(store)
    put(store, PARTITION.pending, queue(MOVE))
    assert not store.txn(Txn(view.compares(PARTITION), decide(view, "a b d").ops)).succeeded
    remove(store, PARTITION.pending)
    assert store.txn(Txn(view.compares(PARTITION), decide(view, "a b d").ops)).succeeded


@pytest.mark.parametrize(
    ("stable", "pending", "planned", "expected"),
    [
        (None, None, None, ""),
        ("a1 b1", None, None, "a1 b1"),
        ("a1 b1", "a1 b1 c2* | a1 c2", None, "a1 c2"),
        ("a1 b1", "a1 b1 c2", "a1 d3", "a1 d3"),
    ],
)
def test_previous(stable: str | None, pending: str | None, planned: str | None, expected: str) -> None:
    """A new plan starts from the newest target: planned, else the end of pending, else stable."""
    assert shown(previous(read(stored(stable=stable, pending=pending, planned=planned)))) == expected


def test_reading() -> None:
    """A view has every key with its mod revision; absent keys are None and 0."""
    assert read(stored()) == PartitionView()
    view = read(stored(stable="a1", pending="a1 b2", planned="a1", trigger=4, lock_term=2, genesis=True))
    assert view.stable == Stable(peers("a1"), genesis=True)
    assert view.lock is not None
    assert view.lock.token == view.pending_mod
    assert view.trigger == 4
    assert view.mods() == (2, 3, 5, 6, 4)
    assert shown(view.peers()) == "a1 a1 b2 a1"
