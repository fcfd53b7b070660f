"""The state of the reference state machine: entries are applied once, in order and atomically."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from evenkeel.errors import StateMachineError
from evenkeel.wire.socket_messages import Apply, LoggedEntry
from evenkeel_reference.reference_entries import (
    TOKENS_KEPT,
    Barrier,
    Batch,
    Conditional,
    Delete,
    Entry,
    Upsert,
    encode_entry,
)
from evenkeel_reference.reference_snapshot import read_snapshot, write_snapshot
from evenkeel_reference.reference_state import BARRIERS_KEPT, State, Value


@pytest.fixture
def state(tmp_path: Path) -> Iterator[State]:
    opened = State(tmp_path / "state.db")
    opened.create(1, 10)
    yield opened
    opened.close()


def apply(state: State, *entries: Entry, group: int = 1, replica: int = 10) -> int:
    known = state.group(group)
    assert known is not None
    first = known.applied + 1
    logged = [LoggedEntry(first + place, encode_entry(entry)) for place, entry in enumerate(entries)]
    with state.transaction():
        return state.apply(group, replica, Apply(first, first + len(entries) - 1, logged))


def test_kinds(state: State) -> None:
    """Upserts set and count versions, deletes remove, barriers record a hash."""
    apply(state, Upsert("", 0, b"a", b"1"), Upsert("", 0, b"a", b"2"), Upsert("", 0, b"b", b"3"), Delete("", 0, b"b"))
    apply(state, Delete("", 0, b"none"), Barrier())
    assert state.get(1, b"a") == Value(b"2", 2)
    assert state.get(1, b"b") is None
    assert list(state.barriers(1)) == [6]


def test_batch(state: State) -> None:
    """A batch sets and removes keys in order; a repeated batch with the same token changes nothing."""
    batch = Batch("w", 1, [(b"a", b"1"), (b"b", b"2"), (b"a", None), (b"a", b"3"), (b"c", b"4"), (b"b", None)])
    apply(state, Upsert("", 0, b"c", b"0"), batch, batch)
    assert state.get(1, b"a") == Value(b"3", 1)
    assert state.get(1, b"b") is None
    assert state.get(1, b"c") == Value(b"4", 2)


@pytest.mark.parametrize(
    ("held", "expected", "value", "ok"),
    [
        (b"x", b"x", b"y", True),
        (b"x", b"z", b"y", False),
        (b"x", None, b"y", False),
        (None, None, b"y", True),
        (None, b"x", b"y", False),
        (b"x", b"x", None, True),
    ],
)
def test_conditional(state: State, held: bytes | None, expected: bytes | None, value: bytes | None, ok: bool) -> None:
    """A conditional entry changes the key only if its value is as expected; its result is stored with its token."""
    if held is not None:
        apply(state, Upsert("", 0, b"k", held))
    apply(state, Conditional("w", 1, b"k", expected, value))
    now = state.get(1, b"k")
    assert state.outcome(1, "w", 1) is ok
    assert (now.value if now else None) == (value if ok else held)


def test_token_is_applied_once(state: State) -> None:
    """A repeated entry changes nothing and keeps its first result, also after the key has changed."""
    apply(state, Conditional("w", 1, b"k", None, b"1"), Upsert("w", 2, b"n", b"1"))
    apply(state, Conditional("w", 1, b"k", None, b"1"), Upsert("w", 2, b"n", b"1"), Delete("", 0, b"k"))
    apply(state, Conditional("w", 1, b"k", None, b"1"))
    assert state.get(1, b"n") == Value(b"1", 1)
    assert state.get(1, b"k") is None
    assert state.outcome(1, "w", 1) is True


def test_forgotten_token_is_not_applied(state: State) -> None:
    """A token older than the last 1,024 of its writer is ignored; within them any order is accepted."""
    apply(state, *(Upsert("w", number, b"k", b"x") for number in range(2, TOKENS_KEPT + 3) if number != 500))
    apply(state, Upsert("w", 500, b"k", b"late but known to be new"))
    assert state.get(1, b"k") == Value(b"late but known to be new", TOKENS_KEPT + 1)
    apply(state, Upsert("w", 1, b"k", b"too late"), Upsert("v", 1, b"other", b"writer"))
    assert state.get(1, b"k") == Value(b"late but known to be new", TOKENS_KEPT + 1)
    assert state.get(1, b"other") == Value(b"writer", 1)


@pytest.mark.parametrize("first", [0, 1, 2, 4, 5])
def test_only_the_next_index_is_applied(state: State, first: int) -> None:
    """A request that repeats or skips entries fails with the expected index."""
    apply(state, Upsert("", 0, b"a", b"1"), Upsert("", 0, b"a", b"2"))
    again = Apply(first, first, [LoggedEntry(first, encode_entry(Upsert("", 0, b"a", b"3")))])
    with state.transaction(), pytest.raises(StateMachineError, match="the applied index is 2, so the next index is 3"):
        state.apply(1, 10, again)
    assert state.get(1, b"a") == Value(b"2", 2)


def test_entry_that_cannot_be_read_stops_its_group_alone(state: State) -> None:
    """A failed request changes nothing; the other requests of the transaction are applied."""
    state.create(2, 20)
    bad = Apply(1, 2, [LoggedEntry(1, encode_entry(Upsert("", 0, b"a", b"1"))), LoggedEntry(2, b"\xc1")])
    with state.transaction():
        with pytest.raises(StateMachineError, match="group 1 stopped before index 1"):
            state.apply(1, 10, bad)
        state.apply(2, 20, Apply(1, 1, [LoggedEntry(1, encode_entry(Upsert("", 0, b"a", b"1")))]))
    assert (state.get(1, b"a"), state.get(2, b"a")) == (None, Value(b"1", 1))


def test_other_replica_is_another_group(state: State) -> None:
    """A new replica starts empty; a late request to destroy the old replica does not affect it."""
    apply(state, Upsert("", 0, b"a", b"1"))
    with state.transaction(), pytest.raises(StateMachineError, match="not open for replica 11"):
        state.apply(1, 11, Apply(2, 2, []))
    state.create(1, 11)
    assert state.get(1, b"a") is None
    state.destroy(1, 10)
    assert state.group(1) == (11, 0)
    state.destroy(1, 11)
    assert state.group(1) is None


def test_hash_ignores_order_and_sees_everything(state: State) -> None:
    """Equal states have equal hashes for any order of writes; one more write of the same value changes the hash."""
    for group in (2, 3, 4):
        state.create(group, 10)
    one, two = Upsert("", 0, b"a", b"1"), Upsert("", 0, b"b", b"2")
    for group, entries in ((1, (one, two)), (2, (two, one)), (3, (one, two, two)), (4, (one,))):
        apply(state, *entries, Barrier(), group=group)
    hashes = [next(iter(state.barriers(group).values())) for group in (1, 2, 3, 4)]
    assert hashes[0] == hashes[1]
    assert len(set(hashes)) == 3


def test_barriers_are_bounded(state: State) -> None:
    """Only the most recent hashes are kept."""
    apply(state, *[Barrier()] * (BARRIERS_KEPT + 5))
    assert list(state.barriers(1)) == list(range(6, BARRIERS_KEPT + 6))


entries = st.one_of(
    st.builds(
        Upsert, st.sampled_from(["", "w"]), st.integers(0, 5), st.sampled_from([b"a", b"b"]), st.binary(max_size=2)
    ),
    st.builds(Delete, st.sampled_from(["", "w"]), st.integers(0, 5), st.sampled_from([b"a", b"b"])),
    st.just(Barrier()),
)


@settings(max_examples=15, derandomize=True, deadline=None)
@given(st.lists(entries, max_size=12), st.lists(entries, max_size=6))
def test_snapshot_is_the_state(
    tmp_path_factory: pytest.TempPathFactory, before: Sequence[Entry], after: Sequence[Entry]
) -> None:
    """A restored replica behaves exactly like the original, tokens included."""
    directory = tmp_path_factory.mktemp("snapshot")
    state = State(directory / "state.db")
    state.create(1, 10)
    apply(state, *before)
    with state.transaction():
        names = write_snapshot(directory, state.contents(1))
    state.create(2, 20)
    state.replace(2, 20, read_snapshot(directory, index=len(before)))
    assert sorted(names) == ["about", "rows"]
    for group, replica in ((1, 10), (2, 20)):
        apply(state, *after, Barrier(), group=group, replica=replica)
    assert state.barriers(1) == state.barriers(2)
    assert state.group(2) == (20, len(before) + len(after) + 1)
    state.close()


def test_snapshot_of_many_rows(state: State, tmp_path: Path) -> None:
    """A snapshot restores more rows than fit in one frame, and values of a megabyte."""
    apply(state, *(Upsert("", 0, b"%d" % number, b"v") for number in range(2500)))
    apply(state, *(Upsert("", 0, b"big%d" % number, bytes(1 << 20)) for number in range(3)), Barrier())
    with state.transaction():
        write_snapshot(tmp_path, state.contents(1))
    state.create(2, 20)
    state.replace(2, 20, read_snapshot(tmp_path, index=2504))
    apply(state, Barrier())
    apply(state, Barrier(), group=2, replica=20)
    assert state.barriers(1)[2505] == state.barriers(2)[2505]


def _name_table(directory: Path, old: bytes, new: bytes) -> None:
    """Rename a table in the rows file, and correct the checksum."""
    rows, about = directory / "rows", directory / "about"
    was = hashlib.sha256(rows.read_bytes()).hexdigest()
    rows.write_bytes(rows.read_bytes().replace(old, new))
    about.write_text(about.read_text().replace(was, hashlib.sha256(rows.read_bytes()).hexdigest()))


@pytest.mark.parametrize("damage", ["flip", "cut", "long", "table", "rows", "about", "index", "format"])
def test_damaged_snapshot_changes_nothing(state: State, tmp_path: Path, damage: str) -> None:
    """A damaged snapshot, or one with another index, is rejected before the state changes."""
    apply(state, Upsert("", 0, b"a", b"1"))
    with state.transaction():
        write_snapshot(tmp_path, state.contents(1))
    apply(state, Upsert("", 0, b"a", b"2"))
    rows, about = tmp_path / "rows", tmp_path / "about"
    match damage:
        case "flip":
            rows.write_bytes(bytes([*rows.read_bytes()[:-1], rows.read_bytes()[-1] ^ 1]))
        case "cut":
            rows.write_bytes(rows.read_bytes()[:-1])
        case "long":
            rows.write_bytes(rows.read_bytes() + b"\xff\xff\xff\xff")
        case "table":
            _name_table(tmp_path, b"entries", b"nothing")
        case "format":
            about.write_text(about.read_text().replace('"format":1', '"format":9'))
        case "rows" | "about":
            (tmp_path / damage).unlink()
    with pytest.raises(StateMachineError, match="snapshot"):
        state.replace(1, 10, read_snapshot(tmp_path, index=2 if damage == "index" else 1))
    assert state.get(1, b"a") == Value(b"2", 2)
