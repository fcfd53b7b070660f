"""The soak test reports every failing seed and continues."""

from __future__ import annotations

import pytest

from tests.raft import soak
from tests.raft.sim.run import Outcome


def test_failing_seeds_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Any exception fails its seed only; the totals count all seeds."""
    errors = {5: AssertionError("two leaders"), 6: KeyError("nobody"), 7: None}
    monkeypatch.setattr(soak, "run", lambda seed: _run(seed, errors.pop(seed)))
    monkeypatch.setattr("tests.raft.soak.time.perf_counter", iter((0.0, 1.0, 2.0, 3.0, 10.0)).__next__)
    assert soak.soak(10, 5) == 2
    said = capsys.readouterr().out
    assert "seed 5 FAILED: AssertionError: two leaders" in said
    assert "seed 6 FAILED: KeyError: 'nobody'" in said
    assert "--seed 6" in said
    assert "seeds 5..7: 2 failed; 0.3 seeds/s, 10 events/s, 10 s" in said


def _run(seed: int, error: Exception | None) -> Outcome:
    if error is not None:
        raise error
    return Outcome(seed, events=100, time=0, committed=0, answered=0, term=0, confs=0, replicas=0)
