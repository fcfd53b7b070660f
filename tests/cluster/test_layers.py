"""Tests that a machine cannot run: left out there, but missed where they were promised."""

from __future__ import annotations

import pytest

from e2e.cluster.layers import leave_out


def test_left_out_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a promise the test is skipped, for the reason given, in CI as well."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.delenv("EVENKEEL_E2E", raising=False)
    with pytest.raises(pytest.skip.Exception, match="no root here"):
        leave_out("no root here", unless="EVENKEEL_E2E")


def test_missed_where_required(monkeypatch: pytest.MonkeyPatch) -> None:
    """CI that requires the layer fails without it."""
    monkeypatch.setenv("CI", "true")
    monkeypatch.setenv("EVENKEEL_E2E", "required")
    with pytest.raises(pytest.fail.Exception, match="EVENKEEL_E2E=required, but no root here"):
        leave_out("no root here", unless="EVENKEEL_E2E")
