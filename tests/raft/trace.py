"""Formats messages, entries and configurations for scenario traces."""

from __future__ import annotations

from evenkeel_raft.core.raft_messages import (
    Append,
    AppendResponse,
    CommitNotice,
    Heartbeat,
    HeartbeatResponse,
    InstallSnapshot,
    Message,
    ReadRequest,
    ReadResponse,
    SnapshotRequest,
    VoteRequest,
    VoteResponse,
)
from evenkeel_raft.core.raft_types import (
    CONF,
    JOINT,
    LEARNER,
    LEAVE,
    NOOP,
    VOTER,
    Conf,
    ConfChange,
    Entry,
    HardState,
    decode_conf_change,
)


def show_change(change: ConfChange) -> str:
    name = {JOINT: "joint", LEAVE: "leave"}.get(change.transition, "simple")
    ops = [f"{ {VOTER: '+', LEARNER: '~'}.get(c.op, '-') }{c.replica}" for c in change.changes]
    return " ".join([name, *ops, *_order(change.token, change.staged)])


def _order(token: int, staged: bool) -> list[str]:
    return [f"token={token}"] * bool(token) + ["staged"] * staged


def show_conf(conf: Conf) -> str:
    parts = ["{" + ",".join(map(str, conf.voters)) + "}"]
    if conf.outgoing:
        parts.append("from {" + ",".join(map(str, conf.outgoing)) + "}")
    for name, replicas in (("learners", conf.learners), ("next", conf.learners_next)):
        if replicas:
            parts.append(f"{name}={','.join(map(str, replicas))}")
    return " ".join(parts + _order(conf.token, conf.staged))


def show_entry(entry: Entry) -> str:
    at = f"{entry.index}/{entry.term}"
    if entry.kind == CONF:
        return f"{at} <{show_change(decode_conf_change(entry.data))}>"
    return f"{at} noop" if entry.kind == NOOP else f"{at} {entry.data.decode(errors='replace')}"


def show_entries(entries: list[Entry]) -> str:
    return "[" + ", ".join(map(show_entry, entries)) + "]"


def show_hard_state(state: HardState) -> str:
    return f"term={state.term} vote={state.vote} commit={state.commit}"


def show_message(message: Message) -> str:
    return f"{message.sender}->{message.receiver} {_body(message)}"


def _body(m: Message) -> str:  # noqa: PLR0912  one case per kind of message
    name = type(m).__name__
    match m:
        case VoteRequest():
            name = "PreVoteRequest" if m.pre else name
            detail = f"last={m.last_index}/{m.last_term} commit={m.commit}" + " transfer" * m.transfer
        case VoteResponse():
            name = "PreVoteResponse" if m.pre else name
            detail = ("granted" if m.granted else "refused") + f" commit={m.commit}"
        case Append():
            detail = f"prev={m.prev_index}/{m.prev_term} commit={m.commit} {show_entries(m.entries)}"
        case AppendResponse() if m.rejected:
            detail = f"rejected={m.index} hint={m.hint_index}/{m.hint_term}"
        case AppendResponse():
            detail = f"index={m.index} commit={m.commit}"
        case Heartbeat():
            detail = f"commit={m.commit} round={m.context}" + " quiesce" * m.quiesce
        case HeartbeatResponse():
            detail = f"round={m.context} commit={m.commit}"
        case CommitNotice():
            detail = f"commit={m.commit}"
        case InstallSnapshot():
            detail = f"at={m.meta.index}/{m.meta.term} {show_conf(m.meta.conf)}" + " repair" * m.repair
        case SnapshotRequest():
            detail = f"from={m.index}"
        case ReadRequest():
            detail = ""
        case ReadResponse():
            detail = f"index={m.index}"
        case _:
            detail = ""
    return f"{name} term={m.term} {detail}".rstrip()
