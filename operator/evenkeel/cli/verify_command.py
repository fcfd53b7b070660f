"""`evenkeel verify`: the replicas of a table compared, and the outcome printed."""

from __future__ import annotations

from evenkeel.cli.output import Output
from evenkeel.cli.place import Place
from evenkeel.cli.printing import print_json, print_table, say
from evenkeel.cli.store_client import client_of
from evenkeel.client.verification import Verified

__all__ = ["verify_table"]


def verify_table(
    table: str, place: Place, store_cluster: str, output: Output, *, deadline: float, heal: bool = False
) -> bool:
    """Compare, print, and return whether all replicas answered and are the same; `heal` those that are alone."""
    with client_of(place, store_cluster, deadline=deadline) as client:
        found = client.table(table).heal() if heal else client.table(table).verify()
    same = not any(one.differing or one.silent for one in found)
    if output is Output.JSON:
        print_json({"table": table, "same": same, "partitions": [_data(one) for one in found]})
        return same
    rows = [(one.partition, one.index, one.rows, len(one.replicas), _result(one, heal=heal)) for one in found]
    print_table(("PARTITION", "INDEX", "ROWS", "REPLICAS", "RESULT"), rows)
    say(f"table {table}: {'all replicas are the same' if same else 'not all replicas are known to be the same'}")
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
    differing = [f"{', '.join(one.differing)} not as the leader has it"] if one.differing else []
    silent = [f"no answer from {', '.join(one.silent)}"] if one.silent else []
    healed = [f"{', '.join(one.wrong)} is built anew"] if heal and one.wrong else []
    return "; ".join((*differing, *silent, *healed)) or "same"
