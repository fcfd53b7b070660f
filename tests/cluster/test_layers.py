"""Tests that a machine cannot run: left out there, but missed in CI."""

from __future__ import annotations

import pytest

from e2e.cluster.layers import leave_out


@pytest.mark.parametrize("ci", [None, "", "false"])
def test_left_out_elsewhere(monkeypatch: pytest.MonkeyPatch, ci: str | None) -> None:
    """Where a person runs them the test is skipped, for the reason given."""
    if ci is None:
        monkeypatch.delenv("CI", raising=False)
    else:
        monkeypatch.setenv("CI", ci)
    with pytest.raises(pytest.skip.Exception, match="no root here"):
        leave_out("no root here")


def test_missed_in_ci(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI=true alone is enough: a layer that lacks is a failure with its reason."""
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="CI=true, but no root here"):
        leave_out("no root here")
