"""Run worlds: single steps, random walks, fair settling, and all interleavings up to a bound."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import MappingProxyType

import msgspec

from evenkeel.errors import EvenkeelError
from tests.explorer import faults, invariants, operators, raft, sidecars
from tests.explorer.fingerprint import fingerprint
from tests.explorer.invariants import Violation
from tests.explorer.world import Action, InFlight, Operator, Scenario, Store, World, target_of

_STORE_STEPS = frozenset(
    ("deliver", "read", "start", "lead", "check", "delete", "wreck", "confirm", "timeout", "adopt")
)
_OPERATOR_STEPS = frozenset(("operate", "give-up", "takeover"))


_STUCK = "Violation: stuck: "
_BROKEN = (AssertionError, EvenkeelError)
"""Exceptions of a step: a broken invariant, or an error of the protocol."""


class Failure(msgspec.Struct, frozen=True):
    """A failure, and the steps that lead to it from the start of the scenario."""

    message: str
    scenario: Scenario
    trace: tuple[Action, ...]

    @property
    def stuck(self) -> bool:
        """Whether no invariant broke but the run did not settle."""
        return self.message.startswith(_STUCK)

    def __str__(self) -> str:
        steps = "\n".join(f"  {at:3} {' '.join(action)}" for at, action in enumerate(self.trace))
        return f"{self.message}\nafter {len(self.trace)} steps from {self.scenario}:\n{steps}"


def actions(world: World) -> Iterator[Action]:
    """Return all actions that are possible next."""
    for store in world.stores.values():
        yield from sidecars.actions(world, store)
        yield from _raft_actions(world, store)
    for operator in world.operators.values():
        yield from operators.actions(world, operator)
    for flight in world.flights:
        yield ("land", str(flight.number))
        for kind in ("vanish", "mute"):
            if world.spend(kind):
                yield (kind, str(flight.number))
    yield from faults.actions(world)


def _raft_actions(world: World, store: Store) -> Iterator[Action]:
    replica = store.replica
    if replica is None or not store.running:
        return
    applied, newest = replica.applied(), replica.newest()
    if not replica.leading:
        if applied is not None and replica.id in applied.voter_ids():
            yield ("elect", store.name)
        return
    assert applied is not None
    assert newest is not None
    for member in sorted((applied.members() | newest.members()) - {replica.id}):
        other = world.reach(replica.id, member)
        if other is not None and _has_news(replica, other):
            yield ("replicate", store.name, member[0])


def _has_news(leader: raft.Replica, follower: raft.Replica) -> bool:
    return (
        follower.term != leader.term
        or leader.match.get(follower.id, -1) < leader.last
        or leader.known.get(follower.id, -1) < leader.commit
    )


def step(world: World, action: Action) -> None:
    """Apply one action and check the invariants."""
    kind, name = action[0], action[1]
    if kind in ("delete", "wreck"):
        invariants.check_deletion(world, name)
    if kind in _STORE_STEPS:
        sidecars.act(world, kind, world.stores[name])
    elif kind in _OPERATOR_STEPS:
        operators.act(world, kind, world.operators[name])
        if kind == "takeover" and world.spend("takeover"):
            world.budget["takeover"] -= 1
    elif kind in ("land", "vanish", "mute"):
        _land(world, kind, int(name))
    elif kind == "elect":
        replica = world.stores[name].replica
        assert replica is not None
        sidecars.elect(world, replica.id)
    elif kind == "replicate":
        _replicate(world, name, action[2])
    elif kind == "glimpse":
        world.budget["glimpse"] -= 1
        sidecars.glimpse(world, world.stores[name], action[2])
    elif kind == "lag":
        world.budget["lag"] -= 1
        sidecars.lag(world, world.stores[name], int(action[2]))
    else:
        faults.act(world, kind, name)
    invariants.check(world)


def _replicate(world: World, leader: str, follower: str) -> None:
    sender, receiver = world.stores[leader].replica, world.stores[follower].replica
    assert sender is not None
    assert receiver is not None
    raft.replicate(sender, receiver)


def _land(world: World, kind: str, number: int) -> None:
    flight = next(flight for flight in world.flights if flight.number == number)
    world.flights.remove(flight)
    if kind != "land":
        world.budget[kind] -= 1
    if kind == "vanish":
        return
    result = world.run(flight.txn)
    sender = _sender(world, flight)
    if kind == "mute" or sender.boot != flight.boot or sender.waiting != flight.number:
        return
    if isinstance(sender, Store):
        sidecars.on_result(world, sender, flight, result)
    else:
        operators.on_result(world, sender, flight, result)


def _sender(world: World, flight: InFlight) -> Store | Operator:
    return world.stores[flight.sender] if flight.sender in world.stores else world.operators[flight.sender]


# -- beginnings and ends ----------------------------------------------------------------------------------------------


def begin(scenario: Scenario) -> World:
    """Return a world with one operator in charge; if the scenario says so, with a ready and replicated table."""
    world = World(scenario)
    operators.act(world, "takeover", world.operators["o1"])
    _land(world, "land", 1)
    if scenario.ready:
        world.budget = {}
        _calm(world, random.Random(0), [])
        world.budget = dict(scenario.budget)
    return world


def settle(world: World, rng: random.Random, trace: list[Action]) -> None:
    """Stop all faults, recover, schedule fairly, and require that the last target is reached."""
    for flight in list(world.flights):
        _do(world, ("land", str(flight.number)), trace)
    world.budget = {}
    for action in list(faults.actions(world)):
        if action[0] in ("resume", "mend", "unblank", "restart", "declare", "readopt"):
            _do(world, action, trace)
    if world.desired.voters is not None and not target_of(world.desired, world.volumes(), world.scenario.stores)[1]:
        _do(world, ("desired", str(_first_valid_target(world))), trace)
    _calm(world, rng, trace)


def _first_valid_target(world: World) -> int:
    return next(index for index, desired in enumerate(world.scenario.targets) if desired.voters)


def _calm(world: World, rng: random.Random, trace: list[Action], steps: int = 3000) -> None:
    """Apply all possible actions fairly until nothing is left to do."""
    for _ in range(steps):
        if not world.flights and invariants.unfinished(world) is None:
            return
        todo = [action for action in actions(world) if _helps(world, action)]
        if not todo:
            break
        _do(world, rng.choice(todo), trace)
    raise Violation(f"stuck: {invariants.unfinished(world)}")


def _helps(world: World, action: Action) -> bool:
    """Whether an action is progress; giving up on a pending result or on a followed leader is not."""
    if action[0] in ("timeout", "give-up"):
        sender = world.stores.get(action[1]) or world.operators[action[1]]
        return all(flight.number != sender.waiting for flight in world.flights)
    if action[0] == "readopt":
        return not world.asked
    if action[0] == "takeover":
        return not any(faults.in_charge(world, operator) for operator in world.operators.values())
    return action[0] != "elect" or not _has_leader(world)


def _has_leader(world: World) -> bool:
    """Whether a leader exists that a quorum still follows; electing another one is then no progress."""
    for replica in world.replicas():
        applied = replica.applied()
        if not replica.leading or applied is None:
            continue
        followers = {
            voter
            for voter in applied.voter_ids()
            if (other := world.reach(replica.id, voter)) is not None and other.term <= replica.term
        }
        if applied.is_quorum(followers):
            return True
    return False


def _do(world: World, action: Action, trace: list[Action]) -> None:
    trace.append(action)
    step(world, action)


# -- searches ---------------------------------------------------------------------------------------------------------


def walk(
    scenario: Scenario, rng: random.Random, *, steps: int, likely: Mapping[str, float] = MappingProxyType({})
) -> tuple[Failure | None, tuple[Action, ...]]:
    """Walk at random with a random weight for each kind of action, then settle; return the failure and the trace."""
    weights: dict[str, float] = dict(likely)
    trace: list[Action] = []
    world = begin(scenario)
    try:
        for _ in range(steps):
            possible = list(actions(world))
            if not possible:
                break
            for action in possible:
                weights.setdefault(action[0], rng.choice((0.2, 1.0, 1.0, 4.0)))
            _do(world, rng.choices(possible, [weights[action[0]] for action in possible])[0], trace)
        _last_fault(world, rng, trace)
        settle(world, rng, trace)
    except _BROKEN as error:
        return _failure(error, scenario, trace), tuple(trace)
    return None, tuple(trace)


def _failure(error: Exception, scenario: Scenario, trace: Iterable[Action]) -> Failure:
    return Failure(f"{type(error).__name__}: {error}", scenario, tuple(trace))


def _last_fault(world: World, rng: random.Random, trace: list[Action]) -> None:
    """Lose a store just before settling, which is often the worst time."""
    losses = [action for action in faults.actions(world) if action[0] in ("lose", "wipe")]
    if losses and rng.random() < 0.5:
        _do(world, rng.choice(losses), trace)


def replay(failure: Failure) -> str | None:
    """Replay a trace; return the failure's message, or None."""
    world = begin(failure.scenario)
    world.budget = dict.fromkeys(faults.BUDGETED, len(failure.trace))
    try:
        for action in failure.trace:
            step(world, action)
    except _BROKEN as error:
        return _failure(error, failure.scenario, ()).message
    left = invariants.unfinished(world) if failure.stuck else None
    return None if left is None else f"{_STUCK}{left}"


_EAGER = (
    "land", "adopt", "deliver", "read", "start", "replicate", "lead", "elect", "check", "delete", "wreck", "confirm",
    "timeout", "give-up", "takeover", "operate", "declare", "undeclare", "resume", "mend", "unblank", "restart",
    "desired", "readopt",
)  # fmt: skip
_LAZY = (*_EAGER[1:15], "operate", "land", *_EAGER[16:])
SCHEDULES = {"eager": _EAGER, "lazy": _LAZY}
"""The usual schedules: transactions arrive at once, or as late as possible."""


class Exhausted(msgspec.Struct, frozen=True):
    """The result of an exhaustive search: a failure, or the number of states and whether these were all."""

    failure: Failure | None
    states: int
    complete: bool


def exhaust(
    scenario: Scenario, *, deviations: int, schedule: str = "eager", more: Callable[[int], bool] = lambda _: True
) -> Exhausted:
    """Run all interleavings with at most this many deviations from the usual schedule.

    Each run ends with the last target reached. States that are reached twice are explored once.
    """
    frontier: list[deque[tuple[World, tuple[Action, ...]]]] = [deque() for _ in range(deviations + 1)]
    frontier[0].append((begin(scenario), ()))
    seen: set[int] = set()
    for spent, level in enumerate(frontier):
        while level:
            world, trace = level.popleft()
            print_ = fingerprint(world)
            if print_ in seen:
                continue
            if not more(len(seen)):
                return Exhausted(None, len(seen), complete=False)
            seen.add(print_)
            usual = _usual(world, SCHEDULES[schedule])
            if usual is None and (left := invariants.unfinished(world)) is not None:
                return Exhausted(Failure(f"{_STUCK}{left}", scenario, trace), len(seen), complete=False)
            for action in list(actions(world)) if spent < deviations else [usual] if usual else []:
                twin = world.clone()
                try:
                    step(twin, action)
                except _BROKEN as error:
                    return Exhausted(_failure(error, scenario, (*trace, action)), len(seen), complete=False)
                frontier[spent + (action != usual)].append((twin, (*trace, action)))
    return Exhausted(None, len(seen), complete=True)


def _usual(world: World, schedule: tuple[str, ...]) -> Action | None:
    """Return the next action of the usual schedule; None if nothing is left to do."""
    likely = [action for action in actions(world) if action[0] in schedule and _helps(world, action)]
    return min(likely, key=lambda action: (schedule.index(action[0]), action), default=None)
