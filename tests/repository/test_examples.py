"""The examples are what people copy, so they must be right."""

from __future__ import annotations

from pathlib import Path

import pytest

from evenkeel.model.resource_loading import load_yaml
from tests.repository.tree import ROOT

EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))


@pytest.mark.parametrize("example", EXAMPLES, ids=[example.name for example in EXAMPLES])
def test_example_is_valid(example: Path) -> None:
    """Every example is accepted as it stands."""
    assert load_yaml(example.read_text(), source=example.name)
