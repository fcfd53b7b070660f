"""Between the protocol's configurations, made of peers, and the raft core's, made of numbers.

The core knows members by replica id and carries along what it is told of each: store, volume, and whether the member is
a learner that is only being filled. With that, the core's configuration says all that the protocol's does, and
survives a failover and a snapshot as one.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from evenkeel.protocol.configuration import Configuration
from evenkeel.protocol.records import Peer, Role
from evenkeel_raft.core.types import JOINT, LEARNER, LEAVE, REMOVE, SIMPLE, VOTER, Change, Conf, ConfChange

__all__ = ["change_to", "conf_of", "configuration_of"]


class _Info(msgspec.Struct, frozen=True, array_like=True):
    """What is kept of a member beside its number."""

    store: str
    volume: str
    staged: bool = False


_decoder = msgspec.msgpack.Decoder(_Info)


def conf_of(peers: Iterable[Peer]) -> Conf:
    """The core's configuration a new group begins with."""
    members = sorted(peers, key=lambda peer: peer.replica)
    return Conf(
        voters=tuple(peer.replica for peer in members if peer.role is Role.VOTER),
        learners=tuple(peer.replica for peer in members if peer.role is Role.LEARNER),
        info={peer.replica: _info(peer, staged=False) for peer in members},
    )


def configuration_of(conf: Conf) -> Configuration:
    """The core's configuration as the protocol sees it."""
    staged = [replica for replica in conf.learners if _read(conf, replica).staged]
    settled = [replica for replica in conf.learners if replica not in staged]
    peers = [_peer(conf, replica, Role.VOTER) for replica in conf.voters]
    peers += [_peer(conf, replica, Role.LEARNER) for replica in (*settled, *conf.learners_next)]
    return Configuration(
        peers=tuple(sorted(peers)),
        outgoing=tuple(sorted(_peer(conf, replica, Role.VOTER) for replica in conf.outgoing)),
        staged=tuple(sorted(_peer(conf, replica, Role.LEARNER) for replica in staged)),
        token=conf.token,
    )


def change_to(target: Configuration, conf: Conf) -> ConfChange:
    """The entry that takes the group from `conf` to the configuration the protocol proposes."""
    current = configuration_of(conf)
    if current.joint:
        return ConfChange(LEAVE, (), target.token)
    if target.peers == current.peers and target.token == current.token:
        return ConfChange(SIMPLE, tuple(_staging(target, current)), target.token, staged=True)
    transition = JOINT if target.outgoing else SIMPLE
    return ConfChange(transition, tuple(_final(target, conf)), target.token)


def _staging(target: Configuration, current: Configuration) -> Iterable[Change]:
    wanted = {peer.replica for peer in target.staged}
    present = {peer.replica for peer in current.staged}
    for peer in target.staged:
        if peer.replica not in present:
            yield Change(LEARNER, peer.replica, _info(peer, staged=True))
    for peer in current.staged:
        if peer.replica not in wanted:
            yield Change(REMOVE, peer.replica)


def _final(target: Configuration, conf: Conf) -> Iterable[Change]:
    """Only what changes: the core refuses to be told of voters outside a joint change."""
    kept = {peer.replica for peer in target.peers}
    for peer in target.peers:
        is_voter, was_voter = peer.role is Role.VOTER, peer.replica in conf.voters
        if is_voter != was_voter or peer.replica not in conf.info or _read(conf, peer.replica).staged:
            yield Change(VOTER if is_voter else LEARNER, peer.replica, _info(peer, staged=False))
    for replica in conf.members():
        if replica not in kept:
            yield Change(REMOVE, replica)


def _info(peer: Peer, *, staged: bool) -> bytes:
    return msgspec.msgpack.encode(_Info(peer.store, peer.volume, staged))


def _read(conf: Conf, replica: int) -> _Info:
    return _decoder.decode(conf.info[replica])


def _peer(conf: Conf, replica: int, role: Role) -> Peer:
    info = _read(conf, replica)
    return Peer(info.store, info.volume, replica, role)
