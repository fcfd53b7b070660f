"""Runs scenario files: a command, `----`, and the trace it must leave.

    python -m tests.raft.scenario --rewrite [name ...]     rewrites the traces; review the diff, then commit

A scenario drives real nodes over a modelled network, disk and state machine, which act only on commands.
Commands (N is a replica id):

    group voters=1,2,3 [learners=4]       start a group from a genesis configuration
    join N                                start an empty replica
    tick N [count]     campaign N     propose N text...     read N context     transfer N to
    change N joint|simple|leave [+4 ~3 -2] [token=7] [staged]
    take N                                show the node's `ready`, and start its work
    persist N [count]                     complete writes;      apply N: complete applying
    deliver [from=1] [to=2] [kind=Append] [count=1] [again] [last]     `again` leaves a copy, `last` begins at the end
    drop    [from=1] [to=2] [kind=Append] [count=1]
    settle [only=1,2]                     complete all outstanding work, of all replicas or some
    forget N ...                          let time pass until their leader's lease expires
    elect N [with=2,3]                    expire the leases of all or some, and let N win an election
    isolate N ... | heal                  isolate replicas, and heal the network
    crash N [survive=0]                   crash; keep that many records of the writes in progress
    restart N [applied=3]
    compact N index | snapshot N to [index] | report N to
    quiesce N [lost=3] | wake N
    forge from=9 to=1 [at=4] term=2 kind=Heartbeat [field=value ...]     deliver a forged message
    log N | status N | peers N | network

`silently` before a command shows only refusals.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Callable, Iterator
from pathlib import Path

from evenkeel_raft.core import raft_messages as kinds
from evenkeel_raft.core.errors import InvariantError, RefusedError
from evenkeel_raft.core.raft_messages import Message
from evenkeel_raft.core.raft_types import (
    EMPTY_META,
    JOINT,
    LEARNER,
    LEAVE,
    REMOVE,
    ROLE_NAMES,
    SIMPLE,
    VOTER,
    Change,
    Conf,
    ConfChange,
    Entry,
    Settings,
    SnapshotMeta,
    genesis,
)
from evenkeel_raft.core.rawnode import RawNode, Ready
from tests.raft.sim.disk import Disk
from tests.raft.trace import show_conf, show_entries, show_hard_state, show_message

FOLDER = Path(__file__).parent / "scenarios"
SETTINGS = Settings(election_ticks=10, heartbeat_ticks=2, max_append_bytes=4096)
_OPS = {"+": VOTER, "~": LEARNER, "-": REMOVE}
_TRANSITIONS = {"joint": JOINT, "simple": SIMPLE, "leave": LEAVE}


class Host:
    """A node with its disk and its state machine's pending work."""

    def __init__(self, replica: int, meta: SnapshotMeta) -> None:
        self.replica = replica
        self.disk = Disk(meta)
        self.applied = meta.index
        self.work: list[SnapshotMeta | list[Entry]] = []
        self.down = False
        self.node = self.start(meta.index)

    def start(self, applied: int) -> RawNode:
        disk = self.disk
        self.down = False
        self.applied = applied
        self.work = []
        self.node = RawNode(
            group=1,
            replica=self.replica,
            rng=random.Random(self.replica),
            settings=SETTINGS,
            meta=disk.meta,
            hard_state=disk.hard_state,
            entries=list(disk.entries),
            applied=applied,
        )
        return self.node


class Scenario:
    """One run; `run` takes a command and returns its trace."""

    def __init__(self) -> None:
        self.hosts: dict[int, Host] = {}
        self.network: list[Message] = []
        self.isolated: set[int] = set()
        self.lines: list[str] = []

    def run(self, command: str) -> str:
        """Run a command and return its trace."""
        words = command.split()
        silently = words[0] == "silently"
        if silently:
            words = words[1:]
        self.lines = []
        handler: Callable[[list[str], dict[str, str]], None] = getattr(self, f"do_{words[0]}")
        options = dict(word.split("=", 1) for word in words[1:] if "=" in word)
        try:
            handler([word for word in words[1:] if "=" not in word], options)
        except RefusedError as error:
            return f"refused: {error}"
        except InvariantError as error:
            return f"broken: {error}"
        return "ok" if silently or not self.lines else "\n".join(self.lines)

    def say(self, line: str) -> None:
        self.lines.append(line)

    def host(self, args: list[str]) -> Host:
        return self.hosts[int(args[0])]

    # Making groups

    def do_group(self, args: list[str], options: dict[str, str]) -> None:
        conf = Conf(voters=_ids(options["voters"]), learners=_ids(options.get("learners", "")))
        for replica in conf.members():
            self.hosts[replica] = Host(replica, genesis(conf))

    def do_join(self, args: list[str], options: dict[str, str]) -> None:
        replica = int(args[0])
        self.hosts[replica] = Host(replica, EMPTY_META)

    # Requests

    def do_tick(self, args: list[str], options: dict[str, str]) -> None:
        for _ in range(int(args[1]) if len(args) > 1 else 1):
            self.host(args).node.tick()

    def do_campaign(self, args: list[str], options: dict[str, str]) -> None:
        self.host(args).node.campaign()

    def do_propose(self, args: list[str], options: dict[str, str]) -> None:
        self.host(args).node.propose_many([text.encode() for text in args[1:]])

    def do_change(self, args: list[str], options: dict[str, str]) -> None:
        ops = tuple(Change(_OPS[word[0]], int(word[1:])) for word in args[2:] if word[0] in _OPS)
        token = int(options.get("token", 0))
        change = ConfChange(_TRANSITIONS[args[1]], ops, token, "staged" in args)
        self.host(args).node.propose_conf(change)

    def do_read(self, args: list[str], options: dict[str, str]) -> None:
        self.host(args).node.read_index(int(args[1]))

    def do_transfer(self, args: list[str], options: dict[str, str]) -> None:
        self.host(args).node.transfer(int(args[1]))

    def do_quiesce(self, args: list[str], options: dict[str, str]) -> None:
        quiesced = self.host(args).node.quiesce(lost=_ids(options.get("lost", "")))
        self.say("quiesced" if quiesced else "not yet")

    def do_wake(self, args: list[str], options: dict[str, str]) -> None:
        self.host(args).node.wake()

    # Work

    def do_take(self, args: list[str], options: dict[str, str]) -> None:
        if not self._take(self.host(args)):
            self.say("nothing")

    def _take(self, host: Host) -> bool:
        out = host.node.ready()
        before = len(self.lines)
        self._show(host.replica, out)
        self._post(out.messages)
        if out.append is not None:
            host.disk.queue.append(out.append)
        if out.restore is not None:
            host.work.append(out.restore)
        if out.apply:
            host.work.append(out.apply)
        return len(self.lines) > before

    def _show(self, replica: int, out: Ready) -> None:
        soft = out.soft_state
        if soft is not None:
            self.say(f"{replica} is {ROLE_NAMES[soft.role]} term={soft.term} leader={soft.leader}")
        for message in out.messages:
            self.say(f"{replica} sends {show_message(message)}")
        if out.append is not None:
            parts = []
            if out.append.snapshot is not None:
                parts.append(f"snapshot {out.append.snapshot.index}/{out.append.snapshot.term}")
            if out.append.entries:
                parts.append(show_entries(out.append.entries))
            if out.append.hard_state is not None:
                parts.append(show_hard_state(out.append.hard_state))
            self.say(f"{replica} writes {'; '.join(parts) or 'nothing'}")
            for message in out.append.responses:
                self.say(f"  then {show_message(message)}")
        if out.restore is not None:
            self.say(f"{replica} restores {out.restore.index}/{out.restore.term} {show_conf(out.restore.conf)}")
        if out.apply:
            self.say(f"{replica} applies {show_entries(out.apply)}")
        for read in out.read_states:
            self.say(f"{replica} reads {read.context} at {read.index or 'nothing: ask again'}")
        if out.snapshots:
            self.say(f"{replica} wants snapshots for {out.snapshots}")

    def do_persist(self, args: list[str], options: dict[str, str]) -> None:
        host = self.host(args)
        count = int(args[1]) if len(args) > 1 else len(host.disk.queue)
        for _ in range(count):
            batch = host.disk.sync()
            self._post(batch.responses)
            host.node.on_persisted(batch.token)

    def do_apply(self, args: list[str], options: dict[str, str]) -> None:
        host = self.host(args)
        for item in host.work:
            host.applied = item.index if isinstance(item, SnapshotMeta) else item[-1].index
            host.node.on_applied(host.applied)
        host.work = []

    def do_settle(self, args: list[str], options: dict[str, str]) -> None:
        among = self._among(options.get("only"))
        while self._round(among):
            pass

    def _among(self, names: str | None) -> set[int]:
        return set(_ids(names)) if names else set(self.hosts)

    def _round(self, among: set[int]) -> bool:
        busy = False
        for replica in sorted(among):
            host = self.hosts.get(replica)
            if host is not None and not host.down:
                busy = self._work(host) or busy
        for message in [m for m in self.network if m.sender in among and m.receiver in among]:
            _remove(self.network, message)
            self._receive(message)
            busy = True
        return busy

    def do_forget(self, args: list[str], options: dict[str, str]) -> None:
        for replica in args:
            raft = self.hosts[int(replica)].node._raft
            raft.become_follower(raft.term, 0)

    def do_elect(self, args: list[str], options: dict[str, str]) -> None:
        candidate = self.host(args)
        among = self._among(options.get("with")) | {candidate.replica}
        self.do_forget([str(replica) for replica in among], {})
        for _ in range(2):  # the first attempt may only tell the candidate of a newer term
            candidate.node.campaign()
            while not candidate.node.leading and self._round(among):
                pass
        self.lines = [] if candidate.node.leading else [f"{candidate.replica} does not win"]

    def _work(self, host: Host) -> bool:
        busy = self._take(host)
        if host.disk.queue:
            self.do_persist([str(host.replica)], {})
            busy = True
        if host.work:
            self.do_apply([str(host.replica)], {})
            busy = True
        return busy

    # Network

    def _post(self, messages: list[Message]) -> None:
        self.network += [m for m in messages if not self.isolated & {m.sender, m.receiver}]

    def do_isolate(self, args: list[str], options: dict[str, str]) -> None:
        self.isolated |= {int(word) for word in args}
        messages, self.network = self.network, []
        self._post(messages)

    def do_heal(self, args: list[str], options: dict[str, str]) -> None:
        self.isolated = set()

    def _receive(self, message: Message, at: int | None = None) -> None:
        host = self.hosts.get(message.receiver if at is None else at)
        if host is None or host.down:
            return
        refusal = host.node.step(message)
        if refusal is not None:
            self.say(f"{host.replica} refuses {show_message(message)}: {refusal.name}")

    def _matching(self, options: dict[str, str], *, last: bool = False) -> Iterator[Message]:
        limit = int(options.get("count", len(self.network)))
        for message in reversed(self.network) if last else list(self.network):
            fits = (
                message.sender == int(options.get("from", message.sender))
                and message.receiver == int(options.get("to", message.receiver))
                and type(message).__name__ == options.get("kind", type(message).__name__)
            )
            if fits and limit > 0:
                limit -= 1
                yield message

    def do_deliver(self, args: list[str], options: dict[str, str]) -> None:
        for message in list(self._matching(options, last="last" in args)):
            if "again" not in args:
                _remove(self.network, message)
            self.say(show_message(message))
            self._receive(message)

    def do_drop(self, args: list[str], options: dict[str, str]) -> None:
        for message in self._matching(options):
            _remove(self.network, message)
            self.say(f"lost: {show_message(message)}")

    def do_forge(self, args: list[str], options: dict[str, str]) -> None:
        header = (
            int(options.get("group", 1)),
            int(options.get("generation", 0)),
            int(options["from"]),
            int(options["to"]),
            int(options["term"]),
        )
        kind: type[Message] = getattr(kinds, options["kind"])
        names = [name for name in kind.__struct_fields__ if name not in Message.__struct_fields__]
        fields = [_value(options.get(name, "0")) for name in names]
        message = kind(*header, *fields)
        self.say(show_message(message))
        self._receive(message, at=int(options.get("at", message.receiver)))

    def do_network(self, args: list[str], options: dict[str, str]) -> None:
        for message in self.network:
            self.say(show_message(message))

    # Life and death

    def do_crash(self, args: list[str], options: dict[str, str]) -> None:
        host = self.host(args)
        host.disk.crash(int(options.get("survive", 0)))
        host.down = True
        self.say(f"disk: {show_hard_state(host.disk.hard_state)} {show_entries(host.disk.entries)}")

    def do_restart(self, args: list[str], options: dict[str, str]) -> None:
        host = self.host(args)
        if not host.down:
            host.disk.crash(0)
        host.start(int(options.get("applied", host.applied)))

    def do_wipe(self, args: list[str], options: dict[str, str]) -> None:
        del self.hosts[int(args[0])]

    # Snapshots and compaction

    def do_compact(self, args: list[str], options: dict[str, str]) -> None:
        host = self.host(args)
        meta = host.node.compact(int(args[1]))
        host.disk.compact(meta)
        self.say(f"log begins at {meta.index}/{meta.term} {show_conf(meta.conf)}")

    def do_snapshot(self, args: list[str], options: dict[str, str]) -> None:
        host = self.host(args)
        host.node.snapshots.send(int(args[1]), int(args[2]) if len(args) > 2 else host.applied)

    def do_report(self, args: list[str], options: dict[str, str]) -> None:
        self.host(args).node.snapshots.report(int(args[1]))

    # Looking

    def do_log(self, args: list[str], options: dict[str, str]) -> None:
        log = self.host(args).node._raft.log
        self.say(f"after {log.offset}/{log.offset_term}: {show_entries(log.entries(log.offset, log.last_index))}")
        self.say(f"durable={log.durable} committed={log.committed} applied={log.applied}")

    def do_status(self, args: list[str], options: dict[str, str]) -> None:
        status = self.host(args).node.status()
        self.say(
            f"{status.role} term={status.term} leader={status.leader} last={status.last_index} "
            f"committed={status.committed} applied={status.applied}"
        )
        self.say(f"applied at {status.applied_conf.index}: {show_conf(status.conf)}")
        newest = status.newest
        self.say(
            f"newest at {newest.index}: token={newest.token}" + " staged" * newest.staged + " joint" * newest.joint
        )
        if status.peers:
            self.say(f"a quorum knows commit {status.commit_known}")

    def do_peers(self, args: list[str], options: dict[str, str]) -> None:
        for replica, peer in self.host(args).node.status().peers.items():
            self.say(f"{replica}: {peer.state} match={peer.match} next={peer.next} commit={peer.commit}")


def _remove(network: list[Message], message: Message) -> None:
    """Take out this very message: another may be equal to it."""
    at = next(i for i, other in enumerate(network) if other is message)
    del network[at]


def _ids(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(",") if word)


def _value(text: str) -> object:
    if text in ("true", "false"):
        return text == "true"
    return [] if text == "[]" else int(text)


# Files


def blocks(text: str) -> Iterator[tuple[list[str], str, str]]:
    """Split a file into (comment lines, command, expected trace)."""
    for block in text.strip("\n").split("\n\n"):
        lines = block.split("\n")
        comments = [line for line in lines if line.startswith("#")]
        rest = lines[len(comments) :]
        if not rest:
            yield comments, "", ""
            continue
        split = rest.index("----") if "----" in rest else len(rest)
        yield comments, "\n".join(rest[:split]), "\n".join(rest[split + 1 :])


def replay(text: str) -> str:
    """Return the file as it should be: every command with the trace it leaves."""
    scenario = Scenario()
    done = []
    for comments, commands, _ in blocks(text):
        if not commands:
            done.append("\n".join(comments))
            continue
        trace = [scenario.run(command) for command in commands.split("\n")]
        traces = [line for line in trace if line != "ok"] or ["ok"]
        done.append("\n".join([*comments, commands, "----", *traces]))
    return "\n\n".join(done) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rewrite", action="store_true", help="Rewrite the traces.")
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    for path in sorted(FOLDER.glob("*.txt")):
        if args.names and path.stem not in args.names:
            continue
        text = path.read_text()
        fresh = replay(text)
        if fresh != text and args.rewrite:
            path.write_text(fresh)
        print(f"{'same' if fresh == text else 'rewritten' if args.rewrite else 'DIFFERS'}: {path.name}")


if __name__ == "__main__":
    main()
