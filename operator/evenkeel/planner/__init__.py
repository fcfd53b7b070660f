"""Decide where replicas and leaders go, why, and in which order to get there. Pure: no IO, clock or randomness."""

from evenkeel.planner.balanced_plan import plan
from evenkeel.planner.counted_changes import Changes, changed_partitions, changes
from evenkeel.planner.move_order import Blocked, Order, Underway, order
from evenkeel.planner.move_reasons import moves

__all__ = ["Blocked", "Changes", "Order", "Underway", "changed_partitions", "changes", "moves", "order", "plan"]
