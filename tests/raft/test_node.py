"""The node's own promises: limits, completions, what it tells of itself, and messages that can be sent."""

from __future__ import annotations

import random

import msgspec
import pytest

from evenkeel_raft.core.errors import InvariantError, Refusal, RefusedError
from evenkeel_raft.core.raft_messages import (
    AnyMessage,
    Append,
    AppendResponse,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    ReadRequest,
    VoteRequest,
    VoteResponse,
)
from evenkeel_raft.core.raft_state import NEVER_DUE, Ticks
from evenkeel_raft.core.raft_types import (
    LEADER,
    LEARNER,
    SIMPLE,
    Change,
    Conf,
    ConfChange,
    Entry,
    HardState,
    Settings,
    SnapshotMeta,
    genesis,
)
from evenkeel_raft.core.rawnode import RawNode, Ready


def single(**settings: int) -> RawNode:
    """A group of one that leads and has applied its first entry."""
    node = RawNode(
        group=1, replica=1, rng=random.Random(1), settings=Settings(**settings), meta=genesis(Conf(voters=(1,)))
    )
    node.campaign()
    for _ in range(3):
        finish(node, node.ready())
    assert node.leading
    return node


def finish(node: RawNode, out: Ready) -> None:
    if out.append is not None:
        node.on_persisted(out.append.token)
    if out.apply:
        node.on_applied(out.apply[-1].index)


def test_too_much_unapplied_log_is_refused() -> None:
    """Proposals are Busy beyond the limit of unapplied bytes, and taken again once the state machine caught up."""
    node = single(max_unapplied_bytes=1000)
    node.propose(b"x" * 2000)
    with pytest.raises(RefusedError) as refused:
        node.propose(b"y")
    assert refused.value.reason is Refusal.BUSY
    finish(node, node.ready())
    finish(node, node.ready())
    assert node.propose(b"y") == 4


def test_refusals_say_where_to_turn() -> None:
    """A follower names the leader it knows."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2))))
    node.step(Append(1, 0, 1, 2, 2, 1, 1, 1, []))
    with pytest.raises(RefusedError, match="not the leader") as refused:
        node.propose(b"x")
    assert refused.value.leader == 1


def test_many_proposals_are_one_message() -> None:
    """What is proposed between two takes travels together."""
    node = _leader_of_two(Settings())
    assert node.propose_many([b"a", b"b"]) == 4
    node.propose(b"c")
    sent = [message for message in node.ready().messages if isinstance(message, Append)]
    assert [[entry.data for entry in message.entries] for message in sent] == [[b"a", b"b", b"c"]]


def test_flow_control_stops_at_the_limits() -> None:
    """No more is in flight than allowed, by entries and by bytes; an acknowledgement makes room."""
    settings = Settings(max_inflight_entries=3, max_append_bytes=50, max_inflight_bytes=10_000)
    node = _leader_of_two(settings)
    node.propose_many([b"x" * 20] * 10)
    assert _sent(node) == [3, 4, 5]
    node.step(AppendResponse(1, 0, 2, 1, 2, 4, False, 0, 0, 1))
    assert _sent(node) == [6, 7]

    node = _leader_of_two(Settings(max_append_bytes=50, max_inflight_bytes=100))
    node.propose_many([b"x" * 20] * 10)
    assert _sent(node) == [3, 4]


def _leader_of_two(settings: Settings, ticks: Ticks | None = None) -> RawNode:
    meta = genesis(Conf(voters=(1, 2)))
    node = RawNode(group=1, replica=1, rng=random.Random(1), settings=settings, ticks=ticks, meta=meta)
    node.run_due()
    node.campaign()
    node.ready()
    node.step(VoteResponse(1, 0, 2, 1, 2, True, True, 1, 1))
    finish(node, node.ready())
    node.step(VoteResponse(1, 0, 2, 1, 2, False, True, 1, 1))
    finish(node, node.ready())
    node.step(AppendResponse(1, 0, 2, 1, 2, 2, False, 0, 0, 1))
    finish(node, node.ready())
    assert node.leading
    return node


def _sent(node: RawNode) -> list[int]:
    return [entry.index for m in node.ready().messages if isinstance(m, Append) for entry in m.entries]


def test_completions_out_of_line_are_harmless_or_refused() -> None:
    """An old token or index changes nothing; an index that was never handed out is a broken runner."""
    node = single()
    node.propose(b"x")
    out = node.ready()
    finish(node, out)
    finish(node, node.ready())
    before = node.status()
    assert out.append is not None
    node.on_persisted(out.append.token)
    node.on_applied(1)
    assert node.status() == before
    with pytest.raises(InvariantError, match="reported applied"):
        node.on_applied(99)


def test_output_is_handed_over_once() -> None:
    """Nothing that was taken changes afterwards, or comes again."""
    node = single()
    first = node.ready()
    node.propose(b"x")
    node.read_index(5)
    second = node.ready()
    assert (first.messages, first.read_states, first.apply, first.append) == ([], [], [], None)
    assert second.append is not None
    assert [read.context for read in second.read_states] == [5]
    finish(node, second)
    third = node.ready()
    assert third.read_states == []
    assert third.append is None


def test_status_tells_staged_from_final() -> None:
    """The newest configuration in the log and the applied one are shown with token and staged flag."""
    node = single()
    node.propose_conf(ConfChange(SIMPLE, (Change(LEARNER, 2),), 7, True))
    status = node.status()
    assert (status.newest.index, status.newest.token, status.newest.staged) == (3, 7, True)
    assert (status.applied_conf.index, status.applied_conf.token, status.applied_conf.staged) == (1, 0, False)
    finish(node, node.ready())
    finish(node, node.ready())
    status = node.status()
    assert status.applied_conf == status.newest
    assert status.conf == Conf(voters=(1,), learners=(2,), token=7, staged=True)


def test_catch_up_is_measured_in_bytes() -> None:
    """A member that needs a snapshot is not a few bytes behind, but unknown; one in reach is exactly so many."""
    node = single()
    node.propose_conf(ConfChange(SIMPLE, (Change(LEARNER, 2),), 0, True))
    for _ in range(3):
        finish(node, node.ready())
    assert node.status().peers[2].bytes_behind is None
    assert node.status().peers[2].silent_ticks is None
    node.step(AppendResponse(1, 0, 2, 1, 2, 2, False, 0, 0, 1))
    behind = node.status().peers[2].bytes_behind
    assert behind is not None
    node.propose(b"x" * 100)
    assert node.status().peers[2].bytes_behind == behind + 132
    assert node.status().peers[2].silent_ticks == 0


def test_silence_of_the_leader_is_not_forgotten_by_campaigning() -> None:
    """A follower counts from its leader's last message, whatever it does itself; asleep, it can not tell."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2))))
    assert node.status().leader_silent_ticks is None
    node.step(Append(1, 0, 1, 2, 2, 1, 1, 1, []))
    for _ in range(25):
        node.tick()
    assert node.status().role == "pre-candidate"
    assert node.status().leader_silent_ticks == 25
    node.step(Heartbeat(1, 0, 1, 2, 2, 1, 0, True))
    assert node.status().quiesced
    assert node.status().leader_silent_ticks is None


def test_a_leader_counts_from_its_last_quorum() -> None:
    """Nobody is certain to lead because it thinks so."""
    node = _leader_of_two(Settings())
    for _ in range(4):
        node.tick()
    assert node.status().leader_silent_ticks == 4
    node.step(HeartbeatResponse(1, 0, 2, 1, 2, 0, 1))
    assert node.status().leader_silent_ticks == 0


def test_a_follower_that_hears_its_leader_is_rarely_looked_at() -> None:
    """Time passes for it by itself; it is looked at once in a timeout, and stands when one that always is does."""
    ticks, meta = Ticks(), genesis(Conf(voters=(1, 2, 3)))
    rarely = RawNode(group=1, replica=2, rng=random.Random(1), ticks=ticks, meta=meta)
    always = RawNode(group=1, replica=2, rng=random.Random(1), meta=meta)
    looked = 0
    for now in range(1, 160):
        ticks.now = now
        if now >= rarely.due:
            looked += 1
            rarely.run_due()
        always._raft.due = 0
        always.tick()
        mine = rarely.ready()
        assert mine == always.ready(), now
        if mine.messages:
            break
        if now % 3 == 0 and now <= 120:
            for node in (rarely, always):
                node.step(Heartbeat(1, 0, 1, 2, 2, 1, 0, False))
                node.ready()
    assert isinstance(mine.messages[0], VoteRequest)
    assert looked <= 120 // 7


def test_what_comes_to_be_due_is_looked_at_in_time() -> None:
    """A new leader's heartbeats, a hand-over and a forwarded read have deadlines before the one that was known."""
    ticks = Ticks()
    leader = _leader_of_two(Settings(), ticks)
    assert leader.due == ticks.now + Settings().heartbeat_ticks
    follower = RawNode(group=1, replica=2, rng=random.Random(1), ticks=ticks, meta=genesis(Conf(voters=(1, 2))))
    follower.step(Heartbeat(1, 0, 1, 2, 2, 1, 0, False))
    follower.set_leadership_inhibited(True)
    ticks.now = follower.due
    follower.run_due()
    assert follower.due >= ticks.now + 2
    follower.step(Heartbeat(1, 0, 1, 2, 2, 1, 0, False))
    follower.read_index(7)
    for _ in range(Settings().election_ticks):
        ticks.now += 1
        if ticks.now >= follower.due:
            follower.run_due()
    assert [(read.context, read.index) for read in follower.ready().read_states] == [(7, 0)]


def test_a_sleeping_node_is_not_looked_at() -> None:
    """Asleep nothing is due; who wakes is looked at with the next tick."""
    ticks = Ticks()
    node = RawNode(group=1, replica=2, rng=random.Random(1), ticks=ticks, meta=genesis(Conf(voters=(1, 2))))
    node.run_due()
    assert node.due > ticks.now + 1
    node.step(Heartbeat(1, 0, 1, 2, 2, 1, 0, True))
    node.ready()
    assert node.due == ticks.now + 1
    assert not node.run_due()
    assert node.due == NEVER_DUE
    ticks.now += 1000
    node.wake()
    assert node.due == ticks.now + 1
    assert node.leader_silent_ticks == 0


def test_members_do_not_fall_silent_while_their_leader_sleeps() -> None:
    """Nobody is asked meanwhile, so that they do not answer says nothing: leadership can be handed to them."""
    ticks = Ticks()
    node = _leader_of_two(Settings(), ticks)
    node.step(HeartbeatResponse(1, 0, 2, 1, 2, 0, 2))
    node.ready()
    assert node.quiesce()
    ticks.now += 1000
    assert node.status().peers[2].silent_ticks == 0
    node.wake()
    assert node.status().peers[2].silent_ticks is None


def test_messages_are_taken_alone_only_where_nothing_else_is_to_be_done() -> None:
    """The answer to a heartbeat is all there is; with news of a commit there is more, and nothing is lost by asking."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))
    node.step(Append(1, 0, 1, 2, 2, 1, 1, 1, [Entry(2, 2, 0, b"x")]))
    assert node.ready_messages() is None
    finish(node, node.ready())
    node.step(Heartbeat(1, 0, 1, 2, 2, 1, 0, False))
    assert node.ready_messages() == [HeartbeatResponse(1, 0, 2, 1, 2, 0, 1)]
    assert node.ready_messages() == []
    node.step(Heartbeat(1, 0, 1, 2, 2, 2, 0, False))
    assert node.ready_messages() is None
    out = node.ready()
    assert out.messages == [HeartbeatResponse(1, 0, 2, 1, 2, 0, 1)]
    assert [entry.index for entry in out.apply] == [2]


def test_a_follower_says_whether_there_is_a_state() -> None:
    """From the acknowledgement of a snapshot until it is restored, and while the state machine is away."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))

    def says(message: Message) -> set[bool]:
        node.step(message)
        out = node.ready()
        answers = list(out.messages)
        if out.append is not None:
            node.on_persisted(out.append.token)
            answers += out.append.responses
        return {answer.stateless for answer in answers if isinstance(answer, AppendResponse | HeartbeatResponse)}

    beat = Heartbeat(1, 0, 1, 2, 2, 1, 0, False)
    assert says(beat) == {False}
    arrived = InstallSnapshot(1, 0, 1, 2, 2, SnapshotMeta(9, 2, Conf(voters=(1, 2, 3))))
    assert says(arrived) == {True}
    assert node.ready().restore is not None
    assert says(beat) == {True}
    node.on_applied(9)
    assert says(beat) == {False}
    node.detach()
    assert says(beat) == {True}


def test_a_follower_does_not_sleep_on_news_of_its_state() -> None:
    """A leader that slept would take it for one without a state until somebody woke them."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))
    node.step(InstallSnapshot(1, 0, 1, 2, 2, SnapshotMeta(9, 2, Conf(voters=(1, 2, 3)))))
    out = node.ready()
    assert out.append is not None
    node.on_persisted(out.append.token)
    assert node.ready().restore is not None
    node.on_applied(9)
    node.step(Heartbeat(1, 0, 1, 2, 2, 9, 4, False, 9, True))
    assert len(node.ready().messages) == 1
    unaware = Heartbeat(1, 0, 1, 2, 2, 9, 5, True, 9, True)
    for _ in range(2):  # the answer may have been lost, or may have come too late to count
        node.step(unaware)
        [answer] = node.ready().messages
        assert isinstance(answer, HeartbeatResponse)
        assert (answer.context, answer.stateless, node.quiesced) == (5, False, False)
    node.step(Heartbeat(1, 0, 1, 2, 2, 9, 6, True, 9, False))
    assert node.ready().messages == []
    assert node.quiesced


def test_a_follower_sleeps_with_a_leader_that_does_not_say_what_it_believes() -> None:
    """Leaders of the release before do not; a group must come to rest under them."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))
    node.step(Heartbeat(1, 0, 1, 2, 2, 1, 5, True))
    assert node.ready().messages == []
    assert node.quiesced


def test_a_follower_tells_such_a_leader_of_its_state_before_it_sleeps() -> None:
    """What it said last was that the state machine is away, or restores; nobody else would say that it is back."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))
    silent = Heartbeat(1, 0, 1, 2, 2, 1, 5, False)
    calling = Heartbeat(1, 0, 1, 2, 2, 1, 6, True)
    node.detach()
    node.step(silent)
    assert len(node.ready().messages) == 1
    node.attach(1)
    node.step(calling)
    [answer] = node.ready().messages
    assert isinstance(answer, HeartbeatResponse)
    assert (answer.context, answer.stateless, node.quiesced) == (6, False, False)
    node.step(calling)
    assert node.ready().messages == []
    assert node.quiesced


@pytest.mark.parametrize("conf", [Conf(voters=(1, 2, 3)), Conf(voters=(1, 3), learners=(2,))], ids=["voter", "learner"])
def test_a_state_machine_that_comes_back_calls_the_sleeping_leader(conf: Conf) -> None:
    """The leader fell asleep while it was away, and would take the member for one without a state for ever."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(conf), applied=None)
    node.step(Heartbeat(1, 0, 1, 2, 2, 1, 5, True, 1, True))
    assert node.ready().messages == []
    assert node.quiesced
    node.attach(1)
    calls = [message for message in node.ready().messages if isinstance(message, ReadRequest)]
    assert [(call.receiver, call.context) for call in calls] == [(1, 0)]


def test_a_learner_calls_a_leader_that_it_does_not_hear() -> None:
    """It may not stand, and the leader may sleep; its first call may have been lost."""
    meta = genesis(Conf(voters=(1, 3), learners=(2,)))
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=meta)
    node.step(Heartbeat(1, 0, 1, 2, 2, 1, 5, False, 1, False))
    for _ in range(20):
        node.tick()
    assert [type(message) for message in node.ready().messages[1:]] == [ReadRequest]


@pytest.mark.parametrize("behind", [0, 1], ids=["same term", "earlier term"])
def test_a_removed_learner_does_not_wake_its_group(behind: int) -> None:
    """It does not know that it was removed, and calls until it is deleted. A member that calls does wake the leader."""
    node = single()
    assert node.quiesce()
    node.step(ReadRequest(1, 0, 9, 1, node.term - behind, 0))
    assert node.quiesced
    assert node.ready().messages == []
    node = _leader_of_two(Settings())
    node.step(HeartbeatResponse(1, 0, 2, 1, node.term, 0, 2))
    assert node.quiesce()
    node.step(ReadRequest(1, 0, 2, 1, node.term - behind, 0))
    assert not node.quiesced


def test_no_promise_outlives_its_term() -> None:
    """An acknowledgement that was not sent yet is dropped with the term it was given in."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))
    node.step(Append(1, 0, 1, 2, 2, 1, 1, 1, [Entry(2, 2, 0, b"old")]))
    node.step(Append(1, 0, 3, 2, 3, 1, 1, 1, [Entry(2, 3, 0, b"new")]))
    out = node.ready()
    assert out.append is not None
    assert [(message.receiver, message.term) for message in out.append.responses] == [(3, 3)]


def test_a_disk_that_does_not_get_on_is_promised_nothing_twice() -> None:
    """However often a leader asks meanwhile, there is one write to wait for, and one answer when it is done."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))
    node.step(Append(1, 0, 1, 2, 2, 1, 1, 1, [Entry(2, 2, 0, b"x")]))
    written = node.ready().append
    assert written is not None
    for _ in range(100):
        node.step(Append(1, 0, 1, 2, 2, 2, 2, 1, []))
        out = node.ready()
        assert out.append is None
        assert out.messages == []
    node.on_persisted(written.token)
    assert node.ready().messages == [AppendResponse(1, 0, 2, 1, 2, 2, False, 0, 0, 1)]


def test_two_leaders_of_a_term_stop_the_replica() -> None:
    """What can not be is not worked around."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))
    node.step(Heartbeat(1, 0, 1, 2, 2, 0, 0, False))
    with pytest.raises(InvariantError, match="replicas 1 and 3 both lead term 2"):
        node.step(Heartbeat(1, 0, 3, 2, 2, 0, 0, False))


def test_soft_state_is_told_when_it_changes() -> None:
    """Role, leader and term are part of the output of the take after they changed, and of no other."""
    node = RawNode(group=1, replica=1, rng=random.Random(1), meta=genesis(Conf(voters=(1,))))
    node.campaign()
    finish(node, node.ready())
    out = node.ready()
    assert out.soft_state is not None
    assert (out.soft_state.role, out.soft_state.leader, out.soft_state.term) == (LEADER, 1, 2)
    finish(node, out)
    assert node.ready().soft_state is None


def test_a_reluctant_replica_lets_others_go_first() -> None:
    """Its timeout lies beyond that of everybody else."""
    node = RawNode(group=1, replica=1, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2))))
    node.set_leadership_inhibited(True)
    for _ in range(20):
        node.tick()
    assert node.ready().messages == []
    for _ in range(20):
        node.tick()
    assert isinstance(node.ready().messages[0], VoteRequest)


def test_a_follower_knows_how_much_it_lacks() -> None:
    """As long as its leader has committed more than it has, also where nothing that it was sent fits its log."""
    node = RawNode(group=1, replica=1, rng=random.Random(1), settings=Settings(), meta=genesis(Conf(voters=(1, 2, 3))))
    assert not node.lagging
    entries = {index: Entry(index, 2, 0, b"x") for index in range(2, 7)}

    def told(prev: int, upto: int, commit: int) -> bool:
        sent = [entries[index] for index in range(prev + 1, upto + 1)]
        node.step(Append(1, 0, 2, 1, 2, prev, 1 if prev == 1 else 2, commit, sent))
        finish(node, node.ready())
        return node.lagging

    assert told(4, 5, 5)
    assert node.committed == 1
    assert told(1, 3, 5)
    assert node.committed == 3
    assert not told(3, 5, 5)
    assert not told(5, 6, 5)
    assert node.committed == 5


def test_a_follower_knows_what_it_lacks_from_the_first_heartbeat_on() -> None:
    """One that was restarted knows its leader by it, and would else take itself for complete until it is sent more."""
    meta = genesis(Conf(voters=(1, 2, 3)))
    leader, follower = (RawNode(group=1, replica=number, rng=random.Random(1), meta=meta) for number in (1, 2))
    leader.campaign()
    for term, pre in ((2, True), (2, False)):
        finish(leader, leader.ready())
        leader.step(VoteResponse(1, 0, 3, 1, term, pre, True, 1, 1))
    index = leader.propose(b"x")
    finish(leader, leader.ready())
    leader.step(AppendResponse(1, 0, 3, 1, 2, index, False, 0, 0, 1))
    assert leader.committed == index
    leader.ready()
    leader.tick()
    [heartbeat] = [m for m in leader.ready().messages if isinstance(m, Heartbeat) and m.receiver == 2]
    assert (heartbeat.commit, heartbeat.committed) == (0, index)
    follower.step(heartbeat)
    assert follower.leader == 1
    assert follower.lagging


@pytest.mark.parametrize(("fields", "committed"), [(-1, 9), (-2, 0)])
def test_a_heartbeat_of_a_release_before_is_understood(fields: int, committed: int) -> None:
    """It does not say what the leader believes of the member, or how far the leader is."""
    heartbeat = Heartbeat(1, 0, 1, 2, 2, 1, 0, False, 9, True)
    before = msgspec.msgpack.decode(msgspec.msgpack.encode(heartbeat))[:fields]
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=AnyMessage)
    assert decoded == msgspec.structs.replace(heartbeat, committed=committed, stateless=None)


def test_a_message_of_a_release_after_is_understood() -> None:
    """What it says beyond what is known here is passed over."""
    heartbeat = Heartbeat(1, 0, 1, 2, 2, 1, 0, False, 9, True)
    after = [*msgspec.msgpack.decode(msgspec.msgpack.encode(heartbeat)), "more"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(after), type=AnyMessage) == heartbeat


def test_a_damaged_state_machine_is_not_restored_past_the_durable_log() -> None:
    """A crash would else leave a state machine that has more than its log, which then seems to have lost entries."""
    meta = SnapshotMeta(5, 2, Conf(voters=(1, 2)))
    node = RawNode(group=1, replica=1, rng=random.Random(1), meta=meta, hard_state=HardState(2, 0, 5), applied=0)
    assert node.needs_restore
    node.step(Append(1, 0, 2, 1, 2, 5, 2, 7, [Entry(6, 2, 0, b"x"), Entry(7, 2, 0, b"y")]))
    write = node.ready().append
    assert write is not None
    node.step(InstallSnapshot(1, 0, 2, 1, 2, SnapshotMeta(6, 2, meta.conf)))
    assert node.ready().restore is None
    assert node.on_persisted(write.token)
    out = node.ready()
    assert out.restore is not None
    assert (out.restore.index, [entry.index for entry in out.apply]) == (6, [7])


def test_malformed_appends_are_refused() -> None:
    """Entries that do not follow each other change nothing."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2))))
    gap = [Entry(2, 2, 0, b""), Entry(4, 2, 0, b"")]
    assert node.step(Append(1, 0, 1, 2, 2, 1, 1, 1, gap)) is Refusal.MALFORMED
    assert node.step(Append(1, 0, 1, 2, 2, 1, 1, 1, [Entry(5, 2, 0, b"")])) is Refusal.MALFORMED
    assert node.status().last_index == 1


@pytest.mark.parametrize(
    "message",
    [
        Append(1, 0, 1, 2, 3, 4, 2, 4, [Entry(5, 3, 0, b"x")]),
        AppendResponse(1, 0, 2, 1, 3, 5, False, 0, 0, 4),
        InstallSnapshot(1, 0, 1, 2, 3, SnapshotMeta(5, 3, Conf(voters=(1, 2), info={1: b"a"}))),
        VoteRequest(1, 2, 3, 4, 5, 6, 5, True, False, 4, 3),
    ],
)
def test_messages_survive_the_wire(message: Message) -> None:
    """A message is one tagged array that decodes to itself."""
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(message), type=AnyMessage) == message
