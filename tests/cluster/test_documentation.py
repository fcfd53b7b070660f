"""The examples of test clusters in docs/development.md are valid code."""

from __future__ import annotations

import re
from contextlib import nullcontext
from unittest.mock import create_autospec

from e2e.cluster import images, netns
from e2e.cluster.netns import NetnsCluster
from tests.repository.tree import ROOT, shown

PAGE = ROOT / "docs" / "development.md"


def test_code_of_the_page() -> None:
    """Every call exists and accepts its arguments, also those in comments."""
    [block] = shown(PAGE, "python")
    cluster = create_autospec(NetnsCluster, instance=True)
    names = {name: create_autospec(getattr(images, name)) for name in ("built", "export")}
    module = create_autospec(netns)
    module.kept.return_value = nullcontext(cluster)
    exec(compile(block, str(PAGE), "exec"), {"netns": module, **names})
    cluster.partition_node.assert_called_once_with("node-2")
    comments = " ".join(re.findall(r"# and (.*)$", block, re.MULTILINE))
    named = re.findall(r"\w+_\w+", comments)
    assert len(named) >= 5
    assert not [name for name in named if not hasattr(NetnsCluster, name)]
