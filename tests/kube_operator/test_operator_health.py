"""Health of the operator: when its probes fail."""

from __future__ import annotations

from evenkeel.kube.object_kinds import TABLE
from evenkeel_operator.process.operator_health import OperatorHealth


def test_probes() -> None:
    """Missed watch events and stuck queues require a restart; without etcd or the API server it is not ready."""
    now = [0.0]
    health = OperatorHealth(lambda: now[0])
    assert health.unready() != ""
    health.saw_request("GET", TABLE, 200)
    health.etcd, health.leader = "", "one"
    assert (health.unready(), health.unhealthy()) == ("", "")
    health.etcd = "no endpoint answers"
    assert "no endpoint" in health.unready()
    assert health.unhealthy() == "", "a restart does not bring etcd back"
    health.saw_request("GET", TABLE, 0)
    assert "API server" in health.unready()
    health.swept(missed=1)
    assert health.unhealthy() == "", "one sweep is no proof"
    health.swept(missed=1)
    assert "no watch" in health.unhealthy()
    health.swept(missed=0)
    assert health.unhealthy() == ""
    health.leading, health.oldest = True, lambda: 301.0
    assert "waited" in health.unhealthy()
