"""The leader's next action: each stage, and what blocks it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from evenkeel.metastore.metastore_api import Compare
from evenkeel.metastore.mvcc import Mvcc
from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.leader_decision import Action, GroupView, Propose, Transfer, Write, next_action, ready_to_change
from evenkeel.protocol.records import ReplicaId, Retarget, TableRecord, TableState
from tests.protocol.support import KEYS, PARTITION, TABLE, holds, peers, put, queue, read, shown, stored

TERM = 3


def ids(text: str) -> frozenset[ReplicaId]:
    return frozenset(peer.id for peer in peers(text))


def group(
    applied: str,
    *,
    outgoing: str = "",
    staged: str = "",
    token: int = 0,
    me: str = "a1",
    lag: str = "",
    silent: str = "",
    newest: Configuration | None = None,
    **known: bool | int,
) -> GroupView:
    """Return a leader's view of a healthy group, except for the given lagging and silent replicas."""
    configuration = Configuration(peers(applied), peers(outgoing), peers(staged), token)
    members = configuration.members()
    facts: dict[str, bool | int] = {"committed_in_term": True, "commit_known": True, "term": TERM} | known
    return GroupView(
        me=peers(me)[0].id,
        applied=configuration,
        newest=newest or configuration,
        caught_up=members - ids(lag),
        answering=members - ids(silent),
        **facts,  # type: ignore[arg-type]
    )


def decide(store: Mvcc, view: GroupView, *, mode: Retarget = Retarget.ADJUST) -> Action | None:
    table = Compare(KEYS.table(TABLE), "mod", "=", 0)
    return next_action(read(store), view, keys=PARTITION, mode=mode, table=table)


def line_of(action: Action | None) -> str | None:
    """Format an action as one line."""
    match action:
        case Write(what, _):
            return what
        case Propose(what, configuration):
            outgoing = f" from {shown(configuration.outgoing)}" if configuration.joint else ""
            staged = f" + {shown(configuration.staged)}" if configuration.staged else ""
            return f"{what} {shown(configuration.peers)}{outgoing}{staged}"
        case Transfer(to):
            return f"transfer {to[0]}{to[1]}"
    return None


# -- whole changes ----------------------------------------------------------------------------------------------------


class Obedient:
    """A group that applies every action of its leader at once."""

    def __init__(self, store: Mvcc, *, applied: str, leader: str) -> None:
        self.store = store
        self.table = holds(
            put(
                store,
                KEYS.table(TABLE),
                TableRecord(partitions=1, replicas=1, consensus_size=1, state=TableState.READY),
            )
        )
        self.configuration = Configuration(peers(applied))
        self.leader = leader
        self.lock_mod = 0

    def step(self, mode: Retarget) -> str | None:
        """Apply the next action and return it."""
        c = self.configuration
        view = group(
            shown(c.peers),
            outgoing=shown(c.outgoing),
            staged=shown(c.staged),
            token=c.token,
            me=self.leader,
            lock_mod=self.lock_mod,
        )
        action = next_action(read(self.store), view, keys=PARTITION, mode=mode, table=self.table)
        match action:
            case Write(what, txn):
                result = self.store.txn(txn)
                assert result.succeeded
                self.lock_mod = result.revision if what == "lock" else 0
            case Propose(_, configuration):
                self.configuration = configuration
            case Transfer(to):
                self.leader, self.lock_mod = f"{to[0]}{to[1]}", 0
        return line_of(action)


@pytest.mark.parametrize(
    ("leader", "stable", "pending", "expected"),
    [
        pytest.param(
            "a1", "a1 b1 c1", "a1 b1 d2",
            ["stage a1 b1 c1 + d2*", "lock", "final a1 b1 d2 from a1 b1 c1", "leave a1 b1 d2", "switch"],
            id="one voter replaced",
        ),
        pytest.param(
            "a1", "a1 b1 c1", "a1 b1",
            ["lock", "final a1 b1 from a1 b1 c1", "leave a1 b1", "switch"],
            id="one voter removed: nobody to fill",
        ),
        pytest.param(
            "a1", "a1", "a1 b2* c2*", ["stage a1 + b2* c2*", "lock", "final a1 b2* c2*", "switch"],
            id="learners added: never joint",
        ),
        pytest.param(
            "a1", "a1 b1*", "a1", ["lock", "final a1", "switch"],
            id="a learner removed: under the lock too",
        ),
        pytest.param(
            "a1", "a1 b1*", "a1 b1", ["lock", "final a1 b1 from a1", "leave a1 b1", "switch"],
            id="a learner promoted",
        ),
        pytest.param(
            "a1", "a1 b1", "a1 b1*", ["lock", "final a1 b1* from a1 b1", "leave a1 b1*", "switch"],
            id="a voter demoted",
        ),
        pytest.param(
            "c1", "a1 b1 c1", "a1 b1 d2",
            [
                "stage a1 b1 c1 + d2*", "transfer a1", "lock", "final a1 b1 d2 from a1 b1 c1", "leave a1 b1 d2",
                "switch",
            ],
            id="a leaving leader hands over before the lock",
        ),
        pytest.param(
            "b1", "a1 b1", "a1 b1*", ["transfer a1", "lock", "final a1 b1* from a1 b1", "leave a1 b1*", "switch"],
            id="a leader that becomes a learner leaves too",
        ),
        pytest.param(
            "a1", "a1", "a1 b2* | b2",
            [
                "stage a1 + b2*", "lock", "final a1 b2*", "switch",
                "lock", "final b2 from a1", "transfer b2", "leave b2", "switch",
            ],
            id="the only voter moves: it hands over inside joint and never leaves it itself",
        ),
        pytest.param(
            "a1", "a1", "a1 b2* | a1 b2 c2",
            [
                "stage a1 + b2*", "lock", "final a1 b2*", "switch",
                "stage a1 b2* + c2*", "lock", "final a1 b2 c2 from a1", "leave a1 b2 c2", "switch",
            ],
            id="two steps: each has its own lock, token and switch",
        ),
    ],
)  # fmt: skip
@pytest.mark.parametrize("mode", Retarget)
def test_whole_changes(leader: str, stable: str, pending: str, expected: list[str], mode: Retarget) -> None:
    """A change takes exactly these actions from pending to stable, and leaves no work and no keys behind."""
    store = stored(stable=stable, pending=pending, genesis=True)
    obedient = Obedient(store, applied=stable, leader=leader)
    seen = []
    while (action := obedient.step(mode)) is not None:
        seen.append(action)
        assert len(seen) <= len(expected)
    assert seen == expected
    after = read(store)
    assert after.stable is not None
    assert shown(after.stable.peers) == shown(obedient.configuration.peers) == shown(queue(pending).last)
    assert (after.pending, after.planned, after.lock) == (None, None, None)


def test_a_target_that_already_runs_gets_an_empty_final_entry() -> None:
    """If the group has the head's peers with another token, one entry sets the token, and the switch follows."""
    store = stored(stable="a1 b1", pending="a1 b1 c2")
    obedient = Obedient(store, applied="a1 b1 c2", leader="a1")
    assert [obedient.step(Retarget.ADJUST) for _ in range(4)] == ["lock", "final a1 b1 c2", "switch", None]
    assert obedient.configuration.token > 0
    stable = read(store).stable
    assert stable is not None
    assert shown(stable.peers) == "a1 b1 c2"


@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        (Retarget.ADJUST, ["promote", "stage a1 b1 c1 + e3*", "lock", "final a1 b1 e3 from a1 b1 c1"]),
        (Retarget.CANCEL, ["promote", "stage a1 b1 c1 + e3*", "lock", "final a1 b1 e3 from a1 b1 c1"]),
        (Retarget.QUEUE, ["lock", "final a1 b1 d2 from a1 b1 c1", "leave a1 b1 d2", "switch", "stage a1 b1 d2 + e3*"]),
    ],
)
def test_planned_during_catch_up(mode: Retarget, expected: list[str]) -> None:
    """Adjust and Cancel replace the change and its learner by planned; Queue completes the change first."""
    store = stored(stable="a1 b1 c1", pending="a1 b1 d2", planned="a1 b1 e3")
    obedient = Obedient(store, applied="a1 b1 c1", leader="a1")
    obedient.configuration = msgspec.structs.replace(obedient.configuration, staged=peers("d2*"))
    assert [obedient.step(mode) for _ in expected] == expected


def test_learners_of_both_targets_are_kept() -> None:
    """A new replica that is in both the old and the promoted target keeps its progress."""
    store = stored(stable="a1", pending="a1 d2* e2*", planned="a1 d2* f3*")
    obedient = Obedient(store, applied="a1", leader="a1")
    obedient.configuration = msgspec.structs.replace(obedient.configuration, staged=peers("d2* e2*"))
    assert [obedient.step(Retarget.CANCEL) for _ in range(2)] == ["promote", "stage a1 + d2* f3*"]


# -- single decisions -------------------------------------------------------------------------------------------------

MOVE = {"stable": "a1 b1 c1", "pending": "a1 b1 d2"}


def moving(*, lock_term: int | None = None, planned: str | None = None) -> Mvcc:
    return stored(stable=MOVE["stable"], pending=MOVE["pending"], planned=planned, lock_term=lock_term)


def filled(**known: bool | int | str) -> GroupView:
    """Return the group of `moving` with its new replica staged."""
    return group("a1 b1 c1", staged="d2*", **known)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("store", "view"),
    [
        (moving(), filled(committed_in_term=False)),
        (moving(), msgspec.structs.replace(filled(), newest=Configuration(peers("a1 b1 c1")))),
        (stored(pending="a1 b1 d2"), group("a1 b1 c1")),
        (stored(stable="a1 b1 c1"), group("a1 b1 c1")),
    ],
    ids=["nothing committed in its term", "an entry in progress", "pending without stable", "all done"],
)
@pytest.mark.parametrize("mode", Retarget)
def test_nothing_to_do(store: Mvcc, view: GroupView, mode: Retarget) -> None:
    """A leader waits while it has not committed in its term or lacks the keys it needs."""
    assert decide(store, view, mode=mode) is None


@pytest.mark.parametrize(
    ("store", "view", "expected"),
    [
        (moving(), group("a1 b1 c1"), "stage a1 b1 c1 + d2*"),
        (moving(), group("a1 b1 c1", staged="e3*"), "stage a1 b1 c1 + d2*"),
        (moving(), group("a1 b1 c1", staged="d1*"), "stage a1 b1 c1 + d2*"),
        (moving(), group("a1 b1 c1", staged="d2* e2*"), "stage a1 b1 c1 + d2*"),
        (stored(stable="a1 b1 c1"), group("a1 b1 c1", staged="d2*"), "stage a1 b1 c1"),
        (stored(stable="a1", pending="a1 c2"), group("a1 c2*"), "lock"),
    ],
)
def test_staging(store: Mvcc, view: GroupView, expected: str) -> None:
    """Exactly the new replicas of head(pending) are staged; without pending, none."""
    assert line_of(decide(store, view)) == expected


def seeding(view: GroupView, *, record: int = 9) -> Action | None:
    """Return what a leader does if a ready table, whose record has this revision, has no stable."""
    table = Compare(KEYS.table(TABLE), "mod", "=", record)
    return next_action(read(stored()), view, keys=PARTITION, mode=Retarget.ADJUST, table=table)


def applying(configuration: Configuration, **known: Any) -> GroupView:
    return msgspec.structs.replace(group("a1 b1 c1"), applied=configuration, newest=configuration, **known)


def test_a_lost_stable_is_published_after_an_entry_proves_who_leads() -> None:
    """The leader replaces the other metastore's token, unstages learners, and then records what raft runs."""
    members = peers("a1 b1 c1")
    foreign = Configuration(members, staged=peers("d7"), token=4711)
    assert seeding(applying(foreign)) == Propose("seed", Configuration(members, token=9))
    logged = Configuration(members, token=9)
    assert seeding(applying(logged, seeding=9, commit_known=False)) is None
    write = seeding(applying(logged, seeding=9))
    assert isinstance(write, Write)
    assert [op.key for op in write.txn.success] == [PARTITION.stable]
    assert {compare.key for compare in write.txn.compares} >= {PARTITION.stable, KEYS.table(TABLE)}


def test_an_equal_token_of_another_metastore_proves_nothing() -> None:
    """If the configuration already has this token from another metastore, two more entries are logged."""
    members = peers("a1 b1 c1")
    assert seeding(applying(Configuration(members, token=9))) == Propose("seed", Configuration(members))
    assert seeding(applying(Configuration(members))) == Propose("seed", Configuration(members, token=9))


def test_a_joint_group_whose_stable_is_lost_leaves_joint_first() -> None:
    """A joint configuration is left first, with or without a lock."""
    joint = Configuration(peers("a1 b1 d2"), outgoing=peers("a1 b1 c1"), token=4711)
    assert seeding(applying(joint)) == Propose("leave", Configuration(peers("a1 b1 d2"), token=4711))


def test_staging_keeps_the_token() -> None:
    """An entry that only stages learners keeps the token of the configuration before it."""
    action = decide(moving(), group("a1 b1 c1", token=1))
    assert isinstance(action, Propose)
    assert action.configuration.token == 1
    assert action.configuration.outgoing == ()


@pytest.mark.parametrize(
    "view",
    [
        filled(lag="d2"),
        filled(silent="d2"),
        filled(silent="b1 d2"),
        filled(lag="d2", silent="c1"),
    ],
)
@pytest.mark.parametrize(
    ("lock_term", "expected"), [(None, None), (TERM - 1, "unlock"), (TERM, "unlock"), (TERM + 1, None)]
)
def test_a_target_that_does_not_answer_is_not_locked(
    view: GroupView, lock_term: int | None, expected: str | None
) -> None:
    """Before the lock the leader waits; after it, it unlocks, unless the lock is of a later term."""
    assert line_of(decide(moving(lock_term=lock_term), view)) == expected


def test_the_target_is_checked_again_before_joint() -> None:
    """A leader with its own lock checks the target again before it logs the change."""
    store = moving(lock_term=TERM)
    own = read(store).lock_mod
    assert line_of(decide(store, filled(lock_mod=own))) == "final a1 b1 d2 from a1 b1 c1"
    assert line_of(decide(store, filled(lock_mod=own, silent="d2"))) == "unlock"


def test_no_unlock_while_a_lock_of_unknown_outcome_is_in_flight() -> None:
    """A leader does not delete a lock while the outcome of one of its lock transactions is unknown."""
    assert decide(moving(lock_term=TERM), filled(silent="d2", lock_outstanding=True)) is None


@pytest.mark.parametrize(
    ("lock_term", "own", "expected"),
    [
        (None, 0, "lock"),
        (TERM - 1, 0, "lock"),
        (TERM, 0, "lock"),
        (TERM, 1, "lock"),
        (TERM, None, "final a1 b1 d2 from a1 b1 c1"),
    ],
)
def test_the_change_is_logged_only_under_the_leaders_own_lock(
    lock_term: int | None, own: int | None, expected: str
) -> None:
    """A leader puts its own lock before it logs, over any other; it recognizes its own lock by its revision."""
    store = moving(lock_term=lock_term)
    lock_mod = read(store).lock_mod if own is None else own
    assert line_of(decide(store, filled(lock_mod=lock_mod))) == expected


def test_the_final_entry_carries_the_token() -> None:
    """The joint entry has pending's revision as its token, and the leave entry copies it."""
    store = moving(lock_term=TERM)
    final = decide(store, filled(lock_mod=read(store).lock_mod))
    assert isinstance(final, Propose)
    assert final.configuration.token == read(store).pending_mod
    joint = group("a1 b1 d2", outgoing="a1 b1 c1", token=final.configuration.token)
    leave = decide(store, joint)
    assert leave == Propose("leave", Configuration(peers("a1 b1 d2"), token=read(store).pending_mod))


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (group("a1 b1 d2", outgoing="a1 b1 c1", me="b1"), "leave a1 b1 d2"),
        (group("a1 b1 d2", outgoing="a1 b1 c1", me="d2"), "leave a1 b1 d2"),
        (group("a1 b1 d2", outgoing="a1 b1 c1", me="c1"), "transfer a1"),
        (group("a1 b1 d2", outgoing="a1 b1 c1", me="c1", lag="a1"), "transfer b1"),
        (group("a1 b1 d2", outgoing="a1 b1 c1", me="c1", silent="a1 b1"), "transfer d2"),
        (group("a1 b1* d2", outgoing="a1 b1 c1", me="b1", silent="a1"), "transfer d2"),
        (group("d2", outgoing="a1", me="a1", lag="d2"), None),
        (group("d2", outgoing="a1", me="a1", silent="d2"), None),
    ],
)
def test_inside_joint(view: GroupView, expected: str | None) -> None:
    """A staying voter leaves joint; an outgoing leader hands over to a staying voter that is caught up and answers."""
    assert line_of(decide(moving(lock_term=TERM), view)) == expected


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (filled(me="c1"), "transfer a1"),
        (filled(me="c1", lag="a1"), "transfer b1"),
        (filled(me="c1", silent="a1"), "transfer b1"),
        (filled(me="c1", lag="a1 b1"), "lock"),
        (filled(me="a1"), "lock"),
    ],
)
def test_hand_over_before_the_lock(view: GroupView, expected: str) -> None:
    """A leader that does not vote in the target hands over to a voter of both sets; if there is none, it continues."""
    assert line_of(decide(moving(), view)) == expected


def test_new_replicas_do_not_lead_before_joint() -> None:
    """Leadership is handed over only to present voters."""
    store = stored(stable="a1 b1*", pending="b1")
    assert line_of(decide(store, group("a1 b1*"))) == "lock"


def test_the_switch_waits_until_a_quorum_knows() -> None:
    """Until the switch nothing else is done, even with a planned target."""
    store = moving(lock_term=TERM, planned="a1 b1 e3")
    token = read(store).pending_mod
    applied = group("a1 b1 d2", token=token, commit_known=False)
    assert decide(store, applied) is None
    assert line_of(decide(store, msgspec.structs.replace(applied, commit_known=True))) == "switch"


def test_the_switch_is_for_its_own_token_only() -> None:
    """A configuration applied for another pending does not complete this one."""
    store = stored(stable="a1 b1", pending="a1 b1 d2")
    token = read(store).pending_mod
    assert line_of(decide(store, group("a1 b1 d2", token=token))) == "switch"
    assert line_of(decide(store, group("a1 b1 d2", token=token - 1))) == "lock"


@pytest.mark.parametrize("planned", [None, "a1 b1 e3"])
@pytest.mark.parametrize("mode", Retarget)
def test_a_stale_pending_is_not_applied(mode: Retarget, planned: str | None) -> None:
    """A pending older than the group's change token is stale: a restored etcd does not revert groups."""
    store = moving(planned=planned)
    token = read(store).pending_mod
    assert decide(store, group("a1 b1 c1", token=token + 1), mode=mode) is None


@pytest.mark.parametrize(
    ("mode", "lock_term", "expected"),
    [
        (Retarget.ADJUST, None, "promote"),
        (Retarget.CANCEL, None, "promote"),
        (Retarget.QUEUE, None, "lock"),
        (Retarget.ADJUST, TERM, "lock"),
        (Retarget.CANCEL, TERM, "lock"),
        (Retarget.QUEUE, TERM, "lock"),
    ],
)
def test_planned_and_the_lock(mode: Retarget, lock_term: int | None, expected: str) -> None:
    """Planned replaces an unlocked pending, even if it was written before the leader was elected."""
    assert line_of(decide(moving(lock_term=lock_term, planned="a1 b1 e3"), filled(), mode=mode)) == expected


@pytest.mark.parametrize(
    ("target", "view", "ready"),
    [
        ("a1 b1 d2", group("a1 b1 c1", staged="d2*"), True),
        ("a1 b1 d2", group("a1 b1 c1", staged="d2*", lag="c1"), True),
        ("a1 b1 d2", group("a1 b1 c1", staged="d2*", silent="b1"), True),
        ("a1 b1 d2", group("a1 b1 c1", staged="d2*", lag="b1"), True),
        ("a1 b1 d2", group("a1 b1 c1", staged="d2*", lag="d2"), False),
        ("a1 b1 d2", group("a1 b1 c1", staged="d2*", silent="d2"), False),
        ("a1 b1 d2", group("a1 b1 c1"), False),
        ("a1 b1", group("a1 b1 c1", silent="b1"), False),
        ("b1", group("a1 b1", silent="b1"), False),
        ("a1 b1", group("a1 b1*", lag="b1"), False),
        ("a1 b1", group("a1 b1*", silent="b1"), False),
        ("a1 b1*", group("a1 b1", silent="b1"), True),
        ("a1 b1*", group("a1", staged="b1*", lag="b1"), False),
        ("a1 b1*", group("a1", staged="b1*", silent="b1"), False),
        ("a1 b1* c1", group("a1 b1 c1", silent="b1"), True),
        ("a1", group("a1 b1*", silent="b1"), True),
    ],
)
def test_ready_to_change(target: str, view: GroupView, ready: bool) -> None:
    """Added and promoted peers must be caught up and answer, and a majority of the target's voters must answer."""
    assert ready_to_change(peers(target), view) is ready
