"""Configuration changes: pure functions from a configuration and a change to the next configuration.

Voters change only through a joint configuration, even when a single voter changes. A one-step change would save one log
entry, but is safe only under conditions that are easy to violate (jraft removed that shortcut). A voter that is demoted
keeps its vote in the outgoing half and waits in `learners_next`; a promotion takes effect immediately.
"""

from __future__ import annotations

from collections.abc import Sequence

from evenkeel_raft.core.errors import Refusal, RefusedError
from evenkeel_raft.core.raft_types import JOINT, LEARNER, LEAVE, SIMPLE, VOTER, Change, Conf, ConfChange

__all__ = ["apply_change", "enter_joint", "leave", "leave_joint", "simple"]


def apply_change(conf: Conf, change: ConfChange) -> Conf:
    """Return the configuration after the change; raises `RefusedError` if the change is not valid."""
    if change.transition == LEAVE:
        if change.changes:
            raise _bad("leaving a joint configuration must not list changes")
        return leave_joint(conf, token=change.token, staged=change.staged)
    if change.transition == JOINT:
        return enter_joint(conf, change.changes, token=change.token, staged=change.staged)
    if change.transition == SIMPLE:
        return simple(conf, change.changes, token=change.token, staged=change.staged)
    raise _bad(f"unknown transition {change.transition}")


def enter_joint(conf: Conf, changes: Sequence[Change], *, token: int, staged: bool) -> Conf:
    """Return the joint configuration whose outgoing half is the present voters."""
    if conf.joint:
        raise _bad("already joint; leave it first")
    if not conf.voters:
        raise _bad("the configuration has no voters")
    _check_changes(changes)
    voters, learners, learners_next = set(conf.voters), set(conf.learners), set[int]()
    for change in changes:
        replica = change.replica
        if change.op == LEARNER:
            if replica in voters:
                learners_next.add(replica)
            else:
                learners.add(replica)
            voters.discard(replica)
            continue
        learners.discard(replica)
        if change.op == VOTER:
            voters.add(replica)
        else:
            voters.discard(replica)
    if not voters:
        raise _bad("no voters would remain")
    return _conf(
        voters=voters,
        outgoing=conf.voters,
        learners=learners,
        learners_next=learners_next,
        token=token,
        staged=staged,
        info=_merged_info(conf, changes),
    )


def leave_joint(conf: Conf, *, token: int, staged: bool) -> Conf:
    """Return the configuration that follows a joint one."""
    if not conf.joint:
        raise _bad("not joint; there is nothing to leave")
    return _conf(
        voters=conf.voters,
        learners={*conf.learners, *conf.learners_next},
        token=token,
        staged=staged,
        info=conf.info,
    )


def leave(conf: Conf) -> ConfChange:
    """Return the change that leaves a joint configuration; it keeps the token."""
    return ConfChange(LEAVE, (), conf.token, conf.staged)


def simple(conf: Conf, changes: Sequence[Change], *, token: int, staged: bool) -> Conf:
    """Return the configuration with learners added or removed, or with only a new token."""
    if conf.joint:
        raise _bad("the configuration is joint; leave it first")
    _check_changes(changes)
    learners = set(conf.learners)
    for change in changes:
        if change.op == VOTER or change.replica in conf.voters:
            raise _bad(f"replica {change.replica}: voters change only through a joint configuration")
        if change.op == LEARNER:
            learners.add(change.replica)
        else:
            learners.discard(change.replica)
    return _conf(
        voters=conf.voters,
        learners=learners,
        token=token,
        staged=staged,
        info=_merged_info(conf, changes),
    )


def _check_changes(changes: Sequence[Change]) -> None:
    named = [change.replica for change in changes]
    if len(set(named)) != len(named):
        raise _bad("a replica is named twice")
    for change in changes:
        if change.replica <= 0 or change.op not in (0, 1, 2):
            raise _bad(f"invalid replica id {change.replica} or operation {change.op}")


def _merged_info(conf: Conf, changes: Sequence[Change]) -> dict[int, bytes]:
    return {**conf.info, **{change.replica: change.info for change in changes if change.info}}


def _conf(
    *,
    voters: set[int] | tuple[int, ...],
    learners: set[int],
    token: int,
    staged: bool,
    info: dict[int, bytes],
    outgoing: tuple[int, ...] = (),
    learners_next: set[int] | tuple[int, ...] = (),
) -> Conf:
    members = {*voters, *outgoing, *learners}
    return Conf(
        voters=tuple(sorted(voters)),
        outgoing=outgoing,
        learners=tuple(sorted(learners)),
        learners_next=tuple(sorted(learners_next)),
        token=token,
        staged=staged,
        info={replica: info[replica] for replica in sorted(members) if replica in info},
    )


def _bad(detail: str) -> RefusedError:
    return RefusedError(Refusal.BAD_CHANGE, detail=detail)
