"""docs/sidecar.md lists exactly the flags, metrics, status fields and problems that exist."""

from __future__ import annotations

import re
from pathlib import Path

import prometheus_client.parser as prometheus
import pytest

from evenkeel.wire.framing import Reason
from evenkeel_raft.core.errors import Refusal
from evenkeel_raft.host.replica_views import ReplicaStatus
from evenkeel_raft.process import options
from evenkeel_raft.process.metrics import Metrics
from evenkeel_raft.process.sidecar_status import SidecarStatus
from tests.raft_process.support import Sidecar

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "sidecar.md").read_text()
CODE = "\n".join(
    path.read_text()
    for part in ("raft_sidecar/evenkeel_raft", "operator/evenkeel")
    for path in (ROOT / part).rglob("*.py")
)


def section(title: str) -> str:
    return PAGE.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


def first_column(text: str) -> list[str]:
    rows = re.findall(r"^\|([^|]*)\|", text, re.MULTILINE)
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_flags() -> None:
    """Every flag is listed, with its default."""
    table = section("Running it")
    assert sorted(first_column(table)) == sorted(f"--{flag.name}" for flag in options._FLAGS)
    for flag in options._FLAGS:
        if flag.default:
            rows = [line.split("|") for line in table.splitlines() if line.startswith("| `--")]
            assert flag.default in next(row[2] for row in rows if f"`--{flag.name}`" in row[1])


async def test_metrics(sidecar: Sidecar) -> None:
    """Every metric is listed, and Prometheus can parse the output."""
    text = Metrics(sidecar.host, sidecar.agent).render().decode()
    families = prometheus.text_string_to_metric_families(text)
    there = [f"{family.name}_total" if family.type == "counter" else family.name for family in families]
    assert sorted(first_column(section("Metrics"))) == sorted(there)


def test_reasons() -> None:
    """Every listed reason exists."""
    row = next(line for line in PAGE.splitlines() if "`evenkeel_raft_dropped_connections_total`" in line)
    assert set(re.findall(r"`([a-z-]+)`", row.split("|")[2])) - {"reason"} == set(Reason)
    row = next(line for line in PAGE.splitlines() if "`evenkeel_raft_refused_messages_total`" in line)
    named = set(re.findall(r"`([a-z_]+)`", row.split("|")[2])) - {"reason"}
    assert named <= {refusal.name.lower() for refusal in Refusal} | {"unknown_group", "backlog"}


def test_status() -> None:
    """Every field of the process and of a replica is listed."""
    whole, _, each = section("Probes and status").partition("Each replica:")
    paths = ["/healthz", "/readyz", "/metrics", "/status"]
    assert first_column(whole) == [*paths, *SidecarStatus.__struct_fields__]
    assert first_column(each) == [*ReplicaStatus.__struct_fields__]


@pytest.mark.parametrize("text", first_column(section("Problems")))
def test_problems(text: str) -> None:
    """Every listed problem text occurs in the code."""
    for part in filter(None, (part.strip(" :()") for part in text.split("..."))):
        assert part in CODE
