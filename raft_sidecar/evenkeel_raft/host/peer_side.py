"""Messages and snapshots from other stores."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from evenkeel_raft.agent.configurations import member
from evenkeel_raft.core.messages import InstallSnapshot, Message
from evenkeel_raft.host.arrivals import remove_soon
from evenkeel_raft.host.inquiries import Inquiries
from evenkeel_raft.host.ports import Tally
from evenkeel_raft.host.replica import Replica
from evenkeel_raft.host.upkeep import Upkeep
from evenkeel_raft.net.files.manifest import Manifest
from evenkeel_raft.net.frames import Inquiry, Verdict

__all__ = ["PeerSide"]


class PeerSide:
    """What the links to other stores call."""

    def __init__(self, replicas: Mapping[int, Replica], *, tally: Tally, inbox: Path) -> None:
        self.inquiries: Inquiries | None = None
        self.upkeep: Upkeep | None = None
        self._replicas = replicas
        self._tally = tally
        self._inbox = inbox

    # Messages

    def received(self, store: str, messages: list[Message]) -> None:
        """Hand messages to their replicas."""
        replicas, refused = self._replicas, self._tally.refused_messages
        for message in messages:
            replica = replicas.get(message.group)
            if replica is None:
                refused["unknown_group"] += 1
            else:
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
