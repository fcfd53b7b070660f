"""Decide where replicas and leaders go, why, and in which order to get there. Pure: no IO, clock or randomness."""

from evenkeel.planner.balanced import plan

__all__ = ["plan"]
