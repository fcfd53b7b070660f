"""One PySyncObj node as a process: each line on standard input starts a measurement, whose rate it prints.

A node that does not lead prints 0. The event loop is driven manually, which is faster than PySyncObj's own thread.
"""

from __future__ import annotations

import sys
import threading
import time
from queue import Empty, SimpleQueue
from typing import Any

from pysyncobj import SyncObj, SyncObjConf, replicated

from bench._raft_small import IN_FLIGHT, KEYS, VALUE, WRITES


class _Map(SyncObj):  # type: ignore[misc]
    """A replicated map."""

    def __init__(self, address: str, others: list[str]) -> None:
        conf = SyncObjConf(
            autoTick=False,
            appendEntriesBatchSizeBytes=1 << 18,
            sendBufferSize=1 << 20,
            recvBufferSize=1 << 20,
            commandsQueueSize=4 * IN_FLIGHT,
            # Compaction would fork the process during a measurement.
            logCompactionMinEntries=100 * WRITES,
            logCompactionMinTime=10**6,
        )
        self.held: dict[bytes, bytes] = {}
        super().__init__(address, others, conf)

    @replicated  # type: ignore[untyped-decorator]
    def put(self, key: bytes, value: bytes) -> None:
        self.held[key] = value


class _Window:
    """Keeps a fixed number of calls in flight until all are applied."""

    def __init__(self, node: _Map) -> None:
        self._node = node
        self._begun = 0
        self._done = 0
        self._lost = False

    def _applied(self, _result: Any, failure: int) -> None:
        self._lost = self._lost or bool(failure)
        self._done += 1

    def rate(self) -> float:
        """Return writes per second; 0 if leadership was lost during the measurement."""
        began = time.perf_counter()
        while self._done < WRITES:
            if self._lost:
                return 0.0
            while self._begun < WRITES and self._begun - self._done < IN_FLIGHT:
                self._node.put(b"key-%d" % (self._begun % KEYS), VALUE, callback=self._applied)
                self._begun += 1
            # Returns as soon as something arrives; busy waiting would take CPU time from the other nodes.
            self._node.doTick(0.001)
        return WRITES / (time.perf_counter() - began)


def _main(address: str, *others: str) -> None:
    node = _Map(address, list(others))
    asked: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(asked,), daemon=True).start()
    while True:
        node.doTick(0.001)
        try:
            asked.get_nowait()
        except Empty:
            continue
        print(_Window(node).rate() if node._isLeader() else 0.0, flush=True)


def _listen(asked: SimpleQueue[str]) -> None:
    for line in sys.stdin:
        asked.put(line)


if __name__ == "__main__":
    _main(*sys.argv[1:])
