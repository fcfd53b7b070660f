"""The cluster version: the formats that all components of a StoreCluster may write and send.

Stores, sidecars and operators of two releases run side by side during a rolling update. A component may use a new
format only after every other component can read it. The operator keeps the cluster version in the metastore and raises
it when every store supports the next one; it never lowers it. A StoreCluster without that key has version 1, that of
the first release.

    if supports(version, Feature.X):    write the new form
    else:                               write the old form

- Readers accept both forms at any version. Only writers check the version.
- Components learn of a new version at different times. What replicas compute from a log entry must depend on the entry
  alone, never on the version.
- A released feature keeps its version. A new feature takes the version of the next release.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from evenkeel.errors import UnsupportedVersionError

__all__ = ["FIRST", "SUPPORTED", "Feature", "VersionRange", "check_version", "supports"]

FIRST: Final = 1
"""The version of a StoreCluster without a version in its metastore, and of a store that announces none."""


class Feature(enum.Enum):
    """A format that is used only from a certain cluster version on."""

    KEEP_DROPPED = "kept data of deleted tables"
    """A table record may be marked as dropped: the table is then neither routed to nor served."""
    SPLIT_LOAD = "split load reports"
    """Stores report their replicas under several keys instead of one value."""
    TABLE_FIELDS = "newer fields of tables"
    """Table records have fields that stores of the first release do not know."""
    CONDITION_TYPES = "newer types of conditions"
    """Statuses have condition types that the first release does not know; it cannot read an object that has one."""
    LOG_TIME = "log time"
    """Leaders append `LogTime` entries; after one, replicas limit how far a timestamp advances the log time."""


_SINCE: Final[Mapping[Feature, int]] = {
    Feature.KEEP_DROPPED: 2,
    Feature.SPLIT_LOAD: 2,
    Feature.TABLE_FIELDS: 2,
    Feature.CONDITION_TYPES: 2,
    Feature.LOG_TIME: 2,
}


class VersionRange(msgspec.Struct, frozen=True, array_like=True):
    """The cluster versions that a release supports: `[oldest, newest]`."""

    oldest: int = FIRST
    newest: int = FIRST

    def includes(self, version: int) -> bool:
        """Whether the release supports this version."""
        return self.oldest <= version <= self.newest

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}" if self.oldest < self.newest else str(self.oldest)


SUPPORTED: Final = VersionRange(oldest=1, newest=2)
"""The cluster versions that this release supports."""


def supports(version: int, feature: Feature) -> bool:
    """Whether every component of a cluster of this version can read what the feature writes."""
    return version >= _SINCE[feature]


def check_version(version: int, *, of: str, supported: VersionRange = SUPPORTED) -> None:
    """Raise UnsupportedVersionError unless this release supports the version; `of` names the subject in the message."""
    if supported.includes(version):
        return
    remedy = "a newer" if version > supported.newest else "an older"
    raise UnsupportedVersionError(
        f"{of} has cluster version {version}, but this release supports {supported}: run {remedy} release; "
        "the cluster version is never lowered"
    )
