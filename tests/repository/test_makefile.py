"""The Makefile, and the documents that tell people to use it."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

from tests.repository.tree import ROOT

TARGETS = set(re.findall(r"^([a-z0-9-]+):.*## ", (ROOT / "Makefile").read_text(), re.MULTILINE))
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("e2e/*.md")])
IDS = [str(page.relative_to(ROOT)) for page in PAGES]


def make(*arguments: str) -> str:
    # The outer make's flags would reach this one through the environment.
    environment = {"PATH": "/usr/bin:/bin"}
    done = subprocess.run(["make", *arguments], cwd=ROOT, env=environment, check=True, capture_output=True, text=True)
    return done.stdout


def slug(heading: str) -> str:
    """Return the anchor that a heading gets on the web."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).strip().replace(" ", "-")


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def test_the_interface_is_whole() -> None:
    """Every target that people and other tools rely on exists."""
    promised = (
        "demo test test-process test-spark soak walk-log explore e2e bench lint format crds images binaries lock docs "
        "clean help"
    )
    assert {*promised.split(), "cluster-up", "cluster-down"} <= TARGETS


def test_help_is_the_default_and_lists_all() -> None:
    """`make` alone changes nothing and names every target with one line about it."""
    listed = re.findall(r"^  make (\S+) +\S", make(), re.MULTILINE)
    assert sorted(listed) == sorted(TARGETS)


@pytest.mark.parametrize("target", sorted(TARGETS - {"help", "clean"}))
def test_recipes_name_existing_files(target: str) -> None:
    """No recipe calls a script that is not there."""
    for script in re.findall(r"\bscripts/[\w-]+\.\w+", make("--dry-run", target)):
        assert (ROOT / script).is_file()


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_documented_targets_exist(page: Path) -> None:
    """A `make` command in a document is one that works."""
    mentioned = re.findall(r"(?:^|`)\s*(?:\S+=\S+ )*make ([a-z0-9][a-z0-9-]*)", page.read_text(), re.MULTILINE)
    assert set(mentioned) <= TARGETS


@pytest.mark.parametrize("page", PAGES, ids=IDS)
def test_links_lead_somewhere(page: Path) -> None:
    """A link inside the repository leads to a file that exists, and to a heading that it has."""
    for target in re.findall(r"\]\(([^)\s]+)\)", prose(page)):
        if "://" in target:
            continue
        path, _, anchor = target.partition("#")
        file = page.parent / path if path else page
        assert file.exists(), target
        if anchor:
            assert anchor in {slug(heading) for heading in re.findall(r"^#+ (.*)$", prose(file), re.MULTILINE)}, target


def test_continuous_integration_runs_what_people_run() -> None:
    """CI calls the targets that the README names, so that green there means green here."""
    command = re.search(r"^exec make (.*)$", (ROOT / ".ci" / "run").read_text(), re.MULTILINE)
    assert command is not None
    assert {"lint", "binaries", "test", "test-process", "test-spark", "e2e-smoke"} <= set(command[1].split()) & TARGETS
