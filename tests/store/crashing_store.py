"""Runs a store that kills itself right before its n-th SQL statement, not counting SELECTs."""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from evenkeel_store.engine.database import Cursor, Database
from evenkeel_store.process.main import main

_statements = int(sys.argv[1])
_cursor = Database.cursor


class CrashingCursor:
    """A cursor that counts statements."""

    def __init__(self, cursor: Cursor) -> None:
        self._cursor = cursor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._cursor, name)

    def execute(self, sql: str, *arguments: Any) -> Any:
        global _statements  # noqa: PLW0603
        if not sql.startswith("SELECT"):
            _statements -= 1
            if _statements == 0:
                os.kill(os.getpid(), signal.SIGKILL)
        # DuckDB looks for the variable in its caller's frame, which is this one.
        incoming = sys._getframe(1).f_locals.get("incoming")  # noqa: F841
        return self._cursor.execute(sql, *arguments)


Database.cursor = lambda database: CrashingCursor(_cursor(database))  # type: ignore[method-assign, assignment, return-value]
sys.exit(main(sys.argv[2:]))
