"""What the bugs about another metastore do, for `mutations`, and where they are likely to bite."""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from evenkeel.metastore.metastore_api import Compare, Put, Txn
from evenkeel.protocol import leader_transactions, table_lifecycle
from evenkeel.protocol.keys import PartitionKeys
from evenkeel.protocol.leader_decision import Action, GroupView, Write
from evenkeel.protocol.records import Adoption, TableRecord, TableState, encode
from tests.explorer import operators
from tests.explorer.world import KEYS, TABLE, Scenario, Wish, World

ADOPTED = Scenario(
    stores=("a", "b", "c"),
    wishes=(Wish(("a",)), Wish(("b",)), Wish(("a", "b", "c")), Wish(("c",))),
    budget={"desired": 3, "write": 2, "cut": 1, "pause": 1, "backup": 1, "replace": 2, "readopt": 1, "crash": 1},
)
"""A metastore that is lost while replicas move."""


def seeds_at_once(original: Callable[..., Action | None]) -> Callable[..., Action | None]:
    def seed(group: GroupView, *, keys: PartitionKeys, table: Compare) -> Action | None:
        if group.applied.joint:
            return original(group, keys=keys, table=table)
        return Write("seed", leader_transactions.seed_txn(group.applied.peers, keys=keys, table=table))

    return seed


def opens_at_once(world: World, epoch: Compare) -> operators.Step:
    return "open", Txn((epoch,), (Put(KEYS.adoption, encode(Adoption("1", str(world.request)))),))


def creates_anew(world: World, epoch: Compare) -> operators.Step | None:
    record, _ = world.record()
    if record is None:
        spec = msgspec.Raw(encode(world.desired))
        made = TableRecord(partitions=1, replicas=1, consensus_size=1, retarget=world.scenario.mode, spec=spec)
        return "announce", table_lifecycle.announce(made, keys=KEYS, table=TABLE, epoch=epoch)
    return operators._create(world, epoch) if record.state is TableState.CREATING else opens_at_once(world, epoch)
