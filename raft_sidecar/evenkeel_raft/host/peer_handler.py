"""Messages and snapshots from other stores."""

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
from evenkeel_raft.host.received_snapshots import remove_soon
from evenkeel_raft.net.files.snapshot_manifest import Manifest
from evenkeel_raft.net.peer_frames import Inquiry, Verdict
from evenkeel_raft.shared.raft_configurations import member

__all__ = ["PeerHandler"]

_EARLY_MESSAGES: Final = 1000


class PeerHandler:
    """What the links to other stores call."""

    def __init__(self, replicas: Mapping[int, Replica], *, tally: HostCounters, inbox: Path) -> None:
        self.inquiries: MembershipChecks | None = None
        self.upkeep: HostMaintenance | None = None
        self._replicas = replicas
        self._tally = tally
        self._inbox = inbox
        self._early: dict[int, tuple[str, Message]] = {}

    # Messages

    def received(self, store: str, messages: list[Message]) -> None:
        """Hand messages to their replicas."""
        replicas, refused = self._replicas, self._tally.refused_messages
        for message in messages:
            replica = replicas.get(message.group)
            if replica is None:
                refused["unknown_group"] += 1
                self._keep(store, message)
            else:
                replica.step(store, message)

    def _keep(self, store: str, message: Message) -> None:
        """A leader may know of a replica before its own store does: what it said last is heard when it is there.

        Raft bears messages that come late, and a leader asks again with its next heartbeat only. Of what it asked the
        entries are left out: a replica that has nothing cannot take them.
        """
        if isinstance(message, Append):
            message = msgspec.structs.replace(message, entries=[])
        elif not isinstance(message, Heartbeat) or message.quiesce:
            return
        self._early.pop(message.group, None)
        while len(self._early) >= _EARLY_MESSAGES:
            del self._early[next(iter(self._early))]
        self._early[message.group] = store, message

    def begun(self, replica: Replica) -> None:
        """A replica is there: let it hear what came for it."""
        store, message = self._early.pop(replica.group, ("", None))
        if message is not None:
            replica.step(store, message)

    def asked(self, store: str, inquiry: Inquiry) -> None:
        """A store wants to know whether its replica is still a member."""
        if self.inquiries is not None:
            self.inquiries.asked(store, inquiry)

    def judged(self, store: str, verdict: Verdict) -> None:
        """A store answered."""
        if self.inquiries is not None:
            self.inquiries.judged(store, verdict)

    def connected(self, store: str) -> None:
        """A store is there."""
        if self.upkeep is not None:
            self.upkeep.store_back(store)

    def disconnected(self, store: str) -> None:
        """A store is gone."""
        if self.upkeep is not None:
            self.upkeep.store_gone(store)

    # Snapshots

    def offered(self, store: str, message: InstallSnapshot, manifest: Manifest) -> str:
        """Say why a snapshot is not wanted, if so."""
        replica = self._replica(message)
        if replica is None:
            return "there is no such replica here"
        if message.term < replica.node.term:
            return f"term {replica.node.term} has begun"
        if message.meta.index <= replica.node.committed and not replica.node.needs_restore:
            return "the log is past it"
        if message.repair and message.meta.index > replica.node.committed:
            return "it is not known yet to be committed"
        free = shutil.disk_usage(self._inbox).free
        if manifest.size > free:
            return f"it takes {manifest.size} bytes, and {free} are free"
        return ""

    def stored(self, store: str, message: InstallSnapshot, directory: Path, manifest: Manifest) -> None:
        """A snapshot is there, whole: let the node begin at it."""
        replica = self._replica(message)
        if replica is None:
            remove_soon(directory)
            return
        replica.step(store, message)
        replica.applier.arrived(message.meta.index, directory)

    def _replica(self, message: InstallSnapshot) -> Replica | None:
        replica = self._replicas.get(message.group)
        if replica is None or replica.stopped or member(replica.id) != message.receiver:
            return None
        return replica
