"""Flags and metrics of the operator, and that docs/operator.md names all of them."""

from __future__ import annotations

import re
from pathlib import Path

import prometheus_client.parser as prometheus
import pytest

from evenkeel.errors import InvalidInputError
from evenkeel.kube.object_kinds import TABLE
from evenkeel_operator.process import operator_options
from evenkeel_operator.process.main import main
from evenkeel_operator.process.operator_health import OperatorHealth
from evenkeel_operator.process.operator_metrics import OperatorMetrics
from evenkeel_operator.process.operator_options import parse_options

PAGE = (Path(__file__).parents[2] / "docs" / "operator.md").read_text()
NEEDED = ("--own-namespace", "evenkeel", "--store-image", "store:1")


def test_flags_and_environment() -> None:
    """A flag takes precedence over the environment, and that over the default."""
    environment = {"EVENKEEL_NAMESPACES": "a,b", "EVENKEEL_TLS": "no", "EVENKEEL_STORE_COMMAND": "mine --well"}
    found = parse_options([*NEEDED, "--tls", "yes"], environment)
    assert found.term.namespaces == ("a", "b")
    assert found.term.pods.tls is True
    assert found.term.pods.store_command == ("mine", "--well")
    assert found.term.pods.apart is True


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((), "--own-namespace is missing"),
        (("--own-namespace", "e"), "--store-image is missing"),
        ((*NEEDED, "--nodes", "maybe"), "--nodes 'maybe': allowed: yes, no"),
        ((*NEEDED, "--lease-seconds", "1"), "at least 2"),
    ],
)
def test_bad_flags_are_named(arguments: tuple[str, ...], named: str) -> None:
    """The message names the flag and the allowed values."""
    with pytest.raises(InvalidInputError, match=re.escape(named)):
        parse_options(arguments, {})


def test_outside_of_a_pod(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without an API server the program prints one line with the remedy."""
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main([*NEEDED, "--http", "127.0.0.1:0"]) == 1
    said = capsys.readouterr().err.strip().splitlines()
    assert len(said) == 1
    assert "set --kubeconfig" in said[0]


def test_metrics_are_documented() -> None:
    """The page and the program have the same metrics."""
    health = OperatorHealth()
    health.saw_event(TABLE)
    health.saw_request("GET", TABLE, 200)
    health.swept(missed=0)
    health.crds = ""
    families = prometheus.text_string_to_metric_families(OperatorMetrics(health, dict).render().decode())
    there = {f"{family.name}_total" if family.type == "counter" else family.name for family in families}
    assert there == set(re.findall(r"`(evenkeel_operator_\w+)`", PAGE))


def test_flags_are_documented() -> None:
    """The page names every flag."""
    named = set(re.findall(r"`(--[a-z-]+)`", PAGE.partition("| flags |")[2].partition("| metric |")[0]))
    assert {f"--{flag.name}" for flag in operator_options._FLAGS} == named
