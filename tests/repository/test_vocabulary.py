"""One word, one meaning: retired words stay out of identifiers, messages, help texts and pages."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

import pytest

from tests.repository.tree import ROOT, tracked

RETIRED_NAMES = {
    "look": "reconcile, or what is checked",
    "looks": "reconciles",
    "looked": "reconciled",
    "keeper": "reconciler",
    "labour": "reconciler",
    "hear": "enqueue, notify or receive",
    "hears": "enqueue, notify or receive",
    "heard": "enqueued, notified or received",
    "stir": "enqueue, notify",
    "stirs": "enqueue, notify",
    "stirred": "enqueued",
    "tell": "report, publish, notify",
    "tells": "report, publish, notify",
    "telling": "report, publish, notify",
    "told": "reported, published, notified",
    "complain": "report",
    "lament": "report",
    "wish": "desired",
    "wishes": "desired",
    "wished": "desired",
    "ground": "context",
    "trouble": "problem",
    "troubles": "problems",
    "helpless": "unavailable",
    "chance": "rng",
    "today": "wall_clock",
    "vitals": "health",
    "attendance": "health",
    "filler": "snapshot_sender",
    "arrivals": "snapshot_receiver",
    "pace": "throttle",
    "allowance": "retention",
    "moments": "query_pins",
    "farewell": "uninstall_guard, finalize",
    "bury": "finalize",
    "upkeep": "background, maintenance",
    "patience": "timeout",
    "whoever": "the actor's name",
    "meanwhile": "what happens in between",
    "anew": "again, recreate",
}
"""Words that no identifier has, each with what to use instead; see docs/concepts.md."""

RETIRED_PROSE = {
    r"anew": "again, recreate",
    r"thereof": "of it",
    r"whoever": "name the actor",
    r"nobody (tells|knows|asks|says)": "name the actor",
    r"(is|are|was|were|be) told": "report, notify",
    r"lament\w*": "report",
    r"labours?": "reconciler",
    r"farewell\w*": "finalize",
    r"helpless\w*": "unavailable",
    r"keepers?": "reconciler",
    r"comes? of (it|nothing)": "say what results",
}
"""Phrases that no docstring, comment, message or page has."""

_WORDS = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")


def identifiers(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Find every name that a module gives to something, with its line."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield node.lineno, name
            case ast.arg(arg=name):
                yield node.lineno, name
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                yield node.lineno, name


def retired_names(text: str) -> Iterator[tuple[int, str]]:
    """Find the identifiers of a module that have a retired word, and say what to use."""
    for line, name in identifiers(ast.parse(text)):
        for word in _WORDS.findall(name):
            if (instead := RETIRED_NAMES.get(word.lower())) is not None:
                yield line, f"{name}: say {instead}, not {word.lower()}"


def retired_prose(text: str) -> Iterator[tuple[int, str]]:
    """Find the lines of a file that have a retired phrase, and say what to use."""
    for pattern, instead in RETIRED_PROSE.items():
        for found in re.finditer(rf"\b{pattern}\b", text, re.IGNORECASE):
            yield text.count("\n", 0, found.start()) + 1, f"{found.group()!r}: {instead}"


def _exempt(name: str) -> bool:
    return name.startswith(("tests/repository/test_vocabulary.py", "CHANGELOG.md", "LICENSE"))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("def look_around(): pass", ["look_around: say reconcile, or what is checked, not look"]),
        ("class TableKeeper: pass", ["TableKeeper: say reconciler, not keeper"]),
        ("def f(chance): self.pace = 1", ["chance: say rng, not chance", "pace: say throttle, not pace"]),
        ("background = lookup = namespace = 1", []),
    ],
)
def test_retired_identifiers_are_found(text: str, found: list[str]) -> None:
    """Functions, classes, arguments and attributes are checked word by word."""
    assert [what for _, what in retired_names(text)] == found


def test_retired_phrases_are_found() -> None:
    """A phrase is found wherever it stands in a line; longer words that contain it are not."""
    assert [line for line, _ in retired_prose("fine\nWhoever asks is told\nplanewise")] == [2, 2]


def test_no_identifier_has_a_retired_word() -> None:
    """Every module, test and script uses the words of docs/concepts.md."""
    assert [
        f"{name}:{line}: {what}"
        for name in tracked(".py")
        if not _exempt(name)
        for line, what in retired_names((ROOT / name).read_text())
    ] == []


def test_no_text_has_a_retired_phrase() -> None:
    """Docstrings, comments, messages, help texts and pages are plain technical English."""
    assert [
        f"{name}:{line}: {what}"
        for name in tracked(".py", ".md", ".yaml", ".sh", ".txt", ".java", ".tpl", "Makefile")
        if not _exempt(name)
        for line, what in retired_prose((ROOT / name).read_text())
    ] == []
