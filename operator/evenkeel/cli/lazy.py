"""Modules that are imported when something of them is used: help and completion wait for nothing they do not need."""

from __future__ import annotations

import importlib
from typing import Any

__all__ = ["Later"]


class Later:
    """Stands for a module until one of its names is asked for."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)
