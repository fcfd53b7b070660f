"""Run the reference state machine, and kill it right before its n-th SQL statement."""

from __future__ import annotations

import os
import signal
import sqlite3
import sys
from typing import Any

from evenkeel_reference.__main__ import main

_statements = int(sys.argv[1])
_connect = sqlite3.connect


class Dying(sqlite3.Connection):
    """A connection that counts statements."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        global _statements  # noqa: PLW0603
        _statements -= 1
        if _statements == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().execute(*arguments)


sqlite3.connect = lambda *arguments, **options: _connect(*arguments, **options, factory=Dying)  # type: ignore[assignment]
sys.exit(main(sys.argv[2:]))
