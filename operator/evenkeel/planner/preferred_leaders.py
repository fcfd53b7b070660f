"""Choose each partition's leader and voters, for a given placement.

Leaders are divided like replicas: in proportion to weight, and no store leads more than it holds. Each store leads its
share, rounded down or up, or as close to that as the placement allows. Among those solutions, the fewest retained
replicas change between voter and learner; among those, the fewest partitions change their leader. A heuristic finds a
solution. If a bound does not prove it optimal, `replica_exchange` improves it to the optimum.

An added replica costs nothing in either role. So a row's role changes depend only on the kind of its leader: making an
added replica or a retained learner a voter may demote a retained voter.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from evenkeel.planner.fair_shares import Shares, proportional
from evenkeel.planner.placement_problem import NONE, Counts, Rows, count, first_of_each, zones_of
from evenkeel.planner.replica_exchange import Columns, Exchange, Reach, settle

__all__ = ["Roles", "arrange"]

_FAR = 2**60
_CHUNKS = 1024
_VOTER, _ADDED, _LEARNER = 0, 1, 2


@dataclass(frozen=True, kw_only=True)
class Roles:
    """The inputs for choosing leaders and voters."""

    voters: int
    previous: Rows
    previous_voters: int
    led: NDArray[np.int32]
    zone: NDArray[np.int32]
    weight: NDArray[np.object_]


def arrange(rows: Rows, roles: Roles) -> Rows:
    """Reorder each row: the leader, the other voters, the learners."""
    kinds = _kinds(rows, roles) if roles.voters < rows.shape[1] else None
    leaders = _Leaders(rows, roles, kinds)
    leaders.start()
    leaders.hand_over()
    if not leaders.proven():
        leaders.settle()
    if kinds is None:
        return _leader_first(rows, leaders.column)
    order = _order(rows, roles, kinds, leaders.column)
    return np.take_along_axis(rows, order, axis=1)


def _leader_first(rows: Rows, column: NDArray[np.int64]) -> Rows:
    ordered = rows.copy()
    at = np.flatnonzero(column)
    ordered[at, column[at]] = rows[at, 0]
    ordered[at, 0] = rows[at, column[at]]
    return ordered


def _kinds(rows: Rows, roles: Roles) -> NDArray[np.int8]:
    kinds = np.full(rows.shape, _ADDED, dtype=np.int8)
    for j in range(roles.previous.shape[1]):
        kind = _VOTER if j < roles.previous_voters else _LEARNER
        kinds[rows == roles.previous[:, j : j + 1]] = kind
    return kinds


def _order(rows: Rows, roles: Roles, kinds: NDArray[np.int8], column: NDArray[np.int64]) -> NDArray[np.intp]:
    """Order each row: leader, retained voters, added replicas (zones with few voters first), retained learners."""
    rank = kinds.astype(np.int64)
    np.put_along_axis(rank, column[:, None], -1, axis=1)
    zones = zones_of(rows, roles.zone)
    ahead = np.zeros(rows.shape, dtype=np.int64)
    width = rows.shape[1]
    for i in range(width):
        for j in range(width):
            earlier = (rank[:, j] < rank[:, i]) | ((rank[:, j] == rank[:, i]) & (j < i))
            ahead[:, i] += (zones[:, i] == zones[:, j]) & earlier
    return np.argsort(rank * (width + 1) + np.where(rank == _ADDED, ahead, 0), axis=1, kind="stable")


def _role_changes(kinds: NDArray[np.int8], voters: int) -> NDArray[np.int64]:
    """Return the role changes that each entry costs as leader, beyond the minimum of its row."""
    voting = (kinds == _VOTER).sum(axis=1)[:, None]
    willing = voting + (kinds == _ADDED).sum(axis=1)[:, None]
    demoted = (kinds != _VOTER) & (voting >= voters)
    promoted = (kinds == _LEARNER) & (willing >= voters)
    changes: NDArray[np.int64] = demoted.astype(np.int64) + promoted
    return changes


class _Leaders:
    """The exchange graph of leaders: each row chooses one of its stores."""

    def __init__(self, rows: Rows, roles: Roles, kinds: NDArray[np.int8] | None) -> None:
        self.column = np.full(len(rows), NONE, dtype=np.int64)
        self._rows = rows
        self._stores = len(roles.zone)
        self._all = np.arange(len(rows))
        self._shares = _leader_shares(rows, roles)
        self._role = None if kinds is None else _role_changes(kinds, roles.voters)
        self._stays = (rows == roles.led[:, None]) & (rows != NONE)
        self._held = np.zeros(self._stores, dtype=np.int64)
        self._costs = np.zeros((0, 0), dtype=np.int64)

    def start(self) -> None:
        """Keep leaders that can stay; other rows choose the least loaded store, chunk by chunk."""
        stays = self._stays.any(axis=1)
        self.column[stays] = self._stays[stays].argmax(axis=1)
        self._held = count(self._leading(np.flatnonzero(stays)), self._stores)
        orphans = np.flatnonzero(~stays)
        size = max(16, self._stores // 32, -(-len(orphans) // _CHUNKS))
        for first in range(0, len(orphans), size):
            chunk = orphans[first : first + size]
            load = (self._held - self._shares.exact)[self._rows[chunk]]
            if self._role is not None:
                load = load + self._role[chunk] * float(len(self._rows))
            self.column[chunk] = load.argmin(axis=1)
            np.add.at(self._held, self._leading(chunk), 1)

    def _leading(self, at: NDArray[np.intp]) -> NDArray[np.int32]:
        return self._rows[at, self.column[at]]

    def hand_over(self) -> None:
        """Transfer leadership within rows while a transfer brings a store closer to its share."""
        lowest, highest = self._shares.lowest, self._shares.highest
        while (
            self._transfer(self._held - highest, lowest - self._held)
            or self._transfer(self._held - highest, highest - self._held)
            or self._transfer(self._held - lowest, lowest - self._held)
        ):
            pass

    def _transfer(self, spare: Counts, lacking: Counts) -> bool:
        """Transfer from stores with spare leaders to stores that lack some, within each store's number."""
        if not ((spare > 0).any() and (lacking > 0).any()):
            return False
        at = np.flatnonzero(spare[self._leading(self._all)] > 0)
        need = lacking[self._rows[at]]
        if self._role is not None:
            need = np.where(self._role[at] > 0, 0, need)
        column = need.argmax(axis=1)
        useful = need[np.arange(len(at)), column] > 0
        at, column = at[useful], column[useful]
        given, taken = self._leading(at), self._rows[at, column]
        fits = first_of_each(given, spare)
        at, column, given, taken = at[fits], column[fits], given[fits], taken[fits]
        fits = first_of_each(taken, lacking)
        self.column[at[fits]] = column[fits]
        np.subtract.at(self._held, given[fits], 1)
        np.add.at(self._held, taken[fits], 1)
        return bool(fits.any())

    def proven(self) -> bool:
        """Whether bounds prove the choice optimal: shares met, no avoidable role change or transfer."""
        shares = self._shares
        if ((self._held < shares.lowest) | (self._held > shares.highest)).any():
            return False
        if self._role is not None and self._role[self._all, self.column].any():
            return False
        kept = count(np.where(self._stays, self._rows, NONE), self._stores)
        useful = int(np.minimum(kept, shares.highest).sum())
        changed = len(self._rows) - int(self._stays[self._all, self.column].sum())
        missing = int(np.maximum(shares.lowest - kept, 0).sum())
        return changed == max(len(self._rows) - useful, missing)

    def settle(self) -> None:
        """Improve the choice to the optimum."""
        # A walk visits each store once, so the costs of one level add up to less than one unit of the next level.
        self._costs = (~self._stays).astype(np.int64)
        if self._role is not None:
            self._costs += (self._stores + 2) * self._role
        unit = 4 * (self._stores + 2) ** 2
        columns = Columns(self._held, lowest=self._shares.lowest, highest=self._shares.highest, unit=unit)
        settle(self, columns)

    def reach(self, label: Counts, changed: NDArray[np.bool_]) -> Reach:
        """Relax the transfer from each row's leader to each of its other stores."""
        at = np.flatnonzero(changed[self._leading(self._all)])
        leader = self._leading(at)
        rows = self._rows[at]
        value = (label[leader] - self._costs[at, self.column[at]])[:, None] + self._costs[at]
        value[np.arange(len(at)), self.column[at]] = _FAR
        best = np.full(self._stores, _FAR, dtype=np.int64)
        np.minimum.at(best, rows.ravel(), value.ravel())
        hit, column = np.nonzero((value == best[rows]) & (value < _FAR))
        taken = rows[hit, column]
        row = np.full(self._stores, NONE, dtype=np.int64)
        source = np.full(self._stores, NONE, dtype=np.int64)
        row[taken] = at[hit]
        source[taken] = leader[hit]
        return Reach(best, row, source)

    def cost(self, exchange: Exchange) -> int:
        """Return the weighted role changes and transfers that the exchange adds."""
        row = self._rows[exchange.row]
        costs = self._costs[exchange.row]
        return int(costs[row == exchange.taken][0] - costs[row == exchange.given][0])

    def apply(self, exchange: Exchange) -> None:
        """Make the taken store the leader."""
        self.column[exchange.row] = int(np.flatnonzero(self._rows[exchange.row] == exchange.taken)[0])


def _leader_shares(rows: Rows, roles: Roles) -> Shares:
    return proportional(roles.weight, count(rows, len(roles.zone)), len(rows))
