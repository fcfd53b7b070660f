"""Metastore values: their encoding, and malformed ones."""

from __future__ import annotations

import json

import msgspec
import pytest

from evenkeel.errors import MalformedRecordError
from evenkeel.protocol.partition_view import read_partition
from evenkeel.protocol.records import (
    GroupLoad,
    InhibitionOrder,
    LeaderOrder,
    Lock,
    Peer,
    Pending,
    PlanCounts,
    PlanHead,
    Planned,
    PlanSlice,
    Retarget,
    Role,
    Stable,
    StoreLoad,
    StoreRecord,
    StoreState,
    TableRecord,
    TableState,
    Tombstone,
    decode,
    encode,
    shape,
    voters,
)
from evenkeel.protocol.stored_plan import read_plan
from evenkeel.protocol.table_lifecycle import confirm_drop, make_ready, remove_tombstone
from tests.protocol.support import KEYS, PARTITION, TABLE, holds, peers, put, queue, stored, targets

RECORD = TableRecord(
    partitions=2, replicas=3, consensus_size=3, retarget=Retarget.CANCEL, spec=msgspec.Raw(b'{"a":[1]}')
)


@pytest.mark.parametrize(
    ("record", "text"),
    [
        (Stable(peers("a1")), '{"peers":[{"store":"a","volume":"a-1","replica":1,"role":"voter"}]}'),
        (
            Stable(peers("a1*"), genesis=True),
            '{"peers":[{"store":"a","volume":"a-1","replica":1,"role":"learner"}],"genesis":true}',
        ),
        (queue("a1"), '{"queue":[[{"store":"a","volume":"a-1","replica":1,"role":"voter"}]]}'),
        (Lock(token=7, term=2), '{"token":7,"term":2}'),
        (5, "5"),
        (
            RECORD,
            '{"partitions":2,"replicas":3,"consensus_size":3,"retarget":"Cancel","spec":{"a":[1]}}',
        ),
        (Tombstone((("s", "v"),)), '{"waiting":[["s","v"]]}'),
        (StoreRecord(volume="v", zone="z"), '{"volume":"v","zone":"z"}'),
        (StoreState(volume="v", lost_since=3.5), '{"volume":"v","lost_since":3.5}'),
        (LeaderOrder("s", 9.5), '{"store":"s","expires":9.5,"seconds":60.0}'),
        (InhibitionOrder(pod="u"), '{"pod":"u"}'),
        (
            StoreLoad(
                replicas=1, leading=1, log_bytes=20, bytes_per_second=3, tables={"t": (GroupLoad(7, True, 20, 3, 50),)}
            ),
            '{"replicas":1,"leading":1,"log_bytes":20,"bytes_per_second":3,"tables":{"t":[[7,true,20,3,50]]}}',
        ),
        (
            PlanHead(n=1, hash="h", inputs=9, basis="b", slices=1, counts=PlanCounts(partitions=2, moves=3, leaders=1)),
            '{"n":1,"hash":"h","inputs":9,"basis":"b","slices":1,"state":"active",'
            '"counts":{"partitions":2,"moves":3,"leaders":1}}',
        ),
    ],
    ids=lambda value: type(value).__name__,
)
def test_records_are_json(record: object, text: str) -> None:
    """Each record is plain JSON with the documented names, and decodes to the same record."""
    assert encode(record).decode() == text
    assert json.loads(text) is not None
    assert decode(type(record), text.encode(), key="k") == record


def test_unknown_fields_are_left_to_newer_versions() -> None:
    """A field that a newer version added is ignored."""
    assert decode(Lock, b'{"token":1,"term":2,"since":3}', key="k") == Lock(token=1, term=2)


def test_configurations_are_sets() -> None:
    """Configurations are compared by store, volume and role, not by order or ids."""
    assert shape(peers("a1 b2*")) == shape(peers("b7* a3")) == shape(targets("b* a"))
    for other in ("a", "a b", "a@2 b*", "a b* c", "a* b*"):
        assert shape(peers("a1 b2*")) != shape(targets(other)), other


def test_identity_is_store_and_number() -> None:
    """Two stores added by one plan are two replicas, and a role does not change a replica's identity."""
    one, other = peers("a4 b4")
    assert one.id != other.id
    assert one.id == Peer("a", "a-1", 4, Role.LEARNER).id
    assert voters(peers("a1 b1* c2")) == peers("a1 c2")


WRONG = [
    (PARTITION.stable, b"", "Stable"),
    (PARTITION.stable, b'{"peers":"a"}', "Stable"),
    (PARTITION.stable, b'{"peers":[{"store":"a","volume":"v","replica":"x"}]}', "Stable"),
    (PARTITION.pending, b'{"queue":[[{"store":"a"}]]}', "Pending"),
    (PARTITION.pending, b"\xff\xfe", "Pending"),
    (PARTITION.planned, b'{"peers":[{"store":"a","volume":"v","replica":1,"role":"king"}]}', "Planned"),
    (PARTITION.trigger, b'"7"', "int"),
    (PARTITION.trigger, b"true", "int"),
    (PARTITION.lock, b'{"token":1}', "Lock"),
]


@pytest.mark.parametrize(("key", "value", "kind"), WRONG)
def test_malformed_partition_keys(key: str, value: bytes, kind: str) -> None:
    """The error for a malformed value names the key, what it should hold, and what to do."""
    kv = put(stored(), key, msgspec.Raw(value))
    with pytest.raises(MalformedRecordError) as caught:
        read_partition(PARTITION, {key: kv})
    message = str(caught.value)
    assert message.startswith(f"metastore key {key!r} holds ")
    assert f"which is not a {kind}: " in message
    assert message.endswith("correct it with `etcdctl put`, or delete the key if nothing uses it")


@pytest.mark.parametrize("pending", [Pending(()), Pending(((),)), Pending((peers("a1"), ()))], ids=str)
def test_empty_pending_is_malformed(pending: Pending) -> None:
    """A pending with an empty queue or step is refused, and the error names the key."""
    kv = put(stored(), PARTITION.pending, pending)
    with pytest.raises(MalformedRecordError, match=f"{PARTITION.pending}.*empty queue or step"):
        read_partition(PARTITION, {PARTITION.pending: kv})


def test_long_malformed_values_are_shortened() -> None:
    """The error for a large malformed value quotes only its start."""
    with pytest.raises(MalformedRecordError) as caught:
        decode(Planned, b"x" * 1_000_000, key="k")
    assert len(str(caught.value)) < 400


def test_malformed_tables_and_tombstones() -> None:
    """Errors for malformed table records and tombstones name the key."""
    store = stored()
    record = put(store, KEYS.table(TABLE), {"partitions": "many"})
    with pytest.raises(MalformedRecordError, match=f"{KEYS.table(TABLE)}.*TableRecord"):
        make_ready(record, keys=KEYS, table=TABLE, epoch=holds(record))
    tombstone = put(store, KEYS.tombstone(TABLE), {"waiting": 3})
    with pytest.raises(MalformedRecordError, match=f"{KEYS.tombstone(TABLE)}.*Tombstone"):
        confirm_drop(tombstone, store="a", volume="a-1")
    with pytest.raises(MalformedRecordError, match=f"{KEYS.tombstone(TABLE)}.*Tombstone"):
        remove_tombstone(tombstone, gone=lambda *_: True, epoch=holds(record))


def test_malformed_plan_head() -> None:
    """The error for a malformed plan head names its key."""
    head = put(stored(), KEYS.plan_head(TABLE), {"n": "one"})
    with pytest.raises(MalformedRecordError, match=f"{KEYS.plan_head(TABLE)}.*PlanHead"):
        read_plan(head, ())


def test_new_tables_begin_as_creating() -> None:
    """A table record without a state is `creating`, so sidecars do not act on it."""
    assert RECORD.state is TableState.CREATING
    assert decode(TableRecord, encode(RECORD), key="k").state is TableState.CREATING


def test_slices_list_voters_before_learners() -> None:
    """A slice's rows are stores with their volumes, voters first."""
    piece = PlanSlice(first=64, voters=2, stores=(("a", "a-1"), ("b", "b-2"), ("c", "c-1")), rows=((2, 1, 0), (0, 1)))
    assert piece.target(64) == targets("c b@2 a*")
    assert piece.target(65) == targets("a b@2")
