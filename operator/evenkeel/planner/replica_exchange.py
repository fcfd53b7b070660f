"""Improve each row's choice of stores to the optimum: the exact part of the planner.

Rows choose stores. Each choice has a cost, and each store has a convex cost of how often it is chosen. This is a
minimum cost flow from rows to stores, and a flow is optimal exactly if its residual graph has no cycle of negative
cost. Here the graph is contracted to stores: an edge from s to t is a row that can give up s and take t (`Exchange`),
and a path from s to t also makes s lighter by one and t heavier by one. `settle` finds negative paths and cycles with
Bellman-Ford, whose rounds are array operations over many rows, and applies them until there are none.

Contraction hides the inside of a row, where two exchanges of one walk could compete for the same place. That cannot
happen: labels are relaxed in rounds, all exchanges at once, and only ever decrease. Suppose a walk used the same place
of a row in round a and again in round b > a. If the place was cheaper in b, the first store would have been relabelled
from there too. If it was not, the second store would have had its label since round a. Within one round a place has
one cheapest entry; the first column wins ties.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from evenkeel.planner.placement_problem import NONE, Counts

__all__ = ["Columns", "Exchange", "Graph", "Reach", "settle"]


class Exchange(NamedTuple):
    """In `row`, `taken` replaces `given`."""

    row: int
    given: int
    taken: int


class Reach(NamedTuple):
    """Per store: the lowest label that one exchange leads to, and that exchange's row and given store."""

    label: Counts
    row: NDArray[np.int64]
    source: NDArray[np.int64]


class Graph(Protocol):
    """Rows that choose stores."""

    def reach(self, label: Counts, changed: NDArray[np.bool_]) -> Reach:
        """Relax once all exchanges that give up a store whose label changed."""
        ...

    def cost(self, exchange: Exchange) -> int:
        """Return what the exchange adds to the rows' costs."""
        ...

    def apply(self, exchange: Exchange) -> None:
        """Apply the exchange."""
        ...


class Columns:
    """How often each store is chosen; its cost is `unit` times the squared distance from its bounds."""

    def __init__(self, held: Counts, *, lowest: Counts, highest: Counts, unit: int) -> None:
        self.held = held
        self._lowest = lowest
        self._highest = highest
        self._unit = unit

    def _cost(self, held: Counts, at: slice | int) -> Counts:
        distance = np.maximum(np.maximum(held - self._highest[at], self._lowest[at] - held), 0)
        cost: Counts = self._unit * distance * distance
        return cost

    def give(self, at: slice | int = slice(None)) -> Counts:
        """Return the cost of choosing a store once less."""
        return self._cost(self.held[at] - 1, at) - self._cost(self.held[at], at)

    def take(self, at: slice | int = slice(None)) -> Counts:
        """Return the cost of choosing a store once more."""
        return self._cost(self.held[at] + 1, at) - self._cost(self.held[at], at)


class _Walk(NamedTuple):
    exchanges: tuple[Exchange, ...]
    closed: bool


def settle(graph: Graph, columns: Columns) -> None:
    """Exchange until no walk lowers the total cost."""
    while _improve(graph, columns):
        pass


def _improve(graph: Graph, columns: Columns) -> bool:
    label = columns.give()
    row = np.full(len(label), NONE, dtype=np.int64)
    source = np.full(len(label), NONE, dtype=np.int64)
    changed = np.ones(len(label), dtype=bool)
    while True:
        reach = graph.reach(label, changed)
        changed = reach.label < label
        better = np.flatnonzero(changed)
        if not better.size:
            return _apply_paths(graph, columns, label + columns.take(), row=row, source=source)
        label[better] = reach.label[better]
        row[better] = reach.row[better]
        source[better] = reach.source[better]
        on_cycle = _on_cycles(source)
        if on_cycle.size:
            return _apply_cycles(graph, columns, on_cycle, row=row, source=source)


def _on_cycles(source: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the stores on a cycle of `source` links, by pointer doubling."""
    stores = len(source)
    ahead = np.append(source, NONE)
    for _ in range(stores.bit_length() + 1):
        ahead = ahead[ahead]
    return np.unique(ahead[ahead != NONE])


def _apply_cycles(
    graph: Graph,
    columns: Columns,
    on_cycle: NDArray[np.int64],
    *,
    row: NDArray[np.int64],
    source: NDArray[np.int64],
) -> bool:
    seen: set[int] = set()
    used: set[int] = set()
    applied = False
    for start in on_cycle.tolist():
        if start not in seen:
            exchanges = _back(start, row=row, source=source, stop=start)
            seen.update(exchange.taken for exchange in exchanges)
            applied |= _apply(graph, columns, _Walk(exchanges, closed=True), used)
    return applied


def _apply_paths(
    graph: Graph, columns: Columns, total: Counts, *, row: NDArray[np.int64], source: NDArray[np.int64]
) -> bool:
    ends = np.flatnonzero((total < 0) & (source != NONE))
    used: set[int] = set()
    applied = False
    for end in ends[np.argsort(total[ends], kind="stable")].tolist():
        exchanges = _back(end, row=row, source=source, stop=NONE)
        applied |= _apply(graph, columns, _Walk(exchanges, closed=False), used)
    return applied


def _back(end: int, *, row: NDArray[np.int64], source: NDArray[np.int64], stop: int) -> tuple[Exchange, ...]:
    """Return the exchanges that lead to `end`, from `stop` or from the walk's start."""
    exchanges = []
    at = end
    while source[at] != NONE:
        exchanges.append(Exchange(int(row[at]), int(source[at]), at))
        at = int(source[at])
        if at == stop:
            break
    return tuple(reversed(exchanges))


def _apply(graph: Graph, columns: Columns, walk: _Walk, used: set[int]) -> bool:
    """Apply the walk if no earlier walk of this search used its rows and its cost is still negative."""
    if any(exchange.row in used for exchange in walk.exchanges):
        return False
    if _cost(graph, columns, walk) >= 0:
        return False
    for exchange in walk.exchanges:
        graph.apply(exchange)
    if not walk.closed:
        columns.held[walk.exchanges[0].given] -= 1
        columns.held[walk.exchanges[-1].taken] += 1
    used.update(exchange.row for exchange in walk.exchanges)
    return True


def _cost(graph: Graph, columns: Columns, walk: _Walk) -> int:
    cost = sum(graph.cost(exchange) for exchange in walk.exchanges)
    if walk.closed:
        return cost
    return cost + int(columns.give(walk.exchanges[0].given)) + int(columns.take(walk.exchanges[-1].taken))
