"""Free space in an etcd that has used up its quota, so that it accepts writes again.

Etcd keeps each version of each key until it is compacted, and never shrinks its file by itself. When the file reaches
the quota, etcd raises the alarm NOSPACE and refuses writes until the history is compacted, the files are defragmented
and the alarm is disarmed. Reads, deletions and lease renewals still work.

Compaction up to the newest revision is safe: a watch whose history is gone lists again. If the keys themselves use up
the quota, nothing can be freed. The alarm then stays, and attempts become rare, because each blocks a member while it
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

__all__ = ["Maintenance", "ReliefSchedule"]

log = logging.getLogger(__name__)

_SLOW_TIMEOUT: Final = 600.0
"""Etcd answers only after it has compacted its history or copied its file, which may have gigabytes."""
_DEFRAGMENTATIONS: Final = 3
"""Maximum defragmentations of one member; its compaction may end only after the first."""
_POLL_SECONDS: Final = 0.2
_STEADY_POLLS: Final = 5
"""Compaction has ended if this many polls in a row return the same size."""
_START_POLLS: Final = 50
"""Number of polls for which a member's compaction may not have freed anything yet: each member starts on its own."""
_MAX_POLLS: Final = 300
"""Number of polls after which a member is defragmented even if its compaction has not ended."""
_QUOTA_FIELD: Final = 12
"""`dbSizeQuota` of a StatusResponse: etcd sends it since 3.6, but the client's messages do not have it."""
_LARGEST_EXPONENT: Final = 6
"""At most 2 to the power of this number of checks are between two attempts."""
_RESET_CHECKS: Final = 360
"""After this many checks without an attempt, the schedule starts from the beginning."""


class ReliefSchedule:
    """When to try to free space: at once, then after 2, 4, 8 ... checks; from the beginning after a long pause."""

    def __init__(self) -> None:
        self._attempts = 0
        self._checks = 0

    def due(self) -> bool:
        """Whether an attempt may be made now; call it once for each check."""
        self._checks += 1
        if self._checks > _RESET_CHECKS:
            self._attempts = 0
        return self._checks >= 1 << min(self._attempts, _LARGEST_EXPONENT)

    def attempted(self) -> None:
        """Record an attempt, successful or not: if etcd is soon full again, its quota is too small."""
        self._attempts += 1
        self._checks = 0


class Maintenance:
    """Maintains an etcd that only Evenkeel uses; an async context manager that closes its connection."""

    def __init__(self, settings: EtcdSettings) -> None:
        """Take settings with the endpoints of all members, because each is defragmented separately."""
        self._settings = settings
        self._link = Link(settings, Opener(settings))

    async def __aenter__(self) -> Maintenance:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._link.close()

    async def relieve(self) -> bool:
        """If NOSPACE is raised: compact, defragment each member, disarm. Return whether it was raised.

        Raise NoSpaceError if this freed too little; the alarm then stays.
        """
        alarms = await self._alarms()
        if not alarms:
            return False
        members = await self._members()
        await self._compact()
        for member, used in members:
            await self._defragment(member, used)
        for member, _ in members:
            await self._check_space(member)
        for alarm in alarms:
            request = rpc.AlarmRequest(action=rpc.AlarmRequest.DEACTIVATE, memberID=alarm.memberID, alarm=rpc.NOSPACE)
            await self._link.call(_alarm, request, repeatable=True)
        log.info("etcd accepts writes again: it was compacted and defragmented, and its alarm is disarmed")
        return True

    async def _alarms(self) -> list[Any]:
        return list((await self._link.call(_alarm, rpc.AlarmRequest(alarm=rpc.NOSPACE), repeatable=True)).alarms)

    async def _compact(self) -> None:
        newest = (await self._link.call(_range, rpc.RangeRequest(key=b"\0"), repeatable=True)).header.revision
        request = rpc.CompactionRequest(revision=newest, physical=True)
        with contextlib.suppress(CompactedError):
            await self._ask(self._slow(self._settings), _compact, request)

    async def _members(self) -> list[tuple[EtcdSettings, int]]:
        """Return settings and used bytes of each member that answers; the leader last, to disturb requests least."""
        found: list[tuple[bool, EtcdSettings, int]] = []
        for endpoint in self._settings.endpoints:
            alone = msgspec.structs.replace(self._settings, endpoints=(endpoint,))
            try:
                status = await self._ask(alone, _status, rpc.StatusRequest())
            except MetastoreError as error:
                log.warning("cannot defragment an etcd member now, because it does not answer: %s", error)
            else:
                found.append((status.leader == status.header.member_id, alone, status.dbSizeInUse))
        return [(alone, used) for _, alone, used in sorted(found, key=lambda entry: entry[0])]

    async def _defragment(self, member: EtcdSettings, used: int) -> None:
        """Defragment a member, and again if its compaction has since freed more than half of the file."""
        try:
            for attempt in range(_DEFRAGMENTATIONS):
                status = await self._compacted(member, used)
                if attempt and status.dbSizeInUse * 2 >= status.dbSize:
                    return
                await self._ask(self._slow(member), _defragment, rpc.DefragmentRequest())
        except MetastoreError as error:
            log.warning("cannot defragment an etcd member: %s", error)

    async def _check_space(self, member: EtcdSettings) -> None:
        status = await self._ask(member, _status, rpc.StatusRequest())
        quota = next((field.data for field in UnknownFieldSet(status) if field.field_number == _QUOTA_FIELD), 0)
        if quota and status.dbSize >= quota:
            raise NoSpaceError(
                f"etcd uses {status.dbSize} bytes after compaction and defragmentation, but its quota is {quota}; "
                "raise the quota (--quota-backend-bytes, `etcd.quotaBytes` of the chart), or delete tables or "
                "StoreClusters"
            )

    async def _compacted(self, member: EtcdSettings, used: int) -> Any:
        """Wait until the member's used size no longer shrinks below `used`, its size before the compaction.

        Each member compacts itself, and only one of them responds.
        """
        found: list[Any] = []
        while len(found) < _MAX_POLLS and not _ended([each.dbSizeInUse for each in found], used):
            found.append(await self._ask(member, _status, rpc.StatusRequest()))
            await asyncio.sleep(_POLL_SECONDS)
        return found[-1]

    def _slow(self, settings: EtcdSettings) -> EtcdSettings:
        return msgspec.structs.replace(settings, request_timeout=_SLOW_TIMEOUT)

    async def _ask(self, settings: EtcdSettings, method: Any, request: Any) -> Any:
        link = Link(settings, Opener(settings))
        try:
            return await link.call(method, request, repeatable=False)
        finally:
            await link.close()


def _ended(sizes: list[int], used: int) -> bool:
    """Whether a compaction has ended, by the used sizes since it was requested."""
    started = len(sizes) >= _START_POLLS or bool(sizes and sizes[-1] < used)
    return started and len(sizes) >= _STEADY_POLLS and len(set(sizes[-_STEADY_POLLS:])) == 1


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
