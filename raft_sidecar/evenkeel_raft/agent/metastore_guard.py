"""Detects a metastore that is not the one this volume follows.

An etcd that was emptied, replaced or restored from an old backup answers with outdated or missing assignments. Acting
on them would start and delete the wrong replicas. The volume therefore remembers the cluster id and the highest
revision it has seen. A different id, a lower revision, or no table although the store has replicas is a mismatch: the
agent does nothing and reports it until the metastore matches again or a person decides. The decision is made for one
process (`adopt_metastore`) or by the key `adoption`, which names the cluster to follow. Each request in that key is
followed once, because a backup of an adopted metastore contains the key too.

If keys were deleted in place, id and revision still match. The agent follows such a metastore again as soon as its
first table exists. When the key `adoption` is written later, the session ends and the next one starts without memory.
"""

from __future__ import annotations

import asyncio
import logging

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue, Snapshot
from evenkeel.protocol.records import Adoption, decode
from evenkeel.runtime.clock import Timer
from evenkeel_raft.agent.agent_context import AgentContext
from evenkeel_raft.shared.raft_groups import MetastoreMark

__all__ = ["MetastoreGuard"]

log = logging.getLogger(__name__)


class MetastoreGuard:
    """Compares the metastore with the volume's mark and keeps the mark up to date."""

    def __init__(self, context: AgentContext) -> None:
        self._context = context
        self.adopted = ""
        """The adoption request in the current metastore; empty if there is none."""
        self._answering: int | None = None
        """The id of the metastore that answers, followed or not."""
        self._cluster: int | None = None
        self._newest = 0
        self._saved = 0
        self._save_due = asyncio.Event()
        self._timer: Timer | None = None

    def mismatch(self, cluster: int, revision: int) -> str:
        """Return why a metastore with this id and revision must not be followed; empty if it may."""
        mark = self._context.groups.metastore_mark()
        forced = self._context.settings.adopt_metastore and self._cluster is None
        if mark is None or forced:
            return ""
        remedy = f'set spec.adoptMetastore of the StoreCluster to "{cluster:x}@{revision}" to use this one'
        if mark.cluster != cluster:
            return (
                f"connected to etcd cluster {cluster:x}, but this volume follows {mark.cluster:x}; correct the "
                f"endpoints, or {remedy}"
            )
        newest = max(mark.revision, self._newest if self._cluster == cluster else 0)
        if revision < newest:
            return (
                f"etcd is at revision {revision}, but this volume has seen {newest}: it was emptied or restored from a "
                f"backup; restore a newer backup, or {remedy}"
            )
        return ""

    def observe_adoption(self, found: Snapshot, cluster: int) -> None:
        """Record the key `adoption` of a metastore with this id."""
        self._answering = cluster
        self.adopted = self._request({kv.key: kv for kv in found.kvs}.get(self._context.keys.adoption))

    def is_new_request(self, kv: KeyValue | None) -> bool:
        """Whether the key `adoption` asks this volume to follow the metastore and did not before."""
        return self._request(kv) not in ("", self.adopted)

    def _request(self, kv: KeyValue | None) -> str:
        """Return the request in the key `adoption` if it names this metastore; empty otherwise."""
        try:
            adoption = None if kv is None else decode(Adoption, kv.value, key=kv.key)
            return adoption.request if adoption is not None and int(adoption.cluster, 16) == self._answering else ""
        except (MalformedRecordError, ValueError) as error:
            log.warning("ignoring an invalid adoption request: %s", error)
            return ""

    @property
    def adoption_requested(self) -> bool:
        """Whether a user asks this volume to follow the current metastore and the volume has not done so yet."""
        mark = self._context.groups.metastore_mark()
        return bool(self.adopted) and mark is not None and mark.adopted != self.adopted

    def missing_tables(self, *, tables_empty: bool) -> str:
        """Return why a metastore without tables must not be followed; empty if it may."""
        replicas = len(self._context.groups.running())
        if not tables_empty or not replicas or self._context.settings.adopt_metastore or self.adopted:
            return ""
        return (
            f"etcd has no table, but this store has {replicas} replicas; nothing is changed until a table exists; "
            "restore etcd, or adopt it with spec.adoptMetastore of the StoreCluster"
        )

    async def follow(self, cluster: int, revision: int) -> None:
        """Save that this volume follows the metastore, before the agent acts on it."""
        self._cluster, self._newest = cluster, revision
        await self._save_mark()

    def observe_revision(self, revision: int) -> None:
        """Record a revision of the metastore; it is saved later."""
        self._newest = max(self._newest, revision)
        if self._newest - self._saved >= self._context.settings.mark_revisions:
            self._save_due.set()
        elif self._timer is None and self._newest > self._saved:
            when = self._context.clock.now() + self._context.settings.mark_seconds
            self._timer = self._context.clock.call_at(when, self._save_due.set)

    async def run(self) -> None:
        """Save the newest revision from time to time, until cancelled."""
        while True:
            await self._save_due.wait()
            self._save_due.clear()
            await self._save_mark()

    async def _save_mark(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        assert self._cluster is not None
        newest = self._newest
        mark = self._context.groups.metastore_mark()
        adopted = self.adopted or (mark.adopted if mark is not None else "")
        await self._context.groups.save_metastore_mark(MetastoreMark(self._cluster, newest, adopted))
        self._saved = newest
