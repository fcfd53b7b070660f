"""Log time: no wall clock moves it, no entry moves it far, and nothing expires early."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import msgspec
import pytest

from evenkeel_store.engine import apply_batch, log_time
from evenkeel_store.engine.group_metadata import GroupMetadata, PinnedAt, Step, advanced
from evenkeel_store.engine.group_state import Group
from evenkeel_store.engine.journal import KeptGroup
from evenkeel_store.engine.log_entries import Expire, LogTime, Pin, decode_entry, encode_entry
from evenkeel_store.engine.log_time import LogClocks, beginning, tick_milliseconds, within_bounds
from evenkeel_store.engine.write_tokens import TokenUse
from evenkeel_store.maintenance.leader_maintenance import LeaderMaintenance
from evenkeel_store.serving.store_service import StoreService
from tests.store.serving import Client, Store, table_record
from tests.store.support import Bench, columns, upsert
from tests.store.timewalk import Start, TimeWalk

HOUR, DAY = 3_600_000, 86_400_000
YEAR = 365 * DAY
LINES: list[dict[str, Any]] = [{"name": "line", "type": "string"}]


@pytest.mark.parametrize(
    ("stamp", "after"),
    [(0, DAY), (DAY - 1, DAY), (DAY, DAY), (DAY + 5, DAY + 5), (DAY + HOUR, DAY + HOUR), (DAY + HOUR + 1, DAY)],
)
def test_steps_are_bounded(stamp: int, after: int) -> None:
    """Log time never goes back, and a stamp that is more than an hour ahead does not move it."""
    assert advanced(DAY, stamp) == after


@pytest.mark.parametrize(
    ("entry", "time", "due"),
    [
        (Expire(DAY + 9, 9, 7, DAY + 9), DAY + 9, Expire(DAY + 9, 9, 7, DAY + 9)),
        (Expire(YEAR, YEAR - DAY, 7, YEAR), DAY, Expire(DAY, 0, 7, YEAR)),
        (Expire(DAY - 9, 9, 7, DAY - 9), DAY, Expire(DAY - 9, 9, 7, DAY - 9)),
        (Expire(YEAR, YEAR, 7), DAY, Expire(changes=7)),
    ],
)
def test_expiries_are_bounded(entry: Expire, time: int, due: Expire) -> None:
    """An `Expire` entry with a stamp too far ahead removes only what has expired by log time."""
    assert within_bounds(GroupMetadata(replica=1, time=DAY), entry) == (time, due)
    assert within_bounds(GroupMetadata(replica=1), entry) == (0, entry)


def test_beginning() -> None:
    """Log time begins at the leader's reading, or earlier if something would otherwise expire early."""
    assert beginning([], reading=0) == 1
    assert beginning([9, DAY], reading=7) == 7
    assert beginning([3, 5, YEAR], reading=YEAR + 1) == 3


def group_at(time: int, **more: Any) -> Group:
    return Group(7, KeptGroup(GroupMetadata(replica=3, time=time, **more), []))


def test_readings() -> None:
    """A reading advances with the monotonic clock, follows stamps, and falls back to those of a slower leader."""
    now = 100.0
    clocks, group = LogClocks(lambda: now), group_at(DAY)
    clocks.observe(group)
    now += 60
    assert clocks.stamp(group, wall=5) == DAY + 60_000
    group.advance(Step(7, 1, time=DAY + 59_000))
    clocks.observe(group)
    assert clocks.stamp(group, wall=5) == DAY + 60_000, "a stamp of a second ago loses no time"
    now += 1800
    group.advance(Step(7, 2, time=DAY + 61_000))
    clocks.observe(group)
    assert clocks.stamp(group, wall=5) == DAY + 61_000, "another leader that started recently is half an hour behind"
    now += 10 * 3600
    assert clocks.stamp(group, wall=5) == DAY + 61_000 + HOUR, "stamps stay within the bound"
    group.advance(Step(7, 3))
    clocks.observe(group)
    assert clocks.stamp(group, wall=5) == DAY + 61_000 + HOUR, "an entry without a stamp changes nothing"
    clocks.forget(7)
    assert clocks.stamp(group, wall=5) == DAY + 61_000


def test_first_stamps_are_taken_as_they_are() -> None:
    """Before log time is kept, leaders stamp with the wall clock, or later than the newest stamp."""
    assert group_at(0).newest == 0
    pinned = group_at(0, pins={"p": PinnedAt(1, 2 * DAY)})
    clocks = LogClocks(lambda: 0.0)
    clocks.observe(pinned)
    assert (pinned.newest, clocks.stamp(pinned, wall=5)) == (0, DAY), "a pin lasts at most a day"
    assert clocks.stamp(pinned, wall=YEAR) == YEAR
    assert LogClocks(lambda: 0.0).stamp(group_at(0, stamps=((5, 1), (9, 2))), wall=7) == 10
    assert group_at(0, stamps=((5, 1), (9, 2))).newest == 9
    assert Group(7, KeptGroup(GroupMetadata(replica=3), [TokenUse("w", 1, "", 40)])).newest == 40


def test_log_time_begins_at_one_index(tmp_path: Path) -> None:
    """Earlier stamps that are ahead of the first log time are moved to it; restarts keep log time."""
    bench = Bench(tmp_path)
    bench.open()
    rows = [{"id": 1, "name": "x"}]
    bench.apply(
        columns(changes=True),
        upsert(rows, token=("early", 1), at=DAY),
        upsert(rows, token=("wrong", 1), at=YEAR),
        encode_entry(Pin("p", YEAR + DAY, YEAR)),
        encode_entry(LogTime(DAY + 5)),
        upsert(rows, token=("next", 1), at=YEAR),
        upsert(rows, token=("last", 1), at=DAY + 20_000),
        encode_entry(Pin("q", YEAR + HOUR, YEAR)),
    )
    expected = [("early", DAY), ("last", DAY + 20_000), ("next", DAY + 5), ("wrong", DAY + 5)]
    for _ in range(2):
        group = bench.group
        assert group.metadata.time == DAY + 20_000
        assert [(use.writer, use.at) for use in group.tokens.all()] == expected
        assert {name: pin.expires for name, pin in group.metadata.pins.items()} == {
            "p": 2 * DAY + 5,
            "q": DAY + 20_000 + HOUR,
        }
        assert group.metadata.stamps == ((DAY, 2), (DAY + 5, 3), (DAY + 20_000, 7))
        bench.close()
        bench = Bench(tmp_path)
    bench.close()


def test_ticks_share_a_transaction(tmp_path: Path) -> None:
    """Only the entry that begins log time takes its own transaction; later ones share it with other entries."""
    bench = Bench(tmp_path)
    bench.open()
    bench.apply(columns())
    before = bench.engine.counters["transactions"], bench.engine._journal.last
    rows = [{"id": 1, "name": "x"}]
    entries = [LogTime(DAY), *(LogTime(DAY + 10 * number) for number in range(1, 50))]
    bench.apply(
        *map(encode_entry, entries), upsert(rows, token=("w", 1), at=DAY + 495), encode_entry(LogTime(DAY + 500))
    )
    assert (bench.engine.counters["transactions"], bench.engine._journal.last) == (before[0] + 1, before[1] + 2)
    assert bench.group.metadata.time == DAY + 500
    assert [use.at for use in bench.group.tokens.all()] == [DAY + 495]
    bench.close()


def test_groups_tick_at_different_times() -> None:
    """Groups log their time within half an hour, at moments spread over minutes."""
    periods = [tick_milliseconds(group) for group in range(1000)]
    assert max(periods) <= HOUR // 2
    assert min(periods) >= HOUR // 4
    assert len({period // 60_000 for period in periods}) == 15


@pytest.fixture(params=[False, True], ids=["stamps as they are", "log time kept"])
async def store(tmp_path: Path, request: pytest.FixtureRequest) -> Any:
    async with Store(tmp_path, keeps_time=request.param) as running:
        running.now = 50 * YEAR
        record = table_record(LINES, primary_key=[], changes={"retention": "1h"})
        await running.table(record, key="lines.1")
        await running.maintenance.reconcile(running.state_machine.groups.replicas())
        yield running


@pytest.fixture
async def client(store: Store) -> Any:
    made = Client(store.address)
    yield made
    await made.close()


async def line(client: Client, number: int) -> None:
    await client.put([{"line": str(number)}], table="lines", op="append", writer="w", sequence=number)


@pytest.mark.parametrize("applied", [False, True])
async def test_leader_two_days_ahead(store: Store, client: Client, applied: bool) -> None:
    """A write token sent again after the leader's clock jumped by two days is not applied again."""
    await line(client, 1)
    if applied:
        await store.settled()
    store.now += 2 * DAY
    await store.maintenance.reconcile(store.state_machine.groups.replicas())
    await line(client, 1)
    assert len(await client.rows("lines")) == 1
    for _ in range(60):
        store.clock.advance(1800)
        await store.maintenance.reconcile(store.state_machine.groups.replicas())
        await store.settled()
    await line(client, 1)
    assert len(await client.rows("lines")) == 2, "a day later the writer is forgotten"


async def test_write_stamped_a_year_ahead(store: Store, client: Client) -> None:
    """A clock that was a year ahead for one write neither stops retention nor expires changes early."""
    await line(client, 1)
    store.now += YEAR
    await line(client, 2)
    await store.settled()
    await store.maintenance.reconcile(store.state_machine.groups.replicas())
    store.now -= YEAR
    await line(client, 3)
    await store.settled()
    [group] = store.state_machine.groups.of_table()
    before = group.metadata.forgotten
    for minutes in (30, 29):
        store.clock.advance(60 * minutes)
        await store.maintenance.reconcile(store.state_machine.groups.replicas())
        await store.settled()
    assert group.metadata.forgotten == before
    store.clock.advance(120)
    await line(client, 4)
    store.clock.advance(3600)
    await line(client, 5)
    await store.settled()
    await store.maintenance.reconcile(store.state_machine.groups.replicas())
    await store.settled()
    assert group.metadata.forgotten > before + 2


async def test_pin_expiry_is_reported_by_the_wall_clock(store: Store, client: Client) -> None:
    """A client gets the expiry of its pin as wall-clock time, however log time differs from it."""
    await line(client, 1)
    store.now += 3 * DAY
    pin = await client.act("pin", table="lines", partition=0, name="p", seconds=60)
    assert pin["expires"] == store.now + 60_000


# Walks


@pytest.mark.parametrize("start", get_args(Start))
@pytest.mark.parametrize("seed", range(2))
async def test_walk(tmp_path: Path, seed: int, start: Start) -> None:
    """Clocks are wrong and jump, leaders change, stores are down: nothing expires early, everything expires."""
    walk = TimeWalk(tmp_path, seed, start=start)
    try:
        await walk.run(120)
    finally:
        walk.close()


def stamp_by_the_reading(patch: pytest.MonkeyPatch) -> None:
    stamp = LogClocks.stamp
    patch.setattr(LogClocks, "stamp", lambda self, group, *, wall: stamp(self, group, wall=0))


def expire_by_stamps(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderMaintenance, "_expire_observed", LeaderMaintenance._expire)


def begin_by_the_reading(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("evenkeel_store.maintenance.leader_maintenance.beginning", lambda bounds, *, reading: max(1, reading))


def stamp_by_the_wall(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StoreService, "stamp", lambda self, group: self.wall_clock())


def stamp_without_bound(patch: pytest.MonkeyPatch) -> None:
    for module in (apply_batch, log_time):
        patch.setattr(module, "advanced", max)


def never_tick(patch: pytest.MonkeyPatch) -> None:
    patch.setattr("evenkeel_store.maintenance.leader_maintenance.is_pending", lambda group: False)


@pytest.mark.parametrize(
    ("bug", "start"),
    [
        (stamp_by_the_wall, "log time kept"),
        (stamp_without_bound, "log time kept"),
        (never_tick, "log time kept"),
        (stamp_by_the_reading, "updated"),
        (expire_by_stamps, "stamps as they are"),
        (begin_by_the_reading, "rises"),
    ],
)
async def test_walk_finds_bugs_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bug: Any, start: Start
) -> None:
    """Each known bug of log time is found within a few walks."""
    bug(monkeypatch)
    for seed in range(12):
        (tmp_path / str(seed)).mkdir()
        walk = TimeWalk(tmp_path / str(seed), seed, start=start)
        try:
            await walk.run(120)
        except AssertionError:
            return
        finally:
            walk.close()
    pytest.fail("no walk found it")


def test_entries_of_both_releases_are_read() -> None:
    """An Expire of the first release has no stamp; that release reads one with a stamp, but no LogTime."""
    old, _ = decode_entry(b"\x0b\x00\x00\x00\x94\xa6expire\x01\x02\x03")
    assert old == Expire(1, 2, 3)
    assert msgspec.msgpack.decode(encode_entry(Expire(1, 2, 3, 4))[4:], type=OldExpire) == OldExpire(1, 2, 3)
    with pytest.raises(msgspec.ValidationError, match="log_time"):
        msgspec.msgpack.decode(encode_entry(LogTime(4))[4:], type=OldExpire)


class OldExpire(msgspec.Struct, tag="expire", array_like=True, frozen=True):
    """`Expire` of the first release."""

    pins: int = 0
    writers: int = 0
    changes: int = 0
