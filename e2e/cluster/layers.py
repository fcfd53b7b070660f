"""Skips tests that need a Kubernetes cluster on machines that cannot run one, but never in CI."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["leave_out"]


def leave_out(reason: str) -> NoReturn:
    """Skip the test, or fail in CI, where green means that every test ran."""
    if os.environ.get("CI") == "true":
        pytest.fail(f"with CI=true no test may be skipped: {reason}", pytrace=False)
    pytest.skip(reason)
