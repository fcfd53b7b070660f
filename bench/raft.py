"""Raft and its log, compared with references on the same machine in the same run."""

from __future__ import annotations

from collections.abc import Iterator

from bench._raft_catch_up import catch_up_rows
from bench._raft_commit import commit_rows
from bench._raft_failover import failover_rows
from bench._raft_idle import idle_rows
from bench._raft_log import log_rows
from bench._raft_net import net_rows
from bench._raft_small import small_rows
from bench.report import Row


def rows() -> Iterator[Row]:
    yield from log_rows()
    yield from net_rows()
    yield from commit_rows()
    yield from small_rows()
    yield from failover_rows()
    yield from idle_rows()
    yield from catch_up_rows()
