"""The protocol's configurations and those of the raft core are equivalent."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.records import Peer, Role, voters
from evenkeel_raft.core.confchange import apply_change
from evenkeel_raft.shared.raft_configurations import change_to, conf_of, configuration_of


@st.composite
def peer_sets(draw: st.DrawFn) -> tuple[Peer, ...]:
    """Some of six replicas, three each added by one plan, at least one of them a voter."""
    roles = draw(st.lists(st.sampled_from([Role.VOTER, Role.LEARNER, None]), min_size=6, max_size=6))
    peers = tuple(Peer(f"s{at}", f"v{at}", 1 + at // 3, role) for at, role in enumerate(roles) if role is not None)
    return peers if voters(peers) else (Peer("s0", "v0", 1, Role.VOTER),)


def _staged(target: tuple[Peer, ...], current: tuple[Peer, ...]) -> tuple[Peer, ...]:
    present = {peer.id for peer in current}
    return tuple(msgspec.structs.replace(peer, role=Role.LEARNER) for peer in target if peer.id not in present)


@given(peer_sets(), peer_sets())
def test_a_whole_change_takes_the_core_along(current: tuple[Peer, ...], target: tuple[Peer, ...]) -> None:
    """Staging, the final entry and leaving joint have the same effect in the core as in the protocol."""
    conf = conf_of(current)
    assert configuration_of(conf) == Configuration(tuple(sorted(current)))
    staging = Configuration(current, staged=_staged(target, current))
    conf = apply_change(conf, change_to(staging, conf))
    assert configuration_of(conf) == staging
    assert conf.staged
    same_voters = {peer.id for peer in voters(current)} == {peer.id for peer in voters(target)}
    final = Configuration(target, outgoing=() if same_voters else voters(current), token=7)
    conf = apply_change(conf, change_to(final, conf))
    assert configuration_of(conf) == final
    assert not conf.staged
    if final.joint:
        left = Configuration(target, token=7)
        conf = apply_change(conf, change_to(left, conf))
        assert configuration_of(conf) == left


@given(peer_sets(), peer_sets())
def test_staged_learners_are_dropped_again(current: tuple[Peer, ...], target: tuple[Peer, ...]) -> None:
    """Cancelling a change leaves the core unchanged, including its token."""
    conf = conf_of(current)
    staging = Configuration(current, staged=_staged(target, current))
    conf = apply_change(conf, change_to(staging, conf))
    conf = apply_change(conf, change_to(Configuration(current), conf))
    assert configuration_of(conf) == Configuration(current)


def test_an_empty_final_entry_carries_the_token() -> None:
    """If the group already runs the target, the entry changes only the token."""
    peers = (Peer("s0", "v0", 1), Peer("s1", "v1", 2, Role.LEARNER))
    conf = conf_of(peers)
    change = change_to(Configuration(peers, token=9), conf)
    assert change.changes == ()
    assert configuration_of(apply_change(conf, change)) == Configuration(peers, token=9)
