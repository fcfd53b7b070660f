"""Conversion between the protocol's configurations, made of peers, and the raft core's, made of numbers.

The core identifies a member by one number and carries opaque info for it: store, volume, replica id, and whether it is
a staged learner. So the core's configuration contains everything that the protocol's does, and survives failovers and
snapshots. A replica id is the number of the plan that added the replica. Two stores may share one, so a member's number
is derived from the store and the replica id.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import msgspec

from evenkeel.protocol.group_configuration import Configuration
from evenkeel.protocol.records import Peer, ReplicaId, Role
from evenkeel_raft.core.raft_types import JOINT, LEARNER, LEAVE, REMOVE, SIMPLE, VOTER, Change, Conf, ConfChange

__all__ = ["change_to", "conf_of", "configuration_of", "id_of", "member", "store_of"]


class _Info(msgspec.Struct, frozen=True, array_like=True):
    """A member's info in the core's configuration."""

    store: str
    volume: str
    replica: int
    staged: bool = False


_decoder = msgspec.msgpack.Decoder(_Info)


def member(replica: ReplicaId) -> int:
    """Return the number that identifies this replica in raft messages and logs; every store computes the same one.

    It is 62 bits of a hash: in a group with a hundred members over its lifetime, two collide with probability 10**-15.
    """
    digest = hashlib.blake2b(msgspec.msgpack.encode(replica), digest_size=8).digest()
    return (int.from_bytes(digest, "little") >> 2) or 1


def conf_of(peers: Iterable[Peer]) -> Conf:
    """Return the core's first configuration of a new group."""
    members = sorted((member(peer.id), peer) for peer in peers)
    return Conf(
        voters=tuple(number for number, peer in members if peer.role is Role.VOTER),
        learners=tuple(number for number, peer in members if peer.role is Role.LEARNER),
        info={number: _info(peer, staged=False) for number, peer in members},
    )


def configuration_of(conf: Conf) -> Configuration:
    """Return the protocol's configuration for one of the core's."""
    staged = [number for number in conf.learners if _read(conf, number).staged]
    settled = [number for number in conf.learners if number not in staged]
    peers = [_peer(conf, number, Role.VOTER) for number in conf.voters]
    peers += [_peer(conf, number, Role.LEARNER) for number in (*settled, *conf.learners_next)]
    return Configuration(
        peers=tuple(sorted(peers)),
        outgoing=tuple(sorted(_peer(conf, number, Role.VOTER) for number in conf.outgoing)),
        staged=tuple(sorted(_peer(conf, number, Role.LEARNER) for number in staged)),
        token=conf.token,
    )


def id_of(conf: Conf, number: int) -> ReplicaId:
    """Return a member's store and replica id."""
    info = _read(conf, number)
    return (info.store, info.replica)


def store_of(conf: Conf, number: int) -> str:
    """Return a member's store."""
    return _read(conf, number).store


def change_to(target: Configuration, conf: Conf) -> ConfChange:
    """Return the change that takes a group from `conf` to the configuration that the protocol proposes."""
    current = configuration_of(conf)
    if current.joint:
        return ConfChange(LEAVE, (), target.token)
    if target.peers == current.peers and target.token == current.token:
        return ConfChange(SIMPLE, tuple(_staging(target, current)), target.token, staged=True)
    transition = JOINT if target.outgoing else SIMPLE
    return ConfChange(transition, tuple(_final(target, conf)), target.token)


def _staging(target: Configuration, current: Configuration) -> Iterable[Change]:
    wanted = {peer.id for peer in target.staged}
    present = {peer.id for peer in current.staged}
    for peer in target.staged:
        if peer.id not in present:
            yield Change(LEARNER, member(peer.id), _info(peer, staged=True))
    for peer in current.staged:
        if peer.id not in wanted:
            yield Change(REMOVE, member(peer.id))


def _final(target: Configuration, conf: Conf) -> Iterable[Change]:
    """Yield only actual changes: outside a joint change the core refuses to list voters."""
    kept = {member(peer.id): peer for peer in target.peers}
    for number, peer in kept.items():
        is_voter, was_voter = peer.role is Role.VOTER, number in conf.voters
        if is_voter != was_voter or number not in conf.info or _read(conf, number).staged:
            yield Change(VOTER if is_voter else LEARNER, number, _info(peer, staged=False))
    for number in conf.members():
        if number not in kept:
            yield Change(REMOVE, number)


def _info(peer: Peer, *, staged: bool) -> bytes:
    return msgspec.msgpack.encode(_Info(peer.store, peer.volume, peer.replica, staged))


def _read(conf: Conf, number: int) -> _Info:
    return _decoder.decode(conf.info[number])


def _peer(conf: Conf, number: int, role: Role) -> Peer:
    info = _read(conf, number)
    return Peer(info.store, info.volume, info.replica, role)
