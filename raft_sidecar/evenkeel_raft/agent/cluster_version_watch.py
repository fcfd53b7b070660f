"""The cluster version in force, and the range of versions that the store announces.

The version never decreases on a store. If the metastore holds a lower version than the volume has seen (a restored
older backup), the store keeps the volume's version.
"""

from __future__ import annotations

import logging

from evenkeel.errors import MalformedRecordError
from evenkeel.metastore.metastore_api import KeyValue
from evenkeel.protocol.keys import Keys
from evenkeel.protocol.records import read_version
from evenkeel.versions import SUPPORTED, Feature, VersionRange, check_version, supports
from evenkeel_raft.shared.raft_groups import Groups

__all__ = ["ClusterVersion"]

log = logging.getLogger(__name__)


class ClusterVersion:
    """Follows the key `version`."""

    def __init__(self, keys: Keys, groups: Groups) -> None:
        self._keys = keys
        self._groups = groups

    @property
    def current(self) -> int:
        """The cluster version."""
        return self._groups.version

    def supports(self, feature: Feature) -> bool:
        """Whether every component of the cluster can read what the feature writes."""
        return supports(self.current, feature)

    def observe(self, kv: KeyValue | None) -> None:
        """Apply the key's current value; raise UnsupportedVersionError if this store cannot be part of the cluster."""
        try:
            version = read_version(None if kv is None else kv.value, key=self._keys.version)
        except MalformedRecordError as error:
            log.error("keeping cluster version %d: %s", self.current, error)
            return
        check_version(version, of=f"the StoreCluster of {self._keys.root}")
        self._groups.set_version(max(version, self.current))

    @property
    def announced(self) -> VersionRange:
        """The versions that both the sidecar and its state machine support.

        While no state machine is connected, the store announces no version above the current one, because it is unknown
        which versions the next state machine supports.
        """
        machine = self._groups.machine_supports() or VersionRange(newest=self.current)
        return VersionRange(max(SUPPORTED.oldest, machine.oldest), min(SUPPORTED.newest, machine.newest))
