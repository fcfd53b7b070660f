"""An independent implementation of the planner's objective.

It shares no code with the planner. It finds zones and shares by trying all zone totals and all sets of stores, in
fractions, and moves, leaders, roles and transfers by linear and integer programs with one variable per partition and
store.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field
from fractions import Fraction
from functools import cached_property

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

from evenkeel.model.views import Assignment, CurrentState, StoresView, StoreView, TableView


@dataclass
class Program:
    """An integer or linear program, built from single variables and constraints."""

    cost: list[float] = field(default_factory=list)
    upper: list[float] = field(default_factory=list)
    _entries: list[tuple[int, int, float]] = field(default_factory=list)
    _low: list[float] = field(default_factory=list)
    _high: list[float] = field(default_factory=list)

    def variable(self, cost: float = 0.0, upper: float = 1.0) -> int:
        self.cost.append(cost)
        self.upper.append(upper)
        return len(self.cost) - 1

    def constrain(self, terms: list[tuple[int, float]], low: float, high: float) -> None:
        self._entries += [(len(self._low), variable, factor) for variable, factor in terms]
        self._low.append(low)
        self._high.append(high)

    def solve(self, *, whole: bool = False) -> float | None:
        """Return the lowest cost, or None if there is no solution."""
        row, column, value = zip(*self._entries, strict=True)
        matrix = csr_array((value, (row, column)), shape=(len(self._low), len(self.cost)))
        result = milp(
            np.array(self.cost),
            constraints=LinearConstraint(matrix, self._low, self._high),
            bounds=Bounds(0, np.array(self.upper)),
            integrality=np.full(len(self.cost), int(whole)),
        )
        return None if result.x is None else float(result.fun)


@dataclass
class Oracle:
    """The properties of every optimal assignment of one case."""

    table: TableView
    previous: Assignment
    stores: StoresView
    current: CurrentState

    def __post_init__(self) -> None:
        ordered = sorted(self.stores.stores, key=lambda store: store.name)
        self.usable = [store for store in ordered if self.room(store) > 0]
        spread = self.table.placement.zone_spread
        self.zone = {store.name: store.zone if spread else "" for store in self.usable}
        self.zones = sorted(set(self.zone.values()))
        self.needed = self.table.partitions * self.table.replicas
        self.feasible = sum(self.room(store) for store in self.usable) >= self.needed

    def room(self, store: StoreView) -> int:
        placement = self.table.placement
        if not store.live or store.draining or store.weight == 0:
            return 0
        if any(store.labels.get(key) != value for key, value in placement.store_selector.items()):
            return 0
        own = math.inf if store.capacity is None else store.capacity - store.used_by_others
        shared = math.inf if placement.max_per_store is None else placement.max_per_store
        return int(max(0, min(own, shared, self.table.partitions)))

    def zone_totals(self) -> list[tuple[int, ...]]:
        """Return all divisions of the replicas over the zones with the lowest cost."""
        room = [sum(self.room(s) for s in self.usable if self.zone[s.name] == z) for z in self.zones]
        divisions = [
            (*head, self.needed - sum(head))
            for head in itertools.product(*(range(limit + 1) for limit in room[:-1]))
            if 0 <= self.needed - sum(head) <= room[-1]
        ]
        self.zone_cost = min(self._spread_cost(division) for division in divisions)
        return [division for division in divisions if self._spread_cost(division) == self.zone_cost]

    def _spread_cost(self, division: tuple[int, ...]) -> int:
        cost = 0
        for total in division:
            each, more = divmod(total, self.table.partitions)
            cost += (self.table.partitions - more) * each**2 + more * (each + 1) ** 2
        return cost

    @cached_property
    def shares(self) -> dict[str, Fraction]:
        """Return weighted shares: repeatedly fill the set of stores with the least room per weight."""
        totals = np.array(self.zone_totals())
        names = [store.name for store in self.usable]
        room = {store.name: self.room(store) for store in self.usable}

        def most(chosen: tuple[str, ...]) -> int:
            held = [sum(room[name] for name in chosen if self.zone[name] == zone) for zone in self.zones]
            return int(np.minimum(totals, held).sum(axis=1).max())

        return fair({s.name: Fraction(str(s.weight)) for s in self.usable}, names, most)

    def fewest_moves(self) -> int | None:
        """Return the fewest moves, by a linear program over all placements that satisfy zones and shares."""
        program = Program()
        shares = self.shares
        replica = self._replicas(program, cost=self._move_cost)
        self._spread_over_zones(program, replica)
        for store in self.usable:
            share = shares[store.name]
            column = [(replica[p, store.name], 1.0) for p in range(self.table.partitions)]
            program.constrain(column, math.floor(share), math.ceil(share))
        cost = program.solve()
        return None if cost is None else round(cost)

    def lowest_zone_cost(self) -> int:
        """Return the same as `zone_cost`, by a linear program over single replicas."""
        program = Program()
        replica = self._replicas(program, cost=lambda p, name: 0)
        self._spread_over_zones(program, replica, fixed=False)
        for store in self.usable:
            column = [(replica[p, store.name], 1.0) for p in range(self.table.partitions)]
            program.constrain(column, 0, self.room(store))
        cost = program.solve()
        assert cost is not None
        return round(cost)

    def _move_cost(self, p: int, name: str) -> int:
        return int(name not in self.previous.stores_of(p))

    def _replicas(self, program: Program, cost) -> dict[tuple[int, str], int]:  # type: ignore[no-untyped-def]
        replica = {
            (p, store.name): program.variable(cost(p, store.name))
            for p in range(self.table.partitions)
            for store in self.usable
        }
        for p in range(self.table.partitions):
            row = [(replica[p, store.name], 1.0) for store in self.usable]
            program.constrain(row, self.table.replicas, self.table.replicas)
        return replica

    def _spread_over_zones(self, program: Program, replica: dict[tuple[int, str], int], *, fixed: bool = True) -> None:
        """Express squares as increasing costs: the j-th replica of a partition in a zone costs 2j + 1."""
        steps: list[tuple[int, float]] = []
        for p, zone in itertools.product(range(self.table.partitions), self.zones):
            inside = [(replica[p, name], -1.0) for name, own in self.zone.items() if own == zone]
            mine = [(program.variable(0 if fixed else 2 * j + 1), 2.0 * j + 1) for j in range(self.table.replicas)]
            program.constrain(inside + [(step, 1.0) for step, _ in mine], 0, 0)
            steps += mine
        if fixed:
            program.constrain(steps, self.zone_cost, self.zone_cost)

    def leadership(self, target: Assignment, low: dict[str, int], high: dict[str, int]) -> tuple[int, int, int]:
        """Return the best (imbalance, role changes, transfers) for the target's placement."""
        program = Program()
        rows = [target.stores_of(p) for p in range(target.partitions)]
        retained = sum(1 for p, row in enumerate(rows) for name in row if self._was_voter(p, name))
        leads: dict[tuple[int, str], int] = {}
        for p, row in enumerate(rows):
            votes = {name: program.variable(10.0 * self._vote_cost(p, name)) for name in row}
            program.constrain([(vote, 1.0) for vote in votes.values()], target.voters, target.voters)
            for name in row:
                leads[p, name] = program.variable(float(name != self.leader(p)))
                program.constrain([(leads[p, name], 1.0), (votes[name], -1.0)], -1, 0)
            program.constrain([(leads[p, name], 1.0) for name in row], 1, 1)
        for name, lowest in low.items():
            self._add_imbalance(program, [leads[key] for key in leads if key[1] == name], lowest, high[name])
        base = sum(1000 * low[name] ** 2 for name in low)
        cost = program.solve(whole=True)
        assert cost is not None
        total = round(cost) + base + 10 * retained
        return total // 1000, total % 1000 // 10, total % 10

    def _add_imbalance(self, program: Program, leads: list[int], low: int, high: int) -> None:
        distance = [max(0, n - high, low - n) for n in range(len(leads) + 1)]
        steps = [
            (program.variable(1000.0 * (distance[n + 1] ** 2 - distance[n] ** 2)), -1.0) for n in range(len(leads))
        ]
        if leads:
            program.constrain([(lead, 1.0) for lead in leads] + steps, 0, 0)

    def measured(self, target: Assignment, low: dict[str, int], high: dict[str, int]) -> tuple[int, int, int]:
        """Return the target's own (imbalance, role changes, transfers)."""
        led = dict.fromkeys(low, 0)
        changes = transfers = 0
        for p in range(target.partitions):
            row = target.stores_of(p)
            led[row[0]] += 1
            transfers += row[0] != self.leader(p)
            for i, name in enumerate(row):
                changes += self._was_voter(p, name) and i >= target.voters
                changes += self._was_learner(p, name) and i < target.voters
        imbalance = sum(max(0, led[name] - high[name], low[name] - led[name]) ** 2 for name in low)
        return imbalance, changes, transfers

    def leader_bounds(self, target: Assignment) -> tuple[dict[str, int], dict[str, int]]:
        held = {store.name: 0 for store in self.usable}
        for p in range(target.partitions):
            for name in target.stores_of(p):
                held[name] += 1

        def most(chosen: tuple[str, ...]) -> int:
            return min(target.partitions, sum(held[name] for name in chosen))

        shares = fair({s.name: Fraction(str(s.weight)) for s in self.usable}, list(held), most)
        return {n: math.floor(s) for n, s in shares.items()}, {n: math.ceil(s) for n, s in shares.items()}

    def leader(self, p: int) -> str | None:
        return self.current.leaders.get(p, self.previous.leader_of(p))

    def _role_before(self, p: int, name: str) -> int | None:
        before = self.previous.stores_of(p)
        return before.index(name) if name in before else None

    def _was_voter(self, p: int, name: str) -> bool:
        place = self._role_before(p, name)
        return place is not None and place < self.previous.voters

    def _was_learner(self, p: int, name: str) -> bool:
        place = self._role_before(p, name)
        return place is not None and place >= self.previous.voters

    def _vote_cost(self, p: int, name: str) -> int:
        return int(self._was_learner(p, name)) - int(self._was_voter(p, name))


def fair(weight: dict[str, Fraction], names: list[str], most) -> dict[str, Fraction]:  # type: ignore[no-untyped-def]
    """Return the weighted fair point of a polymatroid, from its rank function `most`, by trying every subset."""
    share: dict[str, Fraction] = {}
    settled: tuple[str, ...] = ()
    while len(share) < len(names):
        rest = [name for name in names if name not in share]
        subsets = [c for n in range(1, len(rest) + 1) for c in itertools.combinations(rest, n)]
        base = most(settled)
        level, size = min(
            (Fraction(most(settled + c) - base) / sum(weight[name] for name in c), -len(c)) for c in subsets
        )
        tight = next(
            c for c in subsets if len(c) == -size and most(settled + c) - base == level * sum(weight[n] for n in c)
        )
        share.update({name: level * weight[name] for name in tight})
        settled += tight
    return share
