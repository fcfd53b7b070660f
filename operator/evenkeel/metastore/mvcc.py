"""Etcd's data model as a synchronous in-memory store with revisions, transactions, leases and history.

The simulations, the protocol explorer and `MemoryMetastore` use this core, so it behaves exactly like etcd wherever a
transaction could observe a difference:

- The empty store is at revision 1. A transaction that changes something creates one new revision, no matter how many
  keys it changes; one that only reads, or deletes nothing, creates none.
- Both branches are checked before anything runs: at most 128 comparisons and operations each, no empty key,
  and no key put twice or put and deleted in one branch. A refused transaction changes nothing.
- Operations run in order and see the effects of earlier ones of the same transaction.
- A comparison of an absent key's value never holds, not even `!=`; its mod, create and version are 0.
- Revoking a lease deletes its keys in one revision; a key put again belongs to the lease of its last put.

There is no clock: the caller expires leases. A clone shares nothing with its origin and costs two shallow copies; with
`keep_history=False` the store never grows beyond the live keys.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable

from evenkeel.errors import CompactedError, LeaseNotFoundError, RefusedError
from evenkeel.metastore.metastore_api import (
    MAX_TXN_OPS,
    Compare,
    Delete,
    Event,
    Get,
    KeyValue,
    Op,
    OpResult,
    Put,
    Snapshot,
    Txn,
    TxnResult,
)

__all__ = ["Mvcc"]

_NOTHING = OpResult()

_Change = tuple[Event, KeyValue | None]
"""A change and the key's value before it, so that past states can be restored by undoing."""


class Mvcc:
    """One store; every method is atomic, and none blocks."""

    __slots__ = ("_compacted", "_history", "_keys", "_leases", "_live", "_next_lease", "_revision")

    def __init__(self, *, keep_history: bool = True) -> None:
        self._live: dict[str, KeyValue] = {}
        self._keys: list[str] = []
        self._revision = 1
        self._compacted = 0
        self._history: list[_Change] | None = [] if keep_history else None
        self._leases: frozenset[int] = frozenset()
        self._next_lease = 1

    @property
    def revision(self) -> int:
        """The revision of the last change; 1 if there was none."""
        return self._revision

    @property
    def compacted(self) -> int:
        """The oldest revision that can still be read."""
        return self._revision if self._history is None else self._compacted

    @property
    def leases(self) -> frozenset[int]:
        """The leases that have neither been revoked nor expired."""
        return self._leases

    def clone(self) -> Mvcc:
        """Return an independent copy of the store."""
        twin = Mvcc.__new__(Mvcc)
        twin._live = self._live.copy()
        twin._keys = self._keys.copy()
        twin._revision = self._revision
        twin._compacted = self._compacted
        twin._history = None if self._history is None else self._history.copy()
        twin._leases = self._leases
        twin._next_lease = self._next_lease
        return twin

    def get(self, key: str) -> KeyValue | None:
        """Return the key's present value."""
        if not key:
            raise _empty_key()
        return self._live.get(key)

    def range(self, prefix: str, revision: int = 0) -> Snapshot:
        """Return all keys under `prefix` at `revision` (0: the newest)."""
        if revision in (0, self._revision):
            return Snapshot(prefix, self._revision, self._under(prefix))
        return Snapshot(prefix, revision, self._under_at(prefix, revision))

    def txn(self, txn: Txn) -> TxnResult:
        """Run one transaction; if it raises, nothing has changed."""
        _check(txn)
        succeeded = all(map(self._holds, txn.compares))
        ops = txn.success if succeeded else txn.failure
        self._check_leases(ops)
        results = self._run(ops)
        return TxnResult(succeeded, self._revision, results)

    def changes(self, prefix: str, after_revision: int) -> list[Event]:
        """Return every change under `prefix` after `after_revision`, oldest first."""
        if after_revision < self.compacted:
            raise self._gone(after_revision)
        recent = (event for event, _ in self._since(after_revision))
        return [event for event in recent if event.key.startswith(prefix)]

    def compact(self, revision: int) -> None:
        """Remove the history before `revision`, which itself stays readable."""
        if revision > self._revision:
            raise self._future(revision)
        if revision <= self.compacted:
            raise self._gone(revision)
        assert self._history is not None
        self._history = self._since(revision)
        self._compacted = revision

    def grant_lease(self, lease: int = 0) -> int:
        """Create a lease, with a new id if `lease` is 0, and return its id."""
        if lease == 0:
            lease = self._next_lease
            while lease in self._leases:
                lease += 1
            self._next_lease = lease + 1
        elif lease in self._leases:
            raise RefusedError(f"lease {lease:x} already exists; use another id, or 0")
        self._leases |= {lease}
        return lease

    def revoke_lease(self, lease: int) -> None:
        """End a lease and delete its keys in one revision."""
        self._check_lease(lease)
        self._leases -= {lease}
        bound = [key for key in self._keys if self._live[key].lease == lease]
        if bound:
            self._revision += 1
            self._remove(bound, self._revision)

    def expire(self, lease: int) -> None:
        """Expire a lease, which has the same effect as revoking it."""
        self.revoke_lease(lease)

    def _holds(self, compare: Compare) -> bool:
        """Whether one comparison holds now."""
        if not compare.end:
            return _satisfies(self._live.get(compare.key), compare)
        keys = self._keys[bisect_left(self._keys, compare.key) : bisect_left(self._keys, compare.end)]
        return all(_satisfies(self._live[key], compare) for key in keys) if keys else _satisfies(None, compare)

    def _run(self, ops: Iterable[Op]) -> tuple[OpResult, ...]:
        """Run a branch whose checks have passed, so that it cannot fail half-way."""
        revision = self._revision + 1
        changed = False
        results = []
        for op in ops:
            if isinstance(op, Put):
                self._put(op, revision)
                changed = True
                results.append(_NOTHING)
            elif isinstance(op, Delete):
                deleted = self._remove(self._matching(op), revision)
                changed = changed or deleted > 0
                results.append(OpResult(deleted=deleted))
            else:
                results.append(OpResult(tuple([self._live[key] for key in self._matching(op)])))
        if changed:
            self._revision = revision
        return tuple(results)

    def _put(self, put: Put, revision: int) -> None:
        before = self._live.get(put.key)
        if before is None:
            insort(self._keys, put.key)
            kv = KeyValue(put.key, put.value, revision, revision, 1, put.lease)
        else:
            kv = KeyValue(put.key, put.value, revision, before.create_revision, before.version + 1, put.lease)
        self._live[put.key] = kv
        if self._history is not None:
            self._history.append((Event(put.key, kv, revision), before))

    def _remove(self, keys: list[str], revision: int) -> int:
        for key in keys:
            before = self._live.pop(key)
            del self._keys[bisect_left(self._keys, key)]
            if self._history is not None:
                self._history.append((Event(key, None, revision), before))
        return len(keys)

    def _matching(self, op: Get | Delete) -> list[str]:
        if op.prefix:
            return self._keys_under(op.key)
        return [op.key] if op.key in self._live else []

    def _keys_under(self, prefix: str) -> list[str]:
        if not prefix:
            return self._keys.copy()
        length = len(prefix)
        first = bisect_left(self._keys, prefix)
        end = bisect_right(self._keys, prefix, first, key=lambda key: key[:length])
        return self._keys[first:end]

    def _under(self, prefix: str) -> tuple[KeyValue, ...]:
        live = self._live
        return tuple([live[key] for key in self._keys_under(prefix)])

    def _under_at(self, prefix: str, revision: int) -> tuple[KeyValue, ...]:
        """Return a past state by undoing later changes, newest first."""
        if revision > self._revision:
            raise self._future(revision)
        if revision < self.compacted:
            raise self._gone(revision)
        past: dict[str, KeyValue | None] = {kv.key: kv for kv in self._under(prefix)}
        for event, before in reversed(self._since(revision)):
            if event.key.startswith(prefix):
                past[event.key] = before
        return tuple([kv for _, kv in sorted(past.items()) if kv is not None])

    def _since(self, revision: int) -> list[_Change]:
        if self._history is None:
            return []
        return self._history[bisect_right(self._history, revision, key=_revision_of) :]

    def _check_leases(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if isinstance(op, Put) and op.lease:
                self._check_lease(op.lease)

    def _check_lease(self, lease: int) -> None:
        if lease not in self._leases:
            raise LeaseNotFoundError(f"lease {lease:x} does not exist: it expired or was revoked; grant a new one")

    def _gone(self, revision: int) -> CompactedError:
        return CompactedError(
            f"revision {revision} has been compacted; the oldest that can be read is {self.compacted}",
            first_revision=self.compacted,
        )

    def _future(self, revision: int) -> RefusedError:
        return RefusedError(f"revision {revision} is in the future; the newest is {self._revision}")


def _revision_of(change: _Change) -> int:
    return change[0].mod_revision


def _check(txn: Txn) -> None:
    """Refuse what etcd refuses before it reads any key."""
    if max(len(txn.compares), len(txn.success), len(txn.failure)) > MAX_TXN_OPS:
        raise RefusedError(
            f"too many operations in a transaction: {len(txn.compares)} comparisons, {len(txn.success)} and "
            f"{len(txn.failure)} operations; allowed: at most {MAX_TXN_OPS} of each; split it"
        )
    for compare in txn.compares:
        if not compare.key:
            raise _empty_key()
        if (type(compare.operand) is bytes) != (compare.field == "value"):
            raise RefusedError(f"{compare.field} of {compare.key!r} cannot be compared with {compare.operand!r}")
    _check_branch(txn.success)
    _check_branch(txn.failure)


def _check_branch(ops: tuple[Op, ...]) -> None:
    """Refuse empty keys, and a key that one branch would change twice."""
    puts = set()
    deletes = []
    for op in ops:
        if isinstance(op, Put):
            if op.key in puts:
                raise _duplicate_key(op.key)
            puts.add(op.key)
        elif isinstance(op, Delete):
            deletes.append(op)
        if not op.key and (isinstance(op, Put) or not op.prefix):
            raise _empty_key()
    for delete in deletes:
        _check_overlap(delete, puts)


def _check_overlap(delete: Delete, puts: set[str]) -> None:
    if not delete.prefix:
        if delete.key in puts:
            raise _duplicate_key(delete.key)
        return
    for key in puts:
        if key.startswith(delete.key):
            raise _duplicate_key(key)


def _duplicate_key(key: str) -> RefusedError:
    return RefusedError(f"duplicate key {key!r}: one branch of a transaction may change a key only once")


def _empty_key() -> RefusedError:
    return RefusedError("a key must not be empty")


def _satisfies(kv: KeyValue | None, compare: Compare) -> bool:
    """Whether a comparison holds for a key-value, or for an absent key."""
    actual: int | bytes
    if compare.field == "mod":
        actual = 0 if kv is None else kv.mod_revision
    elif compare.field == "version":
        actual = 0 if kv is None else kv.version
    elif compare.field == "create":
        actual = 0 if kv is None else kv.create_revision
    elif kv is None:
        return False
    else:
        actual = kv.value
    if compare.op == "=":
        return actual == compare.operand
    if compare.op == "!=":
        return actual != compare.operand
    if compare.op == "<":
        return actual < compare.operand  # type: ignore[operator]  # _check ensures equal types
    return actual > compare.operand  # type: ignore[operator]
