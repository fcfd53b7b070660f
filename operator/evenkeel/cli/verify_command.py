"""`verify`: compare the replicas of a table and print the result."""

from __future__ import annotations

from evenkeel.cli.options import Output
from evenkeel.cli.store_client import connect_client
from evenkeel.cli.target_cluster import Target
from evenkeel.cli.terminal_output import print_json, print_line, print_table
from evenkeel.client.verification import Verified

__all__ = ["verify_table"]


def verify_table(
    table: str, target: Target, store_cluster: str, output: Output, *, deadline: float, heal: bool = False
) -> bool:
    """Compare the replicas and print the result; return whether all of them answered and are identical.

    With `heal`, replicas that differ from the majority are rebuilt.
    """
    with connect_client(target, store_cluster, deadline=deadline) as client:
        found = client.table(table).heal() if heal else client.table(table).verify()
    same = not any(one.differing or one.silent for one in found)
    if output is Output.JSON:
        print_json({"table": table, "same": same, "partitions": [_data(one) for one in found]})
        return same
    rows = [(one.partition, one.index, one.rows, len(one.replicas), _result(one, heal=heal)) for one in found]
    print_table(("PARTITION", "INDEX", "ROWS", "REPLICAS", "RESULT"), rows)
    summary = "all replicas are identical" if same else "replicas differ or did not answer"
    print_line(f"table {table}: {summary}")
    return same


def _data(one: Verified) -> dict[str, object]:
    return {
        "partition": one.partition,
        "index": one.index,
        "rows": one.rows,
        "hash": one.leader,
        "replicas": one.replicas,
        "differing": one.differing,
        "wrong": one.wrong,
        "silent": one.silent,
    }


def _result(one: Verified, *, heal: bool) -> str:
    differing = [f"differs from the leader: {', '.join(one.differing)}"] if one.differing else []
    silent = [f"no answer: {', '.join(one.silent)}"] if one.silent else []
    healed = [f"being rebuilt: {', '.join(one.wrong)}"] if heal and one.wrong else []
    return "; ".join((*differing, *silent, *healed)) or "identical"
