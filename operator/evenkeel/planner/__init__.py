"""Compute where replicas and leaders go, the reason of each move, and a safe order of the moves.

The planner is pure: it uses no IO, clock or randomness.

Modules:
    balanced_plan           the default rebalancer: what it optimises, and the steps of one planning run
    counted_changes         count moves, role changes and transfers between two assignments
    fair_shares             each store's and zone's share of the replicas, in exact arithmetic
    filled_replicas         assign stores to a placement's missing replicas
    kept_replicas           choose which replicas of the previous placement stay
    move_order              order changes into waves that never exceed a store's cap
    move_reasons            the reason of each move, in words
    placement               find a placement with the fewest moves
    placement_problem       the placement problem as arrays, and shared array operations
    placement_rules         which stores may hold replicas of a table, and how many
    preferred_leaders       choose each partition's leader and voters
    replica_exchange        improve a placement to the optimum by exchanges of stores
    safe_sequence           search for a sequence of changes that never lacks room
    store_aims              round shares to whole numbers close to what stores hold
"""

from evenkeel.planner.balanced_plan import plan
from evenkeel.planner.counted_changes import Changes, changed_partitions, changes
from evenkeel.planner.move_order import Blocked, Order, Underway, order
from evenkeel.planner.move_reasons import moves

__all__ = ["Blocked", "Changes", "Order", "Underway", "changed_partitions", "changes", "moves", "order", "plan"]
