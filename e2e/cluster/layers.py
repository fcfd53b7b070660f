"""Whether tests that need a Kubernetes may be left out: where a machine cannot run them, but never in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["leave_out"]


def leave_out(reason: str) -> NoReturn:
    """Skip the test for this reason, or fail where CI runs: green there means that everything was run."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"nothing is skipped where CI=true, but {reason}", pytrace=False)
    pytest.skip(reason)
