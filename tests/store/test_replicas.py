"""Replicas that apply the same log stay equal, however they batch, fold, restart and restore."""

from __future__ import annotations

import contextlib
import itertools
import random
from functools import partial
from pathlib import Path

import msgspec
import pytest

from evenkeel.wire.socket_messages import Applied
from evenkeel_store.engine.journal import KeptGroup
from evenkeel_store.engine.snapshot_files import fill_log, load_tables, read_files, write_files
from evenkeel_store.engine.snapshot_throttle import SnapshotThrottle
from tests.store.model import Model, random_log
from tests.store.support import GROUP, REPLICA, WIDER, Bench

SEEDS, ENTRIES = 6, 60


def restore_elsewhere(bench: Bench, directory: Path, target: Bench) -> None:
    """Replace a group with that of another store, through snapshot files."""
    directory.mkdir()
    with contextlib.closing(bench.engine.database.cursor()) as cursor, bench.engine.database.transaction(cursor):
        write_files(cursor, bench.group.layout, bench.group.kept(), directory, throttle=SnapshotThrottle())
    files = read_files(directory, index=bench.group.metadata.applied)
    number = target.engine.table_number()
    layout = files.layout(GROUP, rows=number)
    if layout is not None:
        load_tables(target.engine.database, files, layout, throttle=SnapshotThrottle())
    metadata = msgspec.structs.replace(files.kept.metadata, replica=REPLICA, rows=number)
    target.engine.adopt(GROUP, REPLICA, KeptGroup(metadata, files.kept.uses), partial(fill_log, files))


def check(bench: Bench, model: Model) -> None:
    """Assert that rows, pinned rows, tokens, fences and changes match the model."""
    metadata = bench.group.metadata
    assert metadata.applied == model.applied
    if not model.applied:
        return
    assert bench.names() == model.rows
    assert {name: (pin.index, pin.expires) for name, pin in metadata.pins.items()} == {
        name: pin[:2] for name, pin in model.pins.items()
    }
    for index, _, rows in model.pins.values():
        assert bench.names(at=index) == rows
    uses = {(use.writer, use.sequence): use.result == "" for use in bench.group.tokens.all()}
    assert uses == model.tokens
    assert (metadata.fences, metadata.changes, metadata.schema == WIDER) == (model.fences, model.keeping, model.notes)
    if model.keeping:
        assert metadata.forgotten == model.forgotten
        assert [change for change in bench.changes() if change[0] > metadata.forgotten] == model.kept_changes()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_replicas_stay_the_same(tmp_path: Path, seed: int) -> None:
    """Whatever happens to a replica between two entries, it matches the model, and all hashes are equal."""
    rng = random.Random(seed)
    log = list(itertools.islice(random_log(rng), ENTRIES))
    models = [Model()]
    for entry in log:
        models.append(models[-1].copy())
        models[-1].apply(*entry)
    replicas = [Bench(tmp_path / f"store-{number}") for number in range(3)]
    for bench in replicas:
        bench.open()
    steps = 0
    while any(bench.group.metadata.applied < len(log) for bench in replicas):
        steps += 1
        place = rng.randrange(3)
        bench = replicas[place]
        applied = bench.group.metadata.applied
        match rng.randrange(10):
            case 0 | 1:
                if bench.group.layout is not None:
                    bench.fold()
            case 2:
                bench.close()
                replicas[place] = Bench(tmp_path / f"store-{place}")
            case 3:
                other = rng.choice(replicas)
                if other is not bench and other.group.metadata.applied >= applied:
                    restore_elsewhere(other, tmp_path / f"snapshot-{steps}", bench)
            case _:
                portion = [entry for entry, _ in log[applied : applied + rng.randrange(1, 12)]]
                if portion:
                    assert bench.apply(*portion) == Applied(applied + len(portion))
        check(replicas[place], models[replicas[place].group.metadata.applied])
    assert len({bench.hash() for bench in replicas}) == 1
    for bench in replicas:
        bench.close()
