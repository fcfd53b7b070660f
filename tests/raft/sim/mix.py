"""The faults that a seed injects.

Most seeds enable few faults, so that each can be extreme; some enable all, to find interactions.
"""

from __future__ import annotations

from random import Random

from msgspec import Struct
from msgspec.structs import replace


class Mix(Struct, frozen=True):
    """Probabilities per event; periods in milliseconds, 0 for never."""

    stores: int = 5
    voters: int = 3
    learners: int = 0
    election_ticks: int = 10
    loss: float = 0.0
    duplication: float = 0.0
    delay: int = 3  # typical delay of a message
    tail: float = 0.0  # probability of a message that takes up to a second
    disk_delay: int = 2
    persisted_late: float = 0.0
    apply_delay: int = 2
    apply_sticks: float = 0.0  # probability that applying one batch takes very long
    take_late: float = 0.0
    skew: float = 0.0  # how far clocks run apart
    partition_every: int = 0
    crash_every: int = 0
    pause_every: int = 0
    wipe_every: int = 0
    disk_fails_every: int = 0
    churn_every: int = 0
    transfer_every: int = 0
    compact_every: int = 0
    quiesce_every: int = 0
    store_gone_every: int = 0
    store_late: float = 0.0  # probability that a restarted sidecar has to wait for its state machine
    store_damage: float = 0.0  # probability that a restart finds the state machine empty
    checkpoint: float = 0.5  # probability that a batch is durable in the state machine once applied
    small_messages: bool = False
    hasty_change: float = 0.0  # probability that a change does not wait for catch-up
    clients: int = 4
    one_read: bool = False  # a store has one read index request at a time, so none may hang
    same_id_after_wipe: bool = False  # a bug that must be caught; never drawn


def draw(seed: int) -> Mix:
    """Draw the mix of a seed."""
    rng = Random(f"mix {seed}")
    mix = _storm(rng, _swarm(rng)) if rng.random() < 0.25 else _swarm(rng)
    return replace(mix, disk_fails_every=rng.randint(100, 1500)) if rng.random() < 0.25 else mix


def _swarm(rng: Random) -> Mix:
    def sometimes(probability: float, low: int, high: int) -> int:
        return rng.randint(low, high) if rng.random() < probability else 0

    def at_times(probability: float, most: float) -> float:
        return rng.random() * most if rng.random() < probability else 0.0

    voters = rng.choice((1, 2, 3, 3, 3, 5))
    return Mix(
        stores=voters + rng.randint(0, 3),
        voters=voters,
        learners=rng.choice((0, 0, 1, 2)),
        election_ticks=rng.choice((5, 10, 10)),
        loss=at_times(0.5, 0.25),
        duplication=at_times(0.4, 0.3),
        delay=rng.choice((1, 3, 3, 15, 40)),
        tail=at_times(0.3, 0.1),
        disk_delay=rng.choice((0, 1, 3, 20)),
        persisted_late=at_times(0.4, 0.8),
        apply_delay=rng.choice((0, 2, 20)),
        apply_sticks=at_times(0.3, 0.4),
        take_late=at_times(0.7, 0.6),
        skew=at_times(0.4, 0.6),
        partition_every=sometimes(0.6, 150, 1500),
        crash_every=sometimes(0.6, 100, 1500),
        pause_every=sometimes(0.4, 150, 1500),
        wipe_every=sometimes(0.3, 500, 3000),
        churn_every=sometimes(0.7, 100, 1000),
        transfer_every=sometimes(0.4, 100, 1000),
        compact_every=sometimes(0.6, 10, 500),
        quiesce_every=sometimes(0.5, 20, 400),
        store_gone_every=sometimes(0.4, 50, 1000),
        store_late=at_times(0.3, 0.8),
        store_damage=at_times(0.4, 1.0),
        checkpoint=rng.choice((0.05, 0.5, 1.0)),
        small_messages=rng.random() < 0.3,
        hasty_change=at_times(0.3, 1.0),
        clients=rng.choice((2, 4, 8)),
        one_read=rng.random() < 0.5,
    )


def _storm(rng: Random, mix: Mix) -> Mix:
    return replace(
        mix,
        stores=7,
        voters=rng.choice((2, 3, 5)),
        loss=rng.random() * 0.15,
        duplication=rng.random() * 0.2,
        take_late=rng.random() * 0.6,
        skew=rng.random() * 1.2,
        partition_every=rng.randint(150, 600),
        crash_every=rng.randint(100, 400),
        pause_every=rng.choice((0, 300)),
        wipe_every=rng.choice((0, 400)),
        churn_every=rng.randint(80, 300),
        transfer_every=rng.choice((0, 150)),
        compact_every=rng.randint(30, 100),
        quiesce_every=rng.choice((0, 50)),
        store_gone_every=rng.choice((0, 200)),
        apply_sticks=rng.choice((0.0, 0.0, 0.3)),
        store_late=0.3,
        store_damage=0.5,
        checkpoint=rng.choice((0.05, 0.5)),
    )


def calm(mix: Mix) -> Mix:
    """Return the mix without its faults; the group must then converge."""
    return Mix(
        stores=mix.stores,
        voters=mix.voters,
        learners=mix.learners,
        election_ticks=mix.election_ticks,
        # Slow or reordered messages are not faults. But a round trip must fit into the election timeout: where all of
        # four voters must agree, elections could otherwise fail for any length of time.
        delay=min(mix.delay, 3 * mix.election_ticks // 2),
        small_messages=mix.small_messages,
        take_late=mix.take_late,
        quiesce_every=mix.quiesce_every,
        checkpoint=1.0,
        one_read=mix.one_read,
    )
