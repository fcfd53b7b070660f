"""Getting an etcd to take writes again that has used up its quota.

Etcd keeps every version of every key until it is compacted, and never gives the space of its file back by itself. Once
the file is as large as the quota allows, the alarm NOSPACE is raised, and every write is refused until history is
compacted, the files are defragmented and the alarm is disarmed. Reads, deletions and the renewal of leases go on.

Compaction up to the newest revision is safe for us: a watch whose history is gone lists anew. Where the keys themselves
use up the quota nothing can be freed: the alarm stays, and attempts become rare, because each blocks a member while it
copies its file.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from types import TracebackType
from typing import Any, Final

import msgspec
from aetcd import rpc
from google.protobuf.unknown_fields import UnknownFieldSet

from evenkeel.errors import CompactedError, MetastoreError, NoSpaceError
from evenkeel.metastore._etcd_connection import Connection, Opener
from evenkeel.metastore._etcd_requests import Link
from evenkeel.metastore.etcd_settings import EtcdSettings

__all__ = ["Maintenance", "ReliefPace"]

log = logging.getLogger(__name__)

_PATIENCE_SECONDS: Final = 600.0
"""Etcd answers only when it has compacted its history or copied its file, which may have gigabytes."""
_DEFRAGMENTATIONS: Final = 3
"""A member is defragmented at most so often, because its compaction may end after the first time."""
_LOOK_SECONDS: Final = 0.2
_CALM: Final = 5
"""So many looks in a row have to show the same."""
_LONGEST: Final = 300
"""After so many looks it is defragmented as it is."""
_QUOTA_FIELD: Final = 12
"""`dbSizeQuota` of a StatusResponse; etcd tells it since 3.6, and the client's messages do not know it."""
_RAREST: Final = 6
"""At most 2 to the power of this many looks are between two attempts."""
_CALM_LOOKS: Final = 360
"""After so many looks without an attempt the next one is made at once."""


class ReliefPace:
    """When to try to free space: at once, then after 2, 4, 8 ... looks; from the beginning after a long calm."""

    def __init__(self) -> None:
        self._attempts = 0
        self._looks = 0

    def due(self) -> bool:
        """Whether an attempt may be made now; to be asked once for every look."""
        self._looks += 1
        if self._looks > _CALM_LOOKS:
            self._attempts = 0
        return self._looks >= 1 << min(self._attempts, _RAREST)

    def attempted(self) -> None:
        """Another attempt was made, whatever came of it: an etcd that is full again soon has too small a quota."""
        self._attempts += 1
        self._looks = 0


class Maintenance:
    """Of an etcd that is ours alone; an async context manager that hangs up."""

    def __init__(self, settings: EtcdSettings) -> None:
        """Every member has to be named in the settings: each is defragmented by itself."""
        self._settings = settings
        self._link = Link(settings, Opener(settings))

    async def __aenter__(self) -> Maintenance:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._link.close()

    async def relieve(self) -> bool:
        """Where NOSPACE is raised: compact, defragment member by member, disarm. Returns whether it was raised.

        NoSpaceError where that freed too little: the alarm then stays.
        """
        alarms = await self._alarms()
        if not alarms:
            return False
        await self._compact()
        members = await self._members()
        for member in members:
            await self._defragment(member)
        for member in members:
            await self._check_space(member)
        for alarm in alarms:
            request = rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=rpc.NOSPACE)
            await self._link.call(_alarm, request, repeatable=True)
        log.info("etcd takes writes again: it was compacted and defragmented, and its alarm is disarmed")
        return True

    async def _alarms(self) -> list[Any]:
        return list((await self._link.call(_alarm, rpc.AlarmRequest(alarm=rpc.NOSPACE), repeatable=True)).alarms)

    async def _compact(self) -> None:
        newest = (await self._link.call(_range, rpc.RangeRequest(key=b"\0"), repeatable=True)).header.revision
        request = rpc.CompactionRequest(revision=newest, physical=True)
        with contextlib.suppress(CompactedError):
            await self._ask(self._patient(self._settings), _compact, request)

    async def _members(self) -> list[EtcdSettings]:
        """How to reach each member that answers; the leader last, so that as little as possible waits for it."""
        found: list[tuple[bool, EtcdSettings]] = []
        for endpoint in self._settings.endpoints:
            alone = msgspec.structs.replace(self._settings, endpoints=(endpoint,))
            try:
                status = await self._ask(alone, _status, rpc.StatusRequest())
            except MetastoreError as error:
                log.warning("a member of etcd is not defragmented now: %s", error)
            else:
                found.append((status.leader == status.header.member_id, alone))
        return [alone for _, alone in sorted(found, key=lambda entry: entry[0])]

    async def _defragment(self, member: EtcdSettings) -> None:
        """Defragment a member, again where its compaction freed more than half of the file after that."""
        try:
            for attempt in range(_DEFRAGMENTATIONS):
                status = await self._compacted(member)
                if attempt and status.dbSizeInUse * 2 >= status.dbSize:
                    return
                await self._ask(self._patient(member), _defragment, rpc.DefragmentRequest())
        except MetastoreError as error:
            log.warning("a member of etcd could not be defragmented: %s", error)

    async def _check_space(self, member: EtcdSettings) -> None:
        status = await self._ask(member, _status, rpc.StatusRequest())
        quota = next((field.data for field in UnknownFieldSet(status) if field.field_number == _QUOTA_FIELD), 0)
        if quota and status.dbSize >= quota:
            raise NoSpaceError(
                f"etcd has {status.dbSize} bytes after it was compacted and defragmented, and its quota is {quota}: "
                "raise the quota (--quota-backend-bytes, `etcd.quotaBytes` of the chart), or delete tables or "
                "StoreClusters"
            )

    async def _compacted(self, member: EtcdSettings) -> Any:
        """Wait until what the member uses no longer shrinks: each compacts for itself, and only one tells when."""
        found: list[Any] = []
        while len(found) < _LONGEST and (len(found) < _CALM or len({each.dbSizeInUse for each in found[-_CALM:]}) > 1):
            found.append(await self._ask(member, _status, rpc.StatusRequest()))
            await asyncio.sleep(_LOOK_SECONDS)
        return found[-1]

    def _patient(self, settings: EtcdSettings) -> EtcdSettings:
        return msgspec.structs.replace(settings, request_timeout=_PATIENCE_SECONDS)

    async def _ask(self, settings: EtcdSettings, method: Any, request: Any) -> Any:
        link = Link(settings, Opener(settings))
        try:
            return await link.call(method, request, repeatable=False)
        finally:
            await link.close()


def _alarm(connection: Connection) -> Any:
    return connection.maintenance.Alarm


def _range(connection: Connection) -> Any:
    return connection.kv.Range


def _compact(connection: Connection) -> Any:
    return connection.kv.Compact


def _status(connection: Connection) -> Any:
    return connection.maintenance.Status


def _defragment(connection: Connection) -> Any:
    return connection.maintenance.Defragment
