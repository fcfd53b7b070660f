"""The node: limits, completions, status, quiescence and message encoding."""

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
    """Return the leader of a group of one that applied its first entry."""
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


def test_a_full_apply_backlog_refuses_proposals() -> None:
    """Proposals are refused beyond the limit of unapplied bytes, until the state machine catches up."""
    node = single(max_unapplied_bytes=1000)
    node.propose(b"x" * 2000)
    with pytest.raises(RefusedError) as refused:
        node.propose(b"y")
    assert refused.value.reason is Refusal.BUSY
    finish(node, node.ready())
    finish(node, node.ready())
    assert node.propose(b"y") == 4


def test_refusals_name_the_leader() -> None:
    """A follower's refusal carries the leader it knows."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2))))
    node.step(Append(1, 0, 1, 2, 2, 1, 1, 1, []))
    with pytest.raises(RefusedError, match="not the leader") as refused:
        node.propose(b"x")
    assert refused.value.leader == 1


def test_many_proposals_are_one_message() -> None:
    """Proposals between two calls of `ready` are sent in one message."""
    node = _leader_of_two(Settings())
    assert node.propose_many([b"a", b"b"]) == 4
    node.propose(b"c")
    sent = [message for message in node.ready().messages if isinstance(message, Append)]
    assert [[entry.data for entry in message.entries] for message in sent] == [[b"a", b"b", b"c"]]


def test_flow_control_stops_at_the_limits() -> None:
    """Entries and bytes in flight are limited; an acknowledgement frees capacity."""
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


def test_unexpected_completions_are_ignored_or_refused() -> None:
    """An old token or index changes nothing; an index that was never emitted is a broken invariant."""
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


def test_output_is_returned_once() -> None:
    """Returned output never changes and is never repeated."""
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


def test_status_shows_token_and_staged() -> None:
    """Status has the token and the staged flag of the newest and the applied configuration."""
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
    """`bytes_behind` is None for a member that needs a snapshot, and exact for others."""
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


def test_campaigning_does_not_reset_the_leaders_silence() -> None:
    """A follower counts from its leader's last message, also while campaigning; quiesced, it has no value."""
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
    """A leader's silence counts from the last contact with a quorum."""
    node = _leader_of_two(Settings())
    for _ in range(4):
        node.tick()
    assert node.status().leader_silent_ticks == 4
    node.step(HeartbeatResponse(1, 0, 2, 1, 2, 0, 1))
    assert node.status().leader_silent_ticks == 0


def test_a_follower_of_a_live_leader_is_rarely_due() -> None:
    """A node run only when due behaves like one that runs at every tick, and is due once per timeout."""
    ticks, meta = Ticks(), genesis(Conf(voters=(1, 2, 3)))
    rarely = RawNode(group=1, replica=2, rng=random.Random(1), ticks=ticks, meta=meta)
    always = RawNode(group=1, replica=2, rng=random.Random(1), meta=meta)
    runs = 0
    for now in range(1, 160):
        ticks.now = now
        if now >= rarely.due:
            runs += 1
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
    assert runs <= 120 // 7


def test_new_deadlines_move_due_forward() -> None:
    """A new leader's heartbeats, a transfer and a forwarded read are due before the earlier deadline."""
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


def test_a_quiesced_node_is_never_due() -> None:
    """Nothing is due while quiesced; a node that wakes is due at the next tick."""
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


def test_members_are_not_silent_while_their_leader_is_quiesced() -> None:
    """A quiesced leader sends nothing, so missing responses do not count; it can hand leadership over."""
    ticks = Ticks()
    node = _leader_of_two(Settings(), ticks)
    node.step(HeartbeatResponse(1, 0, 2, 1, 2, 0, 2))
    node.ready()
    assert node.quiesce()
    ticks.now += 1000
    assert node.status().peers[2].silent_ticks == 0
    node.wake()
    assert node.status().peers[2].silent_ticks is None


def test_ready_messages_requires_that_there_is_no_other_work() -> None:
    """A heartbeat response alone is returned; with a new commit index there is more work, and nothing is lost."""
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


def test_a_follower_reports_whether_it_is_stateless() -> None:
    """It is stateless from a snapshot's arrival until its restore, and while the state machine is detached."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))

    def reported(message: Message) -> set[bool]:
        node.step(message)
        out = node.ready()
        answers = list(out.messages)
        if out.append is not None:
            node.on_persisted(out.append.token)
            answers += out.append.responses
        return {answer.stateless for answer in answers if isinstance(answer, AppendResponse | HeartbeatResponse)}

    beat = Heartbeat(1, 0, 1, 2, 2, 1, 0, False)
    assert reported(beat) == {False}
    arrived = InstallSnapshot(1, 0, 1, 2, 2, SnapshotMeta(9, 2, Conf(voters=(1, 2, 3))))
    assert reported(arrived) == {True}
    assert node.ready().restore is not None
    assert reported(beat) == {True}
    node.on_applied(9)
    assert reported(beat) == {False}
    node.detach()
    assert reported(beat) == {True}


def test_a_follower_reports_its_state_before_it_quiesces() -> None:
    """Otherwise a quiesced leader would consider it stateless until something wakes the group."""
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
    for _ in range(2):  # the response may be lost, or arrive too late to count
        node.step(unaware)
        [answer] = node.ready().messages
        assert isinstance(answer, HeartbeatResponse)
        assert (answer.context, answer.stateless, node.quiesced) == (5, False, False)
    node.step(Heartbeat(1, 0, 1, 2, 2, 9, 6, True, 9, False))
    assert node.ready().messages == []
    assert node.quiesced


def test_a_follower_quiesces_with_a_leader_of_the_previous_release() -> None:
    """Such leaders do not send their view of the follower; their groups must still quiesce."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))
    node.step(Heartbeat(1, 0, 1, 2, 2, 1, 5, True))
    assert node.ready().messages == []
    assert node.quiesced


def test_a_follower_reports_its_state_to_a_leader_of_the_previous_release() -> None:
    """It last reported that it is stateless, so it responds once more before it quiesces."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))
    silent = Heartbeat(1, 0, 1, 2, 2, 1, 5, False)
    quiescing = Heartbeat(1, 0, 1, 2, 2, 1, 6, True)
    node.detach()
    node.step(silent)
    assert len(node.ready().messages) == 1
    node.attach(1)
    node.step(quiescing)
    [answer] = node.ready().messages
    assert isinstance(answer, HeartbeatResponse)
    assert (answer.context, answer.stateless, node.quiesced) == (6, False, False)
    node.step(quiescing)
    assert node.ready().messages == []
    assert node.quiesced


@pytest.mark.parametrize("conf", [Conf(voters=(1, 2, 3)), Conf(voters=(1, 3), learners=(2,))], ids=["voter", "learner"])
def test_attaching_pings_a_quiesced_leader(conf: Conf) -> None:
    """Otherwise the leader, which quiesced while the state machine was detached, would consider it stateless."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(conf), applied=None)
    node.step(Heartbeat(1, 0, 1, 2, 2, 1, 5, True, 1, True))
    assert node.ready().messages == []
    assert node.quiesced
    node.attach(1)
    pings = [message for message in node.ready().messages if isinstance(message, ReadRequest)]
    assert [(ping.receiver, ping.context) for ping in pings] == [(1, 0)]


def test_a_learner_pings_a_silent_leader() -> None:
    """A learner cannot campaign, the leader may be quiesced, and an earlier ping may be lost."""
    meta = genesis(Conf(voters=(1, 3), learners=(2,)))
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=meta)
    node.step(Heartbeat(1, 0, 1, 2, 2, 1, 5, False, 1, False))
    for _ in range(20):
        node.tick()
    assert [type(message) for message in node.ready().messages[1:]] == [ReadRequest]


@pytest.mark.parametrize("behind", [0, 1], ids=["same term", "earlier term"])
def test_a_removed_learner_does_not_wake_its_group(behind: int) -> None:
    """A removed learner pings until it is deleted and wakes nobody; a member's ping wakes the leader."""
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


def test_responses_are_dropped_with_their_term() -> None:
    """An acknowledgement that was not sent yet is dropped when the term changes."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))
    node.step(Append(1, 0, 1, 2, 2, 1, 1, 1, [Entry(2, 2, 0, b"old")]))
    node.step(Append(1, 0, 3, 2, 3, 1, 1, 1, [Entry(2, 3, 0, b"new")]))
    out = node.ready()
    assert out.append is not None
    assert [(message.receiver, message.term) for message in out.append.responses] == [(3, 3)]


def test_a_stalled_disk_defers_each_response_once() -> None:
    """However often the leader repeats its message, there is one write and one response when it is done."""
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
    """A second leader in the same term is a broken invariant."""
    node = RawNode(group=1, replica=2, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2, 3))))
    node.step(Heartbeat(1, 0, 1, 2, 2, 0, 0, False))
    with pytest.raises(InvariantError, match="replicas 1 and 3 both lead term 2"):
        node.step(Heartbeat(1, 0, 3, 2, 2, 0, 0, False))


def test_soft_state_is_returned_when_it_changes() -> None:
    """Only the first `ready` after a change of role, leader or term has the soft state."""
    node = RawNode(group=1, replica=1, rng=random.Random(1), meta=genesis(Conf(voters=(1,))))
    node.campaign()
    finish(node, node.ready())
    out = node.ready()
    assert out.soft_state is not None
    assert (out.soft_state.role, out.soft_state.leader, out.soft_state.term) == (LEADER, 1, 2)
    finish(node, out)
    assert node.ready().soft_state is None


def test_inhibited_leadership_lets_others_campaign_first() -> None:
    """Its election timeout is longer than that of any other replica."""
    node = RawNode(group=1, replica=1, rng=random.Random(1), meta=genesis(Conf(voters=(1, 2))))
    node.set_leadership_inhibited(True)
    for _ in range(20):
        node.tick()
    assert node.ready().messages == []
    for _ in range(20):
        node.tick()
    assert isinstance(node.ready().messages[0], VoteRequest)


def test_a_follower_lags_behind_its_leaders_commit() -> None:
    """It lags while its leader committed more, even if the entries it received do not match its log."""
    node = RawNode(group=1, replica=1, rng=random.Random(1), settings=Settings(), meta=genesis(Conf(voters=(1, 2, 3))))
    assert not node.lagging
    entries = {index: Entry(index, 2, 0, b"x") for index in range(2, 7)}

    def lags_after(prev: int, upto: int, commit: int) -> bool:
        sent = [entries[index] for index in range(prev + 1, upto + 1)]
        node.step(Append(1, 0, 2, 1, 2, prev, 1 if prev == 1 else 2, commit, sent))
        finish(node, node.ready())
        return node.lagging

    assert lags_after(4, 5, 5)
    assert node.committed == 1
    assert lags_after(1, 3, 5)
    assert node.committed == 3
    assert not lags_after(3, 5, 5)
    assert not lags_after(5, 6, 5)
    assert node.committed == 5


def test_a_follower_lags_from_the_first_heartbeat_on() -> None:
    """A restarted follower learns the leader's commit index from it, before any entries arrive."""
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
def test_a_heartbeat_of_an_earlier_release_is_decoded(fields: int, committed: int) -> None:
    """It lacks the leader's view of the member, or also the leader's commit index."""
    heartbeat = Heartbeat(1, 0, 1, 2, 2, 1, 0, False, 9, True)
    before = msgspec.msgpack.decode(msgspec.msgpack.encode(heartbeat))[:fields]
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(before), type=AnyMessage)
    assert decoded == msgspec.structs.replace(heartbeat, committed=committed, stateless=None)


def test_a_message_of_a_later_release_is_decoded() -> None:
    """Unknown trailing fields are ignored."""
    heartbeat = Heartbeat(1, 0, 1, 2, 2, 1, 0, False, 9, True)
    after = [*msgspec.msgpack.decode(msgspec.msgpack.encode(heartbeat)), "more"]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(after), type=AnyMessage) == heartbeat


def test_a_damaged_state_machine_is_not_restored_past_the_durable_log() -> None:
    """Otherwise a crash could leave a state machine ahead of its log, which would look like lost entries."""
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
    """An append whose entries are not consecutive changes nothing."""
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
