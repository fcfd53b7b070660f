"""Whether the metastore that answers is the one this volume has followed so far.

An etcd that was emptied, replaced or restored from an old backup says with all authority that nothing is as it was.
Whoever believed it would start and delete replicas by a list that is no longer, or not yet, true. So the volume
remembers the cluster's id and the highest revision it has seen. Another id, a lower revision, or no table at all while
replicas are here is a mismatch: the agent does nothing and says so, until it matches again or a person decides.
"""

from __future__ import annotations

import asyncio

from evenkeel.metastore.clock import Timer
from evenkeel_raft.agent.context import Context
from evenkeel_raft.agent.groups import MetastoreMark

__all__ = ["Guard"]


class Guard:
    """The volume's memory of its metastore."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cluster: int | None = None
        self._newest = 0
        self._noted = 0
        self._due = asyncio.Event()
        self._timer: Timer | None = None

    def mismatch(self, cluster: int, revision: int) -> str:
        """Why a metastore of this id, at this revision, may not be followed; empty if it may."""
        mark = self._context.groups.remembered()
        adopting = self._context.settings.adopt_metastore and self._cluster is None
        if mark is None or adopting:
            return ""
        if mark.cluster != cluster:
            return (
                f"etcd cluster {cluster:x} answers, but this volume has followed {mark.cluster:x}: correct the "
                "endpoints, or start once with --adopt-metastore if the tables of this one are right"
            )
        if revision < mark.revision:
            return (
                f"etcd is at revision {revision}, but this volume has seen {mark.revision}: it was emptied or restored "
                "from a backup; start once with --adopt-metastore if its tables are right"
            )
        return ""

    def nothing_there(self, *, tables_empty: bool) -> str:
        """Why a metastore without any table may not be followed; empty if it may."""
        replicas = len(self._context.groups.running())
        if not tables_empty or not replicas or self._context.settings.adopt_metastore:
            return ""
        return (
            f"etcd has no table, but {replicas} replicas are here: nothing is changed until there is one; restore "
            "etcd, or start once with --adopt-metastore"
        )

    async def follow(self, cluster: int, revision: int) -> None:
        """Note that this metastore is followed, before anything is done on its word."""
        self._cluster, self._newest = cluster, revision
        await self._note()

    def saw(self, revision: int) -> None:
        """The metastore has shown this revision."""
        self._newest = max(self._newest, revision)
        if self._newest - self._noted >= self._context.settings.mark_revisions:
            self._due.set()
        elif self._timer is None and self._newest > self._noted:
            when = self._context.clock.now() + self._context.settings.mark_seconds
            self._timer = self._context.clock.call_at(when, self._due.set)

    async def run(self) -> None:
        """Note what was seen, from time to time, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            await self._note()

    async def _note(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        assert self._cluster is not None
        newest = self._newest
        await self._context.groups.remember(MetastoreMark(self._cluster, newest))
        self._noted = newest
