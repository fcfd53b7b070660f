"""Finds content that must not be in the repository and that no other linter reports; part of `make lint`."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LONGEST_MODULE = 600

# The brackets keep a pattern from matching itself.
FORBIDDEN = {
    "unfinished work: finish it, or open an issue": re.compile(r"\b(?:TOD[O]|FIXM[E]|XX[X])\b"),
    "an unresolved merge": re.compile(r"^(?:<{7}|>{7}|={7})(?: |$)"),
    "the home directory of a user": re.compile(r"(?<![\w.])/(?:hom[e]/\w+|roo[t]|User[s]/\w+)/"),
    "a private package index": re.compile(r"https?://[\w.:-]+/simpl[e]\b|\b(?:extra-)?index-ur[l]\s*=|GOPROX[Y]=http"),
}


def problems(name: str, text: str, *, root: Path = ROOT) -> Iterator[str]:
    """Yield the problems of a file as `file:line: problem`."""
    lines = text.splitlines()
    if name.endswith(".py") and len(lines) > LONGEST_MODULE:
        yield f"{name}:1: {len(lines)} lines; a module has at most {LONGEST_MODULE}: split it"
    for number, line in enumerate(lines, start=1):
        if f"{root}/" in line:
            yield f"{name}:{number}: the path of this checkout"
        for what, pattern in FORBIDDEN.items():
            if pattern.search(line):
                yield f"{name}:{number}: {what}"


def tracked() -> list[str]:
    """List the files that git tracks."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)  # noqa: S607
    return [name for name in listing.stdout.split("\0") if (ROOT / name).is_file()]


def check() -> Iterator[str]:
    """Yield the problems of all tracked text files."""
    for name in tracked():
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        yield from problems(name, text)


if __name__ == "__main__":
    found = list(check())
    for problem in found:
        print(problem)
    sys.exit(1 if found else 0)
