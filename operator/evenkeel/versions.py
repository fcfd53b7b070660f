"""The cluster version: what all parts of one StoreCluster may write and send.

Stores, sidecars and operators of two releases run side by side during a rolling update. A part may use a new format
only after every other part can read it. The operator therefore keeps the cluster version in the metastore and raises
it when every store supports the next one; it never lowers it. A StoreCluster without that key has version 1, which is
what the first release speaks.

    if supports(version, Feature.X):    write the new form
    else:                               write the old one

- Readers accept both forms at any version. Only writers ask.
- Parts learn of a new version at different moments. What replicas compute from a log entry must depend on the entry
  alone, never on the version.
- A feature that has been released keeps its version. A new one takes the version of the next release.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final

import msgspec

from evenkeel.errors import UnsupportedVersionError

__all__ = ["FIRST", "SUPPORTED", "Feature", "VersionRange", "check_version", "supports"]

FIRST: Final = 1
"""What a StoreCluster speaks that has no version in its metastore, and a store that announces none."""


class Feature(enum.Enum):
    """What a cluster does only from a certain version on."""

    KEEP_DROPPED = "kept data of deleted tables"
    """A table's record may say that its Table was deleted: it is then neither routed to nor served."""
    SPLIT_LOAD = "split load reports"
    """Stores report their replicas under several keys instead of one value."""
    TABLE_FIELDS = "newer fields of tables"
    """Records of tables have fields that stores of the first release do not know."""
    CONDITION_TYPES = "newer types of conditions"
    """Statuses have conditions of types that the first release cannot read, nor anything else of such an object."""
    LOG_TIME = "log time"
    """Leaders log `LogTime` entries, from which on replicas bound how far stamps move a partition's log time."""


_SINCE: Final[Mapping[Feature, int]] = {
    Feature.KEEP_DROPPED: 2,
    Feature.SPLIT_LOAD: 2,
    Feature.TABLE_FIELDS: 2,
    Feature.CONDITION_TYPES: 2,
    Feature.LOG_TIME: 2,
}


class VersionRange(msgspec.Struct, frozen=True, array_like=True):
    """The cluster versions that a release can work with: `[oldest, newest]`."""

    oldest: int = FIRST
    newest: int = FIRST

    def includes(self, version: int) -> bool:
        """Whether the release can be part of a cluster of this version."""
        return self.oldest <= version <= self.newest

    def __str__(self) -> str:
        return f"{self.oldest} to {self.newest}" if self.oldest < self.newest else str(self.oldest)


SUPPORTED: Final = VersionRange(oldest=1, newest=2)
"""What this release can work with."""


def supports(version: int, feature: Feature) -> bool:
    """Whether every part of a cluster of this version can read what the feature writes."""
    return version >= _SINCE[feature]


def check_version(version: int, *, of: str, supported: VersionRange = SUPPORTED) -> None:
    """Raise UnsupportedVersionError where this release must not touch what `of` names."""
    if supported.includes(version):
        return
    remedy = "a newer" if version > supported.newest else "an older"
    raise UnsupportedVersionError(
        f"{of} has cluster version {version}, and this release supports {supported}: run {remedy} release; "
        "a cluster version is never lowered"
    )
