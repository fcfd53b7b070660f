"""PartitionAssignments written by users, on a real API server."""

from __future__ import annotations

import pytest

from evenkeel.kube.object_kinds import PARTITION_ASSIGNMENT, TABLE, Object
from tests.kubernetes.world import World, make_table, partitions_of, store_cluster, table


def assignment(*chosen: Object) -> Object:
    """The first slice of `orders` as a user writes it."""
    return {
        "apiVersion": PARTITION_ASSIGNMENT.api_version,
        "kind": PARTITION_ASSIGNMENT.name,
        "metadata": {"name": "orders-0"},
        "spec": {"table": "orders", "from": 0, "partitions": list(chosen)},
    }


def at(partition: int, stores: str, leader: str = "") -> Object:
    """`at(0, "312", "1")`: partition 0 on main-3, main-1 and main-2, led by main-1."""
    led = {"leader": f"main-{leader}"} if leader else {}
    return {"partition": partition, "stores": [f"main-{number}" for number in stores], **led}


async def placed(world: World) -> dict[int, tuple[set[str], str]]:
    """Return, by partition, the numbers of its stores and of its leader."""
    return {
        partition["partition"]: (
            {peer["store"].removeprefix("main-") for peer in partition["stable"]},
            partition.get("leader", "").removeprefix("main-"),
        )
        for partition in await partitions_of(world)
    }


async def until_placed(world: World, expected: dict[int, tuple[str, str]]) -> None:
    """Wait until partitions have the expected stores and leaders."""
    wanted = {partition: (set(stores), leader) for partition, (stores, leader) in expected.items()}

    async def so() -> bool:
        return await placed(world) == wanted

    await world.until(f"partitions are at {expected}", so)


@pytest.mark.parametrize("mode", ["SemiAuto", "Customized"])
async def test_partitions_are_where_a_user_pins_them(world: World, mode: str) -> None:
    """At creation and after every change; the status reports that the assignment is accepted."""
    world.start()
    pins = assignment(at(0, "321", leader="2"), at(1, "012", leader="0"))
    await world.apply(store_cluster(4), pins, table(partitions=2, rebalancer={"mode": mode}))
    await world.condition(TABLE, "orders", "Balanced")
    await until_placed(world, {0: ("123", "2"), 1: ("012", "0")})
    await world.apply(assignment(at(0, "013", leader="3"), at(1, "012", leader="1")))
    await until_placed(world, {0: ("013", "3"), 1: ("012", "1")})
    await world.condition(PARTITION_ASSIGNMENT, "orders-0", "Accepted")


@pytest.mark.processes
async def test_an_impossible_pin_is_reported(world: World) -> None:
    """Table and assignment name the missing store; replicas stay where they are."""
    world.start()
    await make_table(world, partitions=1, rebalancer={"mode": "FullAuto"})
    before = await placed(world)
    await world.run("patch", "table/orders", "--type=merge", '--patch={"spec":{"rebalancer":{"mode":"Customized"}}}')
    await world.apply(assignment(at(0, "129")))
    await world.condition(TABLE, "orders", "Degraded", reason="RebalancerFailed")
    found = await world.condition(PARTITION_ASSIGNMENT, "orders-0", "Accepted", status="False")
    assert "store main-9, which does not exist" in str(found["status"]["conditions"])
    assert await placed(world) == before
    await world.condition(TABLE, "orders", "Ready", status="False")
    await world.condition(TABLE, "orders", "Available")


@pytest.mark.processes
async def test_a_pin_under_full_auto_is_ignored_and_reported(world: World) -> None:
    """Under FullAuto the rebalancer decides, and the assignment says which mode it needs."""
    world.start()
    await make_table(world, partitions=1)
    await world.apply(assignment(at(0, "0")))
    found = await world.condition(PARTITION_ASSIGNMENT, "orders-0", "Accepted", status="False", reason="SpecIgnored")
    assert "SemiAuto" in str(found["status"]["conditions"])
    assert {len(stores) for stores, _ in (await placed(world)).values()} == {3}


@pytest.mark.processes
async def test_the_next_store_of_a_list_takes_over(world: World) -> None:
    """Under SemiAuto the live stores of a list hold the replicas; the first leads again when it is back."""
    world.start()
    wanted = table(partitions=1, replicas=3, rebalancer={"mode": "SemiAuto"}, movement={"lostAfter": "3s"})
    await world.apply(store_cluster(4), assignment(at(0, "3120")), wanted)
    await until_placed(world, {0: ("312", "3")})
    await world.pods.kill("main-3")
    await until_placed(world, {0: ("120", "1")})
    world.pods.held.clear()
    await until_placed(world, {0: ("312", "3")})
