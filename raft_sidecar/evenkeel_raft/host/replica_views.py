"""A replica as the agent, reports and the status page see it.

These read every replica of a store periodically, on the event loop that also answers heartbeats. With ten thousand
replicas every microsecond counts, so each function computes only what it returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec import Struct

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.leader_decision import GroupView
from evenkeel_raft.host.caught_up import has_caught_up, is_answering, is_behind
from evenkeel_raft.shared.raft_configurations import configuration_of, id_of
from evenkeel_raft.shared.raft_groups import GroupReport

if TYPE_CHECKING:
    from evenkeel_raft.host.raft_replica import Replica

__all__ = ["ReplicaStatus", "describe", "report", "view"]


class ReplicaStatus(Struct, frozen=True, kw_only=True):
    """State of a replica, for people and tools."""

    table: str
    partition: int
    replica: int
    role: str
    term: int
    leader: str
    """The store of the leader, as far as this replica knows."""
    stage: str
    """none, catching-up or joint: progress of a configuration change, if this replica leads."""
    committed: int
    applied: int
    log_bytes: int
    caught_up: bool
    """Whether another store could stop now without harm to the group."""
    asleep: bool
    members: dict[str, str]
    """By store: voter, learner, leaving, or filling and the progress."""
    problem: str


def view(replica: Replica) -> GroupView | None:
    """Return the leader's view of the group; None unless it leads and its state machine can serve."""
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
        answering=frozenset({id_ for id_, peer in peers if is_answering(peer, ticks)}) | {replica.id},
        commit_known=status.commit_known >= status.applied_conf.index,
    )


def report(replica: Replica) -> GroupReport:
    """Return the report of a replica; an idle one, as most are, returns the same report again."""
    at_rest = replica.asleep and replica.applier.idle and replica.snapshot_sender.idle and not replica.stopped
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
        proposed_bytes=replica.proposals.bytes,
        filling=_filling(replica),
        problem=_problem(replica),
        damaged=replica.applier.lost_state or bool(replica.applier.damage()),
        alone=not conf.outgoing and conf.voters == (node.replica,),
        bytes=replica.applier.size,
    )


def _filling(replica: Replica) -> dict[str, float]:
    """Return the snapshot progress by store, including members that restore (1.0) or do not answer (0.0)."""
    node, ticks = replica.node, replica.settings.raft.election_ticks
    if not node.leading or not node.conf.learners:
        return replica.snapshot_sender.progress()
    staged = {peer.id for peer in configuration_of(node.conf).staged}
    status = node.status()
    peers = {id_of(status.conf, number): peer for number, peer in status.peers.items() if number in status.conf.info}
    silent = {id_ for id_, peer in peers.items() if not is_answering(peer, ticks)}
    restoring = {id_ for id_, peer in peers.items() if peer.stateless and peer.state == "replicate"}
    waiting = {id_[0]: 0.0 if id_ in silent else 1.0 for id_ in sorted(staged & (silent | restoring))}
    return waiting | replica.snapshot_sender.progress()


def describe(replica: Replica) -> ReplicaStatus:
    """Return the full status of a replica."""
    node, configuration = replica.node, Configuration(()) if replica.failure else configuration_of(replica.node.conf)
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
        members=_members(configuration, replica.snapshot_sender.progress()),
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
    """Return why the replica makes no progress, or an empty string."""
    if replica.failure:
        return f"stopped: {replica.failure}"
    if problem := replica.applier.problem() or replica.snapshot_sender.problem:
        return problem
    if replica.unresponsive:
        return "the state machine does not answer"
    node = replica.node
    if node.leader or node.quiesced or not node.conf.voters:
        return ""
    settings, silent = replica.settings, node.leader_silent_ticks
    # A replica that never had a leader may have been created just now.
    since = replica.age() if silent is None else silent * settings.tick_seconds
    if since > 3 * settings.election_seconds:
        return "no leader: a majority of the voters is unreachable"
    return ""
