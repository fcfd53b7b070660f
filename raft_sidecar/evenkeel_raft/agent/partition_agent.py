"""Sans-IO agent of one partition on one store: its state between two events.

The decisions are those of the protocol (`leader_decision`, `replica_decision`). This class adds memory, all of which
may be lost at any moment: the last view, whether this term's leader has done its linearizable read, which transaction
is in flight, and which lock certainly belongs to this leader. Its driver (the sidecar, or the explorer) asks what to
do, does it, and reports the outcome.

    see                 the watch or a linearizable read shows the keys at a revision
    to_start            the replica that this volume should start
    lead                the leader's next action, after its term's linearizable read (`reads_first`, `may_lead`)
    proposed            raft accepted a configuration
    sent, answered      a transaction was sent, and its result arrived; `outcome_unknown` if it did not
    seems_excluded      the keys seem to exclude this store's replica: read them linearizably, then `confirm_exclusion`
    confirmed_excluded  the replica that a linearizable read excluded: ask the group's leader before deleting it
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
    """The fields of a ready table's record that the agent needs; all transactions compare its mod revision."""

    mod_revision: int
    mode: Retarget
    bytes_per_second: int | None = None


class PartitionAgent:
    """The agent of one partition on one store."""

    __slots__ = (
        "_keys", "_table_key", "confirmed_excluded", "held", "lock_compared", "lock_mod", "need", "read_term",
        "seeding", "seen", "store", "table", "view", "volume", "waiting",
    )  # fmt: skip

    def __init__(self, keys: PartitionKeys, table_key: str, *, store: str, volume: str, held: int = 0) -> None:
        self._keys = keys
        self._table_key = table_key
        self.store = store
        self.volume = volume
        self.held = held
        """The highest replica id that this volume ever held of the group. It never starts that or a lower one again."""
        self.restart()

    def restart(self) -> None:
        """Reset to the durable state."""
        self.view: PartitionView | None = None
        self.table: SeenTable | None = None
        self.seen = 0
        self.need = 0
        self.read_term = 0
        self.waiting = ""
        self.lock_mod = 0
        self.lock_compared: tuple[int, int] | None = None
        """Pending and lock as compared by a lock transaction of unknown outcome; it may succeed while both match."""
        self.confirmed_excluded: ReplicaId | None = None
        self.seeding = 0
        """The version of the table's record for which this term's leader proposed the group's configuration again."""

    # Observing

    def see(self, view: PartitionView, table: SeenTable | None, *, revision: int) -> None:
        """Record the keys as of `revision`; `table` is None unless the table is ready.

        Ignores a view that is older than the last one: a watch and a read can overtake each other.
        """
        if revision >= self.seen:
            self.view, self.table, self.seen = view, table, revision

    def begin_term(self, term: int) -> None:
        """Record that the last view was read linearizably after the election of `term`."""
        self.read_term, self.lock_mod, self.seeding = term, 0, 0

    # Leading

    def reads_first(self, term: int) -> bool:
        """Whether the leader of `term` must read the keys linearizably before it acts."""
        return self.table is not None and not self.waiting and self.read_term != term

    def may_lead(self, term: int) -> bool:
        """Whether the leader of `term` has read, has no transaction in flight, and has seen its last write."""
        return self.table is not None and not self.waiting and self.read_term == term and self.seen >= self.need

    def lead(self, group: leader_decision.GroupView) -> leader_decision.Action | None:
        """Return the leader's next action; None if there is none or it must wait."""
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
        """Record that raft accepted the configuration."""
        if propose.what == "seed":
            self.seeding = propose.configuration.token

    def sent(self, write: leader_decision.Write) -> None:
        """Record that a transaction is in flight; until it is answered, no lock is certain."""
        assert self.view is not None
        if write.what == "lock":
            self.lock_compared = (self.view.pending_mod, self.view.lock_mod)
        self.lock_mod = 0
        self.waiting = write.what

    def answered(self, result: TxnResult, *, revision: int) -> None:
        """Record the transaction's result; the leader waits until the watch has shown `revision`."""
        if self.waiting == "lock":
            self.lock_compared = None
            self.lock_mod = result.revision if result.succeeded else 0
        self.waiting = ""
        self.need = revision

    def outcome_unknown(self) -> None:
        """Record that the outcome stays unknown: the leader reads linearizably and writes its lock again."""
        self.waiting, self.read_term, self.lock_mod = "", 0, 0

    # Starting and deleting

    def to_start(self) -> replica_decision.Start | None:
        """Return the replica to start, given that none of the group runs here; None if the table is not ready."""
        if self.view is None or self.table is None:
            return None
        return replica_decision.start(self.view, store=self.store, volume=self.volume, newest_held=self.held)

    def seems_excluded(self, running: ReplicaId) -> bool:
        """Whether the last view excludes the replica, so that a linearizable read is worthwhile."""
        return self.view is not None and replica_decision.excluded(self.view, running)

    def confirm_exclusion(self, running: ReplicaId) -> None:
        """Record whether the view just read linearizably excludes the replica."""
        self.confirmed_excluded = running if self.seems_excluded(running) else None
