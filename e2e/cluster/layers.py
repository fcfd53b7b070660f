"""Whether tests that need a Kubernetes may be left out: where a machine cannot run them, unless CI promised to.

`CI=true EVENKEEL_KUBERNETES=required` insists on the tests against an API server, `CI=true EVENKEEL_E2E=required` on
those against a whole cluster.
"""

from __future__ import annotations

import os
from typing import NoReturn

import pytest

__all__ = ["leave_out"]


def leave_out(reason: str, *, unless: str) -> NoReturn:
    """Skip the test for this reason, or fail where the variable `unless` says that it is required."""
    if os.environ.get("CI") == "true" and os.environ.get(unless) == "required":
        pytest.fail(f"{unless}=required, but {reason}", pytrace=False)
    pytest.skip(reason)
