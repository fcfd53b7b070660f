"""Throughput of the raft core: entries per second in a group of three in memory.

    python -m tests.raft.throughput [--windows 15] [--batch 1 16 256]

Every entry goes propose -> append -> acknowledge -> commit -> apply on all three replicas. Writes and applies complete
at once. `serial` applies every batch everywhere before it proposes the next; `pipelined` sends the commit index along
with the next batch. Measured in CPU time of all three replicas on one core, in windows of a fifth of a second. The
median and the best window are printed, because other load slows the core down.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Iterator
from itertools import islice
from statistics import median

from evenkeel_raft.core.raft_messages import Message
from evenkeel_raft.core.raft_types import Conf, genesis
from evenkeel_raft.core.rawnode import RawNode

WINDOW = 0.2


class Cluster:
    """Three replicas whose messages arrive at once and whose disks take no time."""

    def __init__(self) -> None:
        meta = genesis(Conf(voters=(1, 2, 3)))
        self.nodes = {i: RawNode(group=1, replica=i, rng=random.Random(i), meta=meta) for i in (1, 2, 3)}
        self.inboxes: dict[int, list[Message]] = {i: [] for i in self.nodes}
        self.applied = dict.fromkeys(self.nodes, 1)
        self.nodes[1].campaign()
        self.pump(1)
        self.drain()
        assert self.nodes[1].leading

    def pump(self, replica: int) -> None:
        """Do all that a node wants done."""
        node, inboxes = self.nodes[replica], self.inboxes
        out = node.ready()
        for message in out.messages:
            inboxes[message.receiver].append(message)
        append = out.append
        if append is not None:
            for message in append.responses:
                inboxes[message.receiver].append(message)
            node.on_persisted(append.token)
        if out.apply:
            index = self.applied[replica] = out.apply[-1].index
            node.on_applied(index)

    def deliver(self, replica: int) -> None:
        """Let a node take in all its messages."""
        inbox, node = self.inboxes[replica], self.nodes[replica]
        self.inboxes[replica] = []
        for message in inbox:
            node.step(message)

    def drain(self) -> None:
        """Run until no node has work left."""
        busy = True
        while busy:
            busy = False
            for replica, inbox in self.inboxes.items():
                if inbox:
                    self.deliver(replica)
                    self.pump(replica)
                    busy = True

    def round(self) -> None:
        """Carry one batch to the followers and the acknowledgements back; its commit travels with the next."""
        self.pump(1)
        for follower in (2, 3):
            self.deliver(follower)
            self.pump(follower)
        self.deliver(1)


def measure(batch: int, *, pipelined: bool) -> Iterator[float]:
    """Yield entries per second, window by window."""
    cluster = Cluster()
    leader = cluster.nodes[1]
    payloads = [b"x" * 64] * batch
    while True:
        entries, elapsed, start = 0, 0.0, time.process_time()
        while elapsed < WINDOW:
            for _ in range(100):
                if batch == 1:
                    leader.propose(payloads[0])
                else:
                    leader.propose_many(payloads)
                cluster.round()
                if not pipelined:
                    cluster.pump(1)
                    cluster.drain()
            entries += 100 * batch
            for replica, node in cluster.nodes.items():
                node.compact(cluster.applied[replica])
            elapsed = time.process_time() - start
        yield entries / elapsed


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--windows", type=int, default=15)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 16, 256])
    args = parser.parse_args()
    for pipelined in (False, True):
        for batch in args.batch:
            rates = list(islice(measure(batch, pipelined=pipelined), args.windows))
            name = "pipelined" if pipelined else "serial"
            print(f"{name:>9}  batch {batch:>4}  {median(rates):>11,.0f} entries/s, best {max(rates):>11,.0f}")


if __name__ == "__main__":
    main()
