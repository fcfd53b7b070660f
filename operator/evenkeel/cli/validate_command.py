"""`validate`: check resource files by the operator's rules and report all problems at once."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.text import Text

from evenkeel.cli.options import Output
from evenkeel.errors import InputProblem, InvalidInputError
from evenkeel.model.resource_loading import Loaded, Resource, read_yaml

__all__ = ["Checked", "collect", "report"]

_SUFFIXES = (".yaml", ".yml", ".json")


@dataclass(frozen=True)
class Checked:
    """The valid resources and the problems of all files."""

    resources: list[tuple[str, int, Resource]] = field(default_factory=list)
    """Source, line and resource."""
    problems: list[InputProblem] = field(default_factory=list)

    @property
    def valid(self) -> bool:
        """Whether there are no problems."""
        return not self.problems


def collect(paths: Sequence[Path]) -> Checked:
    """Check every file; raise InvalidInputError if there is no resource in them."""
    checked = Checked()
    for source, raw in _contents(paths):
        loaded = _read(raw, source)
        checked.resources.extend((source, line, resource) for line, resource in loaded.resources)
        checked.problems.extend(loaded.problems)
    if not checked.resources and not checked.problems:
        named = ", ".join(map(str, paths))
        raise InvalidInputError(
            f"-f: no resource found in {named}; allowed: YAML or JSON files with apiVersion and kind, or their folders"
        )
    return checked


def _contents(paths: Iterable[Path]) -> Iterator[tuple[str, bytes]]:
    for path in paths:
        if str(path) == "-":
            yield "stdin", sys.stdin.buffer.read()
            continue
        for file in _files(path):
            try:
                yield str(file), file.read_bytes()
            except OSError as error:
                raise InvalidInputError(f"{file}: cannot read the file: {error.strerror}") from None


def _files(path: Path) -> Sequence[Path]:
    if not path.is_dir():
        return [path]
    return sorted(file for file in path.iterdir() if file.suffix in _SUFFIXES and file.is_file())


def _read(raw: bytes, source: str) -> Loaded:
    try:
        return read_yaml(raw.decode("utf-8-sig"), source)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        return Loaded([], [InputProblem(source, line, "", "not UTF-8 text; save the file as UTF-8")])


def report(checked: Checked, output: Output) -> None:
    """Print the valid resources, then the problems."""
    if output is Output.JSON:
        sys.stdout.write(json.dumps(_as_data(checked), indent=2, ensure_ascii=False) + "\n")
        return
    console = Console(soft_wrap=True, highlight=False)
    for line in _table(checked):
        console.print(line)
    for problem in checked.problems:
        console.print(_styled(problem))
    console.print(_summary(checked))


def _as_data(checked: Checked) -> dict[str, object]:
    return {
        "valid": checked.valid,
        "resources": [
            {
                "kind": resource.kind,
                "namespace": resource.metadata.namespace,
                "name": resource.metadata.name,
                "source": source,
                "line": line,
            }
            for source, line, resource in checked.resources
        ],
        "problems": [problem._asdict() for problem in checked.problems],
    }


def _table(checked: Checked) -> Iterator[Text]:
    if not checked.resources:
        return
    rows = [("KIND", "NAME", "SOURCE")]
    rows += [(resource.kind, resource.key, f"{source}:{line}") for source, line, resource in checked.resources]
    widths = [max(len(row[i]) for row in rows) for i in range(2)]
    for i, (kind, name, source) in enumerate(rows):
        style = "bold" if i == 0 else ""
        yield Text(f"{kind:<{widths[0]}}  {name:<{widths[1]}}  {source}", style=style)


def _styled(problem: InputProblem) -> Text:
    location = f"{problem.source}:{problem.line}" if problem.line else problem.source
    text = Text(location, style="cyan").append(": ", style="default")
    if problem.path:
        text.append(problem.path, style="bold").append(": ", style="default")
    return text.append(problem.text, style="default")


def _summary(checked: Checked) -> Text:
    good = f"{len(checked.resources)} valid"
    if checked.valid:
        return Text(good, style="green")
    return Text(f"{good}, {len(checked.problems)} problem{'s' if len(checked.problems) > 1 else ''}", style="red")
