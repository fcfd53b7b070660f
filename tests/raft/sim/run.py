"""Runs a seed: first with faults, when no invariant may break; then without, when the group must converge."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from evenkeel_raft.core.rawnode import RawNode
from tests.raft.check.invariants import ViolationError
from tests.raft.check.linearizability import linearizable
from tests.raft.sim.clients import KEYS, observed
from tests.raft.sim.mix import Mix
from tests.raft.sim.nemesis import Nemesis
from tests.raft.sim.world import World

SAFETY_TIME = 4_000
LIVENESS_TIME = 60_000
ANSWERS = 10  # required once faults ended


class StuckError(AssertionError):
    """The group does not converge although faults ended."""


class Outcome(Struct, frozen=True):
    """Statistics of a seed's run."""

    seed: int
    events: int
    time: int
    committed: int
    answered: int
    term: int
    confs: int
    replicas: int


def run(
    seed: int, *, mix: Mix | None = None, make_node: Callable[..., RawNode] = RawNode, safety_time: int = SAFETY_TIME
) -> Outcome:
    """Run a seed through both phases, deterministically. Raises ViolationError, InvariantError or StuckError."""
    world = World(seed, mix=mix, make_node=make_node)
    nemesis = Nemesis(world)
    world.clock.run(safety_time)
    nemesis.stop()
    goal = world.clients.answered + ANSWERS

    def right() -> bool:
        if world.clients.answered < goal:
            return False
        world.clients.stop()
        return not _wrong(world)

    if not world.clock.run(safety_time + LIVENESS_TIME, enough=right):
        raise StuckError(f"{world.clients.answered - goal + ANSWERS} answers; {_wrong(world)}")
    check_history(world)
    return _outcome(seed, world)


def _wrong(world: World) -> str:
    """Return what has not converged yet; empty if everything has."""
    leader, admin = world.leader(), world.admin
    if leader is None or leader.node is None:
        return "no leader"
    status = leader.node.status()
    conf = status.conf
    if conf.joint or set(conf.voters) != admin.voters or set(conf.learners) != admin.learners:
        return f"configuration {conf}, wanted {admin.voters} and {admin.learners}"
    for member in conf.members():
        node = world.hosts[member].node
        if node is None:
            return f"replica {member} is down"
        applied = node.status().applied
        if applied != status.last_index:
            return f"replica {member} applied {applied} of {status.last_index}; leader {status}"
    mistaken = [member for member, peer in status.peers.items() if peer.stateless]
    if mistaken:
        return f"the leader considers {mistaken} stateless; quiesced: {status.quiesced}"
    if waiting := world.clients.waiting_reads():
        return f"unanswered reads, by replica: {waiting}"
    return ""


def check_history(world: World) -> None:
    """Check the clients' histories, one register at a time."""
    for key in KEYS:
        history = observed([op for op in world.clients.history if op.key == key])
        if not linearizable(history):
            raise ViolationError(f"register {key} is not linearizable: {history}")


def _outcome(seed: int, world: World) -> Outcome:
    leader = world.leader()
    return Outcome(
        seed=seed,
        events=world.clock.events,
        time=world.clock.now,
        committed=world.invariants.last_committed,
        answered=world.clients.answered,
        term=leader.node.term if leader and leader.node else 0,
        confs=len(world.invariants.confs),
        replicas=len(world.hosts),
    )
