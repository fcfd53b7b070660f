"""Whether the metastore that answers is the one this volume has followed so far.

An etcd that was emptied, replaced or restored from an old backup says with all authority that nothing is as it was.
Whoever believed it would start and delete replicas by a list that is no longer, or not yet, true. So the volume
remembers the cluster's id and the highest revision it has seen. Another id, a lower revision, or no table at all while
replicas are here is a mismatch: the agent does nothing and says so, until it matches again or a person decides: for
this process (`adopt_metastore`), or by the key `adoption`, which names the cluster that is to be followed. Each request
in that key is followed once: a backup of an adopted metastore has the key too, and nobody has asked for the backup.

Where keys were deleted in place, id and revision are as they were. Such a metastore is followed again as soon as its
first table is back, and the key `adoption` comes later: then the session ends and begins with nothing in memory.
"""

from __future__ import annotations

import asyncio
import logging

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue, Snapshot
from evenkeel.protocol.records import Adoption, decode
from evenkeel.runtime.clock import Timer
from evenkeel_raft.agent.agent_context import Context
from evenkeel_raft.shared.raft_groups import MetastoreMark

__all__ = ["Guard"]

log = logging.getLogger(__name__)


class Guard:
    """The volume's memory of its metastore."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self.adopted = ""
        """The user's request, in the metastore that answers, to follow it; empty where there is none."""
        self._answering: int | None = None
        """The id of the metastore that answers, followed or not."""
        self._cluster: int | None = None
        self._newest = 0
        self._noted = 0
        self._due = asyncio.Event()
        self._timer: Timer | None = None

    def mismatch(self, cluster: int, revision: int) -> str:
        """Why a metastore of this id, at this revision, may not be followed; empty if it may."""
        mark = self._context.groups.remembered()
        forced = self._context.settings.adopt_metastore and self._cluster is None
        if mark is None or forced:
            return ""
        remedy = f'set spec.adoptMetastore of the StoreCluster to "{cluster:x}@{revision}" if it is to be used as it is'
        if mark.cluster != cluster:
            return (
                f"etcd cluster {cluster:x} answers, but this volume has followed {mark.cluster:x}: correct the "
                f"endpoints, or {remedy}"
            )
        newest = max(mark.revision, self._newest if self._cluster == cluster else 0)
        if revision < newest:
            return (
                f"etcd is at revision {revision}, but this volume has seen {newest}: it was emptied or restored from a "
                f"backup; {remedy}"
            )
        return ""

    def see_adoption(self, found: Snapshot, cluster: int) -> None:
        """What a metastore of this id says of its adoption."""
        self._answering = cluster
        self.adopted = self._request({kv.key: kv for kv in found.kvs}.get(self._context.keys.adoption))

    def is_new_request(self, kv: KeyValue | None) -> bool:
        """Whether the key `adoption` now asks this volume to follow the metastore, and did not before."""
        return self._request(kv) not in ("", self.adopted)

    def _request(self, kv: KeyValue | None) -> str:
        """The request in the key `adoption`, where it says that this very metastore is to be followed."""
        try:
            adoption = None if kv is None else decode(Adoption, kv.value, key=kv.key)
            return adoption.request if adoption is not None and int(adoption.cluster, 16) == self._answering else ""
        except (MalformedRecordError, ValueError) as error:
            log.warning("taken as no adoption: %s", error)
            return ""

    @property
    def asked_to_follow(self) -> bool:
        """Whether a user asks this volume to follow the metastore that answers, and it has not done so before."""
        mark = self._context.groups.remembered()
        return bool(self.adopted) and mark is not None and mark.adopted != self.adopted

    def nothing_there(self, *, tables_empty: bool) -> str:
        """Why a metastore without any table may not be followed; empty if it may."""
        replicas = len(self._context.groups.running())
        if not tables_empty or not replicas or self._context.settings.adopt_metastore or self.adopted:
            return ""
        return (
            f"etcd has no table, but {replicas} replicas are here: nothing is changed until there is one; restore "
            "etcd, or have it adopted by spec.adoptMetastore of the StoreCluster"
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
        mark = self._context.groups.remembered()
        adopted = self.adopted or (mark.adopted if mark is not None else "")
        await self._context.groups.remember(MetastoreMark(self._cluster, newest, adopted))
        self._noted = newest
