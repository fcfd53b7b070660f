"""Validation of records against the log heads."""

from __future__ import annotations

import pytest

from evenkeel_raft.core.raft_types import Entry, HardState
from evenkeel_raft.errors import RecordRefusedError
from evenkeel_raft.log.log_heads import Heads
from evenkeel_raft.log.log_records import Append, Compacted, Created, Destroyed, Metastore, Record
from tests.raft_log.support import append, compacted, installed, state


@pytest.fixture
def heads() -> Heads:
    """Group 1: replica 5, entries up to 10, term 3, vote for 2, committed 4. Group 2: replicas up to 7 are gone."""
    heads = Heads()
    heads.admit(Created(1, 5, 2))
    heads.admit(Append(1, 5, 2, None, append(1, 1, 10).entries, HardState(3, 2, 4)))
    heads.admit(Created(2, 7, 0))
    heads.admit(Destroyed(2, 7))
    return heads


REFUSED: dict[str, tuple[Record, str]] = {
    "gap": (Append(1, 5, 2, None, append(1, 12, 12).entries, None), "entry 12 does not fit a log from 0 to 10"),
    "entry nought": (Append(1, 5, 2, None, append(1, 0, 0).entries, None), "entry 0 does not fit"),
    "holes": (Append(1, 5, 2, None, [Entry(9, 1, 0, b""), Entry(11, 1, 0, b"")], None), "not consecutive"),
    "gap behind a snapshot": (
        Append(1, 5, 2, installed(1, 20).snapshot, append(1, 11, 11).entries, None),
        "entry 11 does not fit a log from 20 to 20",
    ),
    "entries that are committed": (Append(1, 5, 2, None, append(1, 4, 5).entries, None), "committed up to 4"),
    "commit beyond the end": (Append(1, 5, 2, None, [], HardState(3, 2, 11)), "commit index 11 is not between 4 and"),
    "commit that falls": (Append(1, 5, 2, None, [], HardState(3, 2, 3)), "commit index 3 is not between 4 and"),
    "older term": (Append(1, 5, 2, None, [], HardState(2, 0, 0)), "term 2 is older than 3"),
    "second vote": (Append(1, 5, 2, None, [], HardState(3, 1, 0)), "already voted for 2 in term 3"),
    "vote taken back": (Append(1, 5, 2, None, [], HardState(3, 0, 0)), "already voted for 2 in term 3"),
    "older generation": (Append(1, 5, 1, None, [], None), "generation 1 is older than 2"),
    "another replica": (Append(1, 6, 2, None, [], None), "the volume holds replica 5"),
    "unknown group": (state(3, HardState()), "does not hold the group"),
    "gone group": (state(2, HardState(), replica=7), "does not hold the group"),
    "id used up": (Created(2, 7, 0), "ids up to 7 of the group were already used"),
    "created twice": (Created(1, 9, 0), "replica 5 of the group still exists"),
    "destroyed twice": (Destroyed(2, 7), "does not hold this replica"),
    "compacted beyond the end": (Compacted(1, 5, 2, compacted(1, 11).meta), "the log spans 0 to 10"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(heads: Heads, case: str) -> None:
    """An invalid record is refused with the reason and changes nothing."""
    record, reason = REFUSED[case]
    before = repr((heads.groups, heads.retired))
    with pytest.raises(RecordRefusedError, match=reason):
        heads.admit(record)
    assert repr((heads.groups, heads.retired)) == before


def test_admitted(heads: Heads) -> None:
    """Valid records are admitted."""
    for record in (
        Append(1, 5, 2, None, [], HardState(3, 2, 4)),
        Append(1, 5, 2, None, append(1, 6, 7).entries, HardState(4, 0, 4)),
        Append(1, 5, 2, None, append(1, 8, 8).entries, HardState(4, 3, 8)),
        Append(1, 5, 3, installed(1, 20).snapshot, append(1, 21, 22).entries, None),
        Created(2, 8, 0),
        Created(3, 1, 0),
        Metastore(1, 5),
        Destroyed(1, 5),
        Created(1, 6, 0),
    ):
        heads.admit(record)
    assert {group: head.last for group, head in heads.groups.items()} == {1: 0, 2: 0, 3: 0}
