"""Handles messages and snapshots from other stores."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from evenkeel_raft.core.raft_messages import Append, Heartbeat, InstallSnapshot, Message
from evenkeel_raft.host.host_context import HostCounters
from evenkeel_raft.host.host_maintenance import HostMaintenance
from evenkeel_raft.host.membership_checks import MembershipChecks
from evenkeel_raft.host.raft_replica import Replica
from evenkeel_raft.host.received_snapshots import remove_in_background
from evenkeel_raft.net.files.snapshot_manifest import Manifest
from evenkeel_raft.net.peer_frames import Inquiry, Verdict
from evenkeel_raft.shared.raft_configurations import member

__all__ = ["PeerHandler"]

_EARLY_MESSAGES: Final = 1000


class PeerHandler:
    """Receives messages and snapshots from other stores. The host sets the attributes before anything connects."""

    membership_checks: MembershipChecks
    maintenance: HostMaintenance

    def __init__(self, replicas: Mapping[int, Replica], *, counters: HostCounters, inbox: Path) -> None:
        self._replicas = replicas
        self._counters = counters
        self._inbox = inbox
        self._early: dict[int, tuple[str, Message]] = {}

    # Messages

    def received(self, store: str, messages: list[Message]) -> None:
        """Pass messages to their replicas."""
        replicas, refused = self._replicas, self._counters.refused_messages
        for message in messages:
            replica = replicas.get(message.group)
            if replica is None:
                refused["unknown_group"] += 1
                self._keep_early(store, message)
            else:
                replica.step(store, message)

    def _keep_early(self, store: str, message: Message) -> None:
        """Keep a leader's last message to a replica that does not exist yet, and deliver it when it does.

        Otherwise the replica would wait for the next heartbeat; raft tolerates late messages. Entries are removed,
        because a new replica cannot append them.
        """
        if isinstance(message, Append):
            message = msgspec.structs.replace(message, entries=[])
        elif not isinstance(message, Heartbeat) or message.quiesce:
            return
        self._early.pop(message.group, None)
        while len(self._early) >= _EARLY_MESSAGES:
            del self._early[next(iter(self._early))]
        self._early[message.group] = store, message

    def deliver_early(self, replica: Replica) -> None:
        """Deliver the message that arrived before the replica was created."""
        store, message = self._early.pop(replica.group, ("", None))
        if message is not None:
            replica.step(store, message)

    def on_inquiry(self, store: str, inquiry: Inquiry) -> None:
        """Answer whether another store's replica is still a member."""
        self.membership_checks.on_inquiry(store, inquiry)

    def on_verdict(self, store: str, verdict: Verdict) -> None:
        """Process an answer to an inquiry."""
        self.membership_checks.on_verdict(store, verdict)

    def connected(self, store: str) -> None:
        """Wake groups that wait for a store."""
        self.maintenance.on_store_connected(store)

    def disconnected(self, store: str) -> None:
        """Wake groups that lost their leader or quorum with a store."""
        self.maintenance.on_store_disconnected(store)

    # Snapshots

    def offered(self, store: str, message: InstallSnapshot, manifest: Manifest) -> str:
        """Return why a snapshot is declined, or an empty string."""
        replica = self._replica(message)
        if replica is None:
            return "this store has no such replica"
        if message.term < replica.node.term:
            return f"the snapshot is of an old term; the term is {replica.node.term}"
        if message.meta.index <= replica.node.committed and not replica.node.needs_restore:
            return "the log is already past the snapshot"
        if message.repair and message.meta.index > replica.node.committed:
            return "the snapshot is not known to be committed yet"
        free = shutil.disk_usage(self._inbox).free
        if manifest.size > free:
            return f"the snapshot needs {manifest.size} bytes, but only {free} are free"
        return ""

    def stored(self, store: str, message: InstallSnapshot, directory: Path, manifest: Manifest) -> None:
        """Pass a received snapshot to its replica."""
        replica = self._replica(message)
        if replica is None:
            remove_in_background(directory)
            return
        replica.step(store, message)
        replica.applier.on_snapshot_received(message.meta.index, directory)

    def _replica(self, message: InstallSnapshot) -> Replica | None:
        replica = self._replicas.get(message.group)
        if replica is None or replica.stopped or member(replica.id) != message.receiver:
            return None
        return replica
