"""Plans a million partitions in its own process, so that the peak memory is that of the plan; prints JSON."""

from __future__ import annotations

import json
import resource
import sys
import time

from bench._planner_cases import spread, store_views, table_view
from evenkeel.model.views import Assignment, CurrentState
from evenkeel.planner import changes, plan


def main(partitions: int, stores: int) -> None:
    table, current = table_view(partitions), CurrentState()
    began = time.perf_counter()
    before = plan(table, Assignment.empty(partitions), store_views(stores), current)
    fresh = time.perf_counter() - began
    more = store_views(stores + 1)
    began = time.perf_counter()
    after = plan(table, before, more, current)
    one_more = time.perf_counter() - began
    answer = {
        "fresh": 1000 * fresh,
        "one_more": 1000 * one_more,
        "moves": changes(before, after).moves,
        "spread": spread(after),
        "peak": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
