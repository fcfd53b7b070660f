"""The cluster version as this store follows it, and what the store announces to let it rise.

The store never goes back: where the metastore names a lower version than the volume has seen (an older backup was
restored), the volume's counts.
"""

from __future__ import annotations

import logging

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import read_version
from evenkeel.versions import SUPPORTED, Feature, VersionRange, check_version, supports
from evenkeel_raft.shared.raft_groups import Groups

__all__ = ["Version"]

log = logging.getLogger(__name__)


class Version:
    """Follows the key `version`."""

    def __init__(self, keys: Keys, groups: Groups) -> None:
        self._keys = keys
        self._groups = groups

    @property
    def current(self) -> int:
        """The cluster version."""
        return self._groups.version

    def supports(self, feature: Feature) -> bool:
        """Whether every part of the cluster can read what the feature writes."""
        return supports(self.current, feature)

    def see(self, kv: KeyValue | None) -> None:
        """The key as it is now; UnsupportedVersionError where this store must not be part of the cluster."""
        try:
            version = read_version(None if kv is None else kv.value, key=self._keys.version)
        except MalformedRecordError as error:
            log.error("the cluster version stays %d: %s", self.current, error)
            return
        check_version(version, of=f"the StoreCluster of {self._keys.root}")
        self._groups.set_version(max(version, self.current))

    @property
    def announced(self) -> VersionRange:
        """What the sidecar and its state machine can both work with.

        While no state machine is connected the cluster version must not rise: nobody knows what that one can do.
        """
        machine = self._groups.machine_supports() or VersionRange(newest=self.current)
        return VersionRange(max(SUPPORTED.oldest, machine.oldest), min(SUPPORTED.newest, machine.newest))
