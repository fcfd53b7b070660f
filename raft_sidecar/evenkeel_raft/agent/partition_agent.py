"""The sidecar half of the protocol for one partition on one store: what it remembers between two events.

Sans-IO. The decisions are the protocol's (`leader`, `replica`); what is added here is memory, all of which may be lost
at any moment: the view the watch last showed, whether this term's leader has begun with a linearizable read, which
transaction is on its way, and which lock is certainly ours. Whoever drives it (the sidecar's process, or the explorer)
asks what may be done, does it, and says what came of it.

    see            the watch, or a linearizable read, shows the keys at a revision
    to_start       the replica this volume should start
    lead           what the leader does next; nothing before `reads_first` has been satisfied in its term (`may_lead`)
    proposed       raft has taken a configuration to log
    sent/answered  a transaction leaves, and its result arrives; `gave_up` when it never does
    suspects       the keys seem to leave this store's replica out: read them anew, then `clear`
    cleared        they do, at one revision: ask the leader, and only then delete
"""

from __future__ import annotations

import msgspec

from evenkeel.metastore.metastore_api import Compare, TxnResult
from evenkeel.protocol import leader_decision, replica_decision
from evenkeel.protocol.keys import PartitionKeys
from evenkeel.protocol.partition_view import PartitionView
from evenkeel.protocol.records import ReplicaId, Retarget

__all__ = ["PartitionAgent", "SeenTable"]


class SeenTable(msgspec.Struct, frozen=True):
    """What the agent needs of a ready table's record: its mod revision, which all transactions compare."""

    mod_revision: int
    mode: Retarget
    bytes_per_second: int | None = None


class PartitionAgent:
    """One partition's agent on one store."""

    __slots__ = (
        "_keys", "_table_key", "cleared", "held", "lock_compared", "lock_mod", "need", "read_term", "seeding", "seen",
        "store", "table", "view", "volume", "waiting",
    )  # fmt: skip

    def __init__(self, keys: PartitionKeys, table_key: str, *, store: str, volume: str, held: int = 0) -> None:
        self._keys = keys
        self._table_key = table_key
        self.store = store
        self.volume = volume
        self.held = held
        """The highest replica id this volume ever held of the group; what it held it never starts again."""
        self.restart()

    def restart(self) -> None:
        """Begin with nothing but what is durable."""
        self.view: PartitionView | None = None
        self.table: SeenTable | None = None
        self.seen = 0
        self.need = 0
        self.read_term = 0
        self.waiting = ""
        self.lock_mod = 0
        self.lock_compared: tuple[int, int] | None = None
        """Pending and lock as a lock transaction of unknown outcome compares them: while they are so, it may land."""
        self.cleared: ReplicaId | None = None
        self.seeding = 0
        """For which version of the table's record the group's configuration was logged anew in this term."""

    # Seeing

    def see(self, view: PartitionView, table: SeenTable | None, *, revision: int) -> None:
        """The keys as of `revision`; `table` is None unless the table is ready.

        A watch that a read has overtaken, or a read that the watch has, brings nothing back that is over.
        """
        if revision >= self.seen:
            self.view, self.table, self.seen = view, table, revision

    def begin_term(self, term: int) -> None:
        """What was just seen was read linearizably after the election to `term`."""
        self.read_term, self.lock_mod, self.seeding = term, 0, 0

    # Leading

    def reads_first(self, term: int) -> bool:
        """Whether the leader of `term` must begin with a linearizable read of the keys."""
        return self.table is not None and not self.waiting and self.read_term != term

    def may_lead(self, term: int) -> bool:
        """Whether the leader of `term` has read, nothing is on its way, and what it wrote has been seen."""
        return self.table is not None and not self.waiting and self.read_term == term and self.seen >= self.need

    def lead(self, group: leader_decision.GroupView) -> leader_decision.Action | None:
        """What the leader does next, or None while there is nothing, or something must arrive first."""
        if self.view is None or self.table is None or not self.may_lead(group.term):
            return None
        outstanding = self.lock_compared == (self.view.pending_mod, self.view.lock_mod)
        return leader_decision.next_action(
            self.view,
            msgspec.structs.replace(group, lock_mod=self.lock_mod, lock_outstanding=outstanding, seeding=self.seeding),
            keys=self._keys,
            mode=self.table.mode,
            table=Compare(self._table_key, "mod", "=", self.table.mod_revision),
        )

    def proposed(self, propose: leader_decision.Propose) -> None:
        """Raft has taken the configuration to log."""
        if propose.what == "seed":
            self.seeding = propose.configuration.token

    def sent(self, write: leader_decision.Write) -> None:
        """A transaction is on its way; until it is answered, no lock is certain."""
        assert self.view is not None
        if write.what == "lock":
            self.lock_compared = (self.view.pending_mod, self.view.lock_mod)
        self.lock_mod = 0
        self.waiting = write.what

    def answered(self, result: TxnResult, *, revision: int) -> None:
        """The transaction's result; nothing more is done until the watch has shown `revision`."""
        if self.waiting == "lock":
            self.lock_compared = None
            self.lock_mod = result.revision if result.succeeded else 0
        self.waiting = ""
        self.need = revision

    def gave_up(self) -> None:
        """The outcome stays unknown: begin again with a linearizable read, and put the lock anew."""
        self.waiting, self.read_term, self.lock_mod = "", 0, 0

    # Starting and deleting

    def to_start(self) -> replica_decision.Start | None:
        """The replica to start, where the table is ready and none of the group runs here."""
        if self.view is None or self.table is None:
            return None
        return replica_decision.start(self.view, store=self.store, volume=self.volume, newest_held=self.held)

    def suspects(self, running: ReplicaId) -> bool:
        """Whether what was last seen makes it worth finding out if the replica may go."""
        return self.view is not None and replica_decision.excluded(self.view, running)

    def clear(self, running: ReplicaId) -> None:
        """What was just seen was read linearizably: remember whether it leaves the replica out."""
        self.cleared = running if self.suspects(running) else None
