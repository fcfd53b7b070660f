"""Pydantic's errors as messages with the field, its value, the allowed values and the likely fix."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from difflib import get_close_matches
from typing import Any

from pydantic_core import ErrorDetails

from evenkeel.errors import InputProblem
from evenkeel.model.json_schema import Node, allowed, at
from evenkeel.model.resource_base import MISSING, Path, Violation
from evenkeel.model.yamltree import Document

__all__ = ["explain", "problem", "show", "spell", "suggestion"]

_LONGEST = 80


def explain(error: ErrorDetails, *, schema: Node, document: Document, source: str) -> Iterator[InputProblem]:
    """Yield the problems of one pydantic error."""
    path = _within(error["loc"])
    if error["type"] == "rules":
        for violation in error["ctx"]["violations"]:
            full = violation._replace(path=(*path, *violation.path))
            yield problem(full, document=document, source=source)
        return
    if error["type"] == "missing":
        yield _at(path, f"missing; allowed: {allowed(at(schema, path))}", document=document, source=source)
    elif error["type"] == "extra_forbidden":
        known = list(at(schema, path[:-1]).get("properties", {}))
        text = f"unknown field; {suggestion(str(path[-1]), known)}"
        yield _at(path, text, document=document, source=source)
    else:
        words = allowed(at(schema, path)) + _hint(error["input"], at(schema, path))
        yield problem(Violation(path, error["input"], words), document=document, source=source)


def problem(violation: Violation, *, document: Document, source: str) -> InputProblem:
    """Return a violation with its line and the value as the user wrote it."""
    path, got, words = violation
    if got is MISSING:
        return _at(path, f"allowed: {words}", document=document, source=source)
    mark = document.marks.get(path)
    written = "" if mark is None or mark.text is None else mark.text
    note = f" (written {written})" if isinstance(got, bool) and written not in ("", show(got)) else ""
    fix = f'; to mean text, quote it: "{written}"' if note else ""
    return _at(path, f"got {show(got)}{note}; allowed: {words}{fix}", document=document, source=source)


def _at(path: Path, text: str, *, document: Document, source: str) -> InputProblem:
    return InputProblem(source, document.line_of(path), spell(path), text)


def _within(location: tuple[str | int, ...]) -> Path:
    """Drop the last step `[key]`, by which pydantic marks an invalid key of a mapping."""
    return location[:-1] if location and location[-1] == "[key]" else location


def spell(path: Path) -> str:
    """Format a path like `spec.schema.columns[2].type`."""
    out = ""
    for step in path:
        out += f"[{step}]" if isinstance(step, int) else f".{step}" if out else step
    return out


def show(value: object) -> str:
    """Format a value as JSON, shortened to a readable length."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def suggestion(name: str, known: list[str]) -> str:
    """Return `did you mean X?` if a known name is similar, else the known names."""
    folded = {candidate.lower(): candidate for candidate in known}
    close = get_close_matches(name.replace("_", "").replace("-", "").lower(), folded, n=1)
    return f"did you mean {folded[close[0]]}?" if close else f"allowed: {', '.join(known)}"


def _hint(value: Any, schema: Node) -> str:
    kind = schema.get("type")
    if isinstance(value, str) and kind in ("integer", "number") and value.strip().lstrip("-").isdigit():
        return f"; drop the quotes: {value.strip()}"
    if isinstance(value, str) and kind == "boolean" and value.lower() in ("true", "false"):
        return f"; drop the quotes: {value.lower()}"
    if isinstance(value, int | float) and not isinstance(value, bool) and kind == "string":
        sound = re.search(schema.get("pattern", ""), str(value)) is not None
        return f'; to mean text, quote it: "{value}"' if sound else ""
    if isinstance(value, float) and "x-kubernetes-int-or-string" in schema:
        return f'; quote it: "{value}"'
    return ""
