"""docs/sidecar.md documents the agent completely."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec

from evenkeel_raft.agent.agent_settings import AgentSettings
from evenkeel_raft.agent.agent_status import AgentState, AgentStatus

PAGE = (Path(__file__).parents[2] / "docs" / "sidecar.md").read_text(encoding="utf-8")


def section(title: str) -> str:
    """Return the text below a heading."""
    return PAGE.split(f"### {title}\n", 1)[1].split("\n#", 1)[0]


def test_every_setting_is_listed() -> None:
    """Every setting is listed with its default, in the order of the code."""
    listed = re.findall(r"^\| `(\w+)` \| (\S+) \|", section("Settings"), re.MULTILINE)
    defaults = msgspec.structs.asdict(AgentSettings())
    assert listed == [(name, str(value)) for name, value in defaults.items()]


def test_every_state_is_listed() -> None:
    """Every state of the agent is listed."""
    listed = re.findall(r"^\| `(\w+)` \|", section("Agent states"), re.MULTILINE)
    assert listed == [state.value for state in AgentState]


def test_every_field_of_the_status_is_listed() -> None:
    """Every field of the status is listed."""
    listed = re.findall(r"^\| (`.+?`) \|", section("Agent status"), re.MULTILINE)
    fields = [name.strip("` ") for names in listed for name in names.split(",")]
    assert sorted(fields) == sorted(AgentStatus.__struct_fields__)
