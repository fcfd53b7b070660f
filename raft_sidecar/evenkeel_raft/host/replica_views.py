"""A replica as others see it: the agent, reports, tools and probes.

All of these look at every replica of a store from time to time, on the loop that also has to answer heartbeats; with
ten thousand replicas each microsecond counts. So only what is asked for is worked out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.leader_decision import GroupView
from evenkeel_raft.core.raft_status import PeerStatus
from evenkeel_raft.shared.raft_configurations import configuration_of, id_of
from evenkeel_raft.shared.raft_groups import GroupReport

if TYPE_CHECKING:
    from evenkeel_raft.host.raft_replica import Replica

__all__ = ["ReplicaStatus", "answers", "describe", "has_caught_up", "is_behind", "report", "view"]


class ReplicaStatus(Struct, frozen=True, kw_only=True):
    """A moment of a replica, for people and tools."""

    table: str
    partition: int
    replica: int
    role: str
    term: int
    leader: str
    """The store that leads, as far as this one knows."""
    stage: str
    """none, catching-up or joint: how far a change of the group's members is, where this replica leads."""
    committed: int
    applied: int
    log_bytes: int
    caught_up: bool
    """Whether nothing would be missed if another store went away now."""
    asleep: bool
    members: dict[str, str]
    """By store: voter, learner, leaving, or filling and how far."""
    problem: str


def answers(peer: PeerStatus, ticks: int) -> bool:
    """Whether a member was heard of within so many ticks."""
    return peer.silent_ticks is not None and peer.silent_ticks < ticks


def has_caught_up(peer: PeerStatus, margin: int) -> bool:
    """Whether a member lacks no more than so many bytes of the log, and has a state to apply them to.

    What a snapshot brought is safe once it is stored, yet nobody can be served from it before it is restored, and that
    takes minutes where there is much of it: those who serve meanwhile must not leave before.
    """
    return (
        peer.state == "replicate"
        and not peer.snapshot_wanted
        and not peer.stateless
        and peer.bytes_behind is not None
        and peer.bytes_behind <= margin
    )


def view(replica: Replica) -> GroupView | None:
    """The group as its leader sees it; None unless it leads and has a state machine to fill others from."""
    if replica.stopped or not replica.node.leading or not replica.fit_to_lead:
        return None
    status, settings = replica.node.status(), replica.settings
    ticks, margin = settings.raft.election_ticks, settings.caught_up_bytes
    ids = {number: id_of(status.conf, number) for number in status.peers if number in status.conf.info}
    peers = [(ids[number], peer) for number, peer in status.peers.items() if number in ids]
    return GroupView(
        me=replica.id,
        term=status.term,
        applied=configuration_of(status.conf),
        newest=configuration_of(replica.node.newest_conf()),
        committed_in_term=status.committed_in_term,
        caught_up=frozenset({id_ for id_, peer in peers if has_caught_up(peer, margin)}) | {replica.id},
        answering=frozenset({id_ for id_, peer in peers if answers(peer, ticks)}) | {replica.id},
        commit_known=status.commit_known >= status.applied_conf.index,
    )


def report(replica: Replica) -> GroupReport:
    """What a store reports of it; the same again while it rests, as most do most of the time."""
    at_rest = replica.asleep and replica.applier.at_rest and replica.filler.idle and not replica.stopped
    at_rest = at_rest and not replica.applier.damage()
    if at_rest and replica.last_report is not None:
        return replica.last_report
    made = _report(replica)
    replica.last_report = made if at_rest else None
    return made


def _report(replica: Replica) -> GroupReport:
    node, conf = replica.node, replica.node.conf
    return GroupReport(
        leading=node.leading,
        term=node.term,
        log_bytes=node.applied_bytes(),
        applied=node.applied,
        proposed_bytes=replica.proposed_bytes,
        filling=_filling(replica),
        problem=_problem(replica),
        damaged=replica.applier.lost or bool(replica.applier.damage()),
        alone=not conf.outgoing and conf.voters == (node.replica,),
        bytes=replica.applier.size,
    )


def _filling(replica: Replica) -> dict[str, float]:
    """How full members are that are sent a snapshot, or restore it; and those that do not answer.

    Of these nothing else would tell.
    """
    node, ticks = replica.node, replica.settings.raft.election_ticks
    if not node.leading or not node.conf.learners:
        return replica.filler.progress()
    staged = {peer.id for peer in configuration_of(node.conf).staged}
    status = node.status()
    peers = {id_of(status.conf, number): peer for number, peer in status.peers.items() if number in status.conf.info}
    silent = {id_ for id_, peer in peers.items() if not answers(peer, ticks)}
    restoring = {id_ for id_, peer in peers.items() if peer.stateless and peer.state == "replicate"}
    waiting = {id_[0]: 0.0 if id_ in silent else 1.0 for id_ in sorted(staged & (silent | restoring))}
    return waiting | replica.filler.progress()


def is_behind(replica: Replica) -> bool:
    """Whether a store must not be left alone with it: it votes, and cannot serve yet what is committed."""
    if replica.stopped:
        return True
    node, applier = replica.node, replica.applier
    if not node.conf.is_voter(node.replica):
        return False
    serves = replica.fit_to_lead and (node.applied == node.committed or applier.stalled_for() < 1.0)
    return not (serves and node.leader) or node.lagging


def describe(replica: Replica) -> ReplicaStatus:
    """Everything there is to say of it."""
    node, configuration = replica.node, Configuration(()) if replica.broken else configuration_of(replica.node.conf)
    return ReplicaStatus(
        table=replica.partition.table,
        partition=replica.partition.partition,
        replica=replica.id[1],
        role=node.role,
        term=node.term,
        leader=replica.store_of(node.leader) or "",
        stage=_stage(configuration) if node.leading else "",
        committed=node.committed,
        applied=node.applied,
        log_bytes=node.applied_bytes(),
        caught_up=not is_behind(replica),
        asleep=replica.asleep,
        members=_members(configuration, replica.filler.progress()),
        problem=_problem(replica),
    )


def _stage(configuration: Configuration) -> str:
    return "joint" if configuration.joint else "catching-up" if configuration.staged else "none"


def _members(configuration: Configuration, filling: dict[str, float]) -> dict[str, str]:
    found = {peer.store: "leaving" for peer in configuration.outgoing}
    found |= {peer.store: "filling" for peer in configuration.staged}
    found |= {peer.store: peer.role.value for peer in configuration.peers}
    return found | {store: f"filling {done:.0%}" for store, done in filling.items()}


def _problem(replica: Replica) -> str:
    """Why it does not get on, if so."""
    if replica.broken:
        return f"stopped: {replica.broken}"
    if problem := replica.applier.problem() or replica.filler.problem:
        return problem
    if replica.unresponsive:
        return "the state machine does not answer"
    node = replica.node
    if node.leader or node.quiesced or not node.conf.voters:
        return ""
    settings, silent = replica.settings, node.leader_silent_ticks
    # Where none was ever heard of, the replica may have come just now.
    since = replica.age() if silent is None else silent * settings.tick_seconds
    if since > 3 * settings.election_seconds:
        return "no leader: a majority of the voters can not be reached"
    return ""
