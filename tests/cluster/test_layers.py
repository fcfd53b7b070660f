"""Tests that a machine cannot run are skipped there, but fail in CI."""

from __future__ import annotations

import pytest

from e2e.cluster.layers import leave_out


@pytest.mark.parametrize("ci", [None, "", "false"])
def test_left_out_elsewhere(monkeypatch: pytest.MonkeyPatch, ci: str | None) -> None:
    """On a developer's machine the test is skipped with the reason."""
    if ci is None:
        monkeypatch.delenv("CI", raising=False)
    else:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match="no root here"):
        leave_out("no root here")


def test_missed_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """With CI=true a missing layer is a failure with its reason."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI=true no test may be skipped: no root here"):
        leave_out("no root here")
