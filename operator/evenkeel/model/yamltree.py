"""YAML as plain data with the line of every field.

Scalars are read like `kubectl` reads them (YAML 1.1: `on`, `yes` and `y` are booleans, `1e3` is a number, dates are
text), so that a file means the same in both. Likely mistakes and abuses of YAML are refused with their line: duplicate
keys, boolean keys, custom tags, recursive anchors, and aliases that expand to too many values.
"""

from __future__ import annotations

import re
from math import isfinite
from typing import NamedTuple

import yaml

from evenkeel.errors import InputProblem, InvalidInputError
from evenkeel.model.resource_base import Path

__all__ = ["MAX_BYTES", "Document", "Mark", "documents"]

MAX_BYTES = 3 * 1024 * 1024
"""The size limit of a request to the API server."""
MAX_ALIASED = 20_000
"""Limit of values that are read repeatedly through aliases."""
MAX_DEPTH = 64
_LONGEST_INTEGER = 40

_TAG = "tag:yaml.org,2002:"
_TRUE = frozenset(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"])
_FALSE = frozenset(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"])
_NULL = frozenset(["", "~", "null", "Null", "NULL"])
_INTEGER = re.compile(r"[-+]?(0|0b[01]+|0x[0-9a-fA-F]+|0o?[0-7]+|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9]*)?)([eE][-+]?[0-9]+)?")


class Mark(NamedTuple):
    """The line of a field, and the text of a scalar as it was written."""

    line: int
    text: str | None = None


class Document(NamedTuple):
    """A document of a YAML file."""

    line: int
    data: object
    marks: dict[Path, Mark]

    def line_of(self, path: Path) -> int:
        """Return the line of a field, or of its nearest parent that has one."""
        while path and path not in self.marks:
            path = path[:-1]
        return self.marks[path].line if path in self.marks else self.line


class _Loader(yaml.SafeLoader):
    """Leaves scalars unresolved (`_scalar` resolves them) and limits the nesting depth."""

    yaml_implicit_resolvers = {}  # noqa: RUF012
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Compose a node one level deeper."""
        self.depth += 1
        if self.depth > MAX_DEPTH:
            mark = self.get_mark()
            raise yaml.MarkedYAMLError(problem=f"nested deeper than {MAX_DEPTH} levels", problem_mark=mark)
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def documents(text: str, *, source: str) -> list[Document]:
    """Return all documents that are not empty; raise InvalidInputError with the line if the text is not valid YAML."""
    if len(text) > MAX_BYTES:
        raise _refused(source, 0, f"got {len(text)} characters; allowed: at most {MAX_BYTES}; split the file")
    try:
        nodes = [node for node in yaml.compose_all(text, Loader=_Loader) if node is not None]
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        detail = ", ".join(part for part in (error.context, error.problem) if part)
        raise _refused(source, mark.line + 1 if mark else 0, f"not valid YAML: {detail}") from None
    except yaml.YAMLError as error:
        raise _refused(source, 0, f"not valid YAML: {' '.join(str(error).split())}") from None
    except ValueError as error:
        raise _refused(source, 0, f"not valid YAML: {error}") from None
    reader = _Reader(source)
    return [reader.document(node) for node in nodes if not _is_empty(node)]


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and not node.style and node.value in _NULL


def _refused(source: str, line: int, text: str) -> InvalidInputError:
    return InvalidInputError(problems=[InputProblem(source, line, "", text)])


class _Reader:
    """Converts nodes to data; one reader per file, because the limit on aliases applies to a file."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._seen: set[int] = set()
        self._again = 0
        self._open: set[int] = set()
        self._marks: dict[Path, Mark] = {}

    def document(self, node: yaml.Node) -> Document:
        self._marks = {}
        data = self._read(node, ())
        return Document(node.start_mark.line + 1, data, self._marks)

    def _read(self, node: yaml.Node, path: Path) -> object:
        self._count(node)
        self._marks[path] = Mark(_line(node))
        if isinstance(node, yaml.ScalarNode):
            self._marks[path] = Mark(_line(node), node.value)
            return self._scalar(node)
        self._open.add(id(node))
        try:
            if isinstance(node, yaml.SequenceNode):
                self._tagged(node, "seq")
                return [self._read(child, (*path, i)) for i, child in enumerate(node.value)]
            assert isinstance(node, yaml.MappingNode)
            self._tagged(node, "map")
            return self._mapping(node, path)
        finally:
            self._open.discard(id(node))

    def _count(self, node: yaml.Node) -> None:
        self._again += id(node) in self._seen
        self._seen.add(id(node))
        if self._again > MAX_ALIASED:
            raise _refused(self._source, _line(node), f"aliases expand to more than {MAX_ALIASED} values")
        if id(node) in self._open:
            raise _refused(self._source, _line(node), "an anchor contains an alias of itself")

    def _mapping(self, node: yaml.MappingNode, path: Path) -> dict[str, object]:
        pairs = [(self._key(key), key, value) for key, value in node.value]
        out: dict[str, object] = {}
        for _, key_node, value_node in pairs:
            if _is_merge(key_node):
                out = {**self._merge(value_node, path), **out}
        lines: dict[str, int] = {}
        for key, key_node, value_node in pairs:
            if _is_merge(key_node):
                continue
            if key in lines:
                first = lines[key]
                raise _refused(self._source, _line(key_node), f'duplicate key "{key}", first in line {first}')
            lines[key] = _line(key_node)
            out[key] = self._read(value_node, (*path, key))
            self._marks[*path, key] = self._marks[*path, key]._replace(line=lines[key])
        return out

    def _merge(self, node: yaml.Node, path: Path) -> dict[str, object]:
        sources = node.value if isinstance(node, yaml.SequenceNode) else [node]
        merged: dict[str, object] = {}
        for source in reversed(sources):
            data = self._read(source, path)
            if not isinstance(data, dict):
                raise _refused(self._source, _line(source), "`<<` needs an alias of a mapping")
            merged.update(data)
        return merged

    def _key(self, node: yaml.Node) -> str:
        if not isinstance(node, yaml.ScalarNode):
            raise _refused(self._source, _line(node), "a key must be text")
        if isinstance(self._scalar(node), bool | None):
            fix = f'quote it: "{node.value}"'
            raise _refused(self._source, _line(node), f"the key {node.value or '(empty)'} is not a string; {fix}")
        return str(node.value)

    def _scalar(self, node: yaml.ScalarNode) -> object:
        self._tagged(node, "str")
        return node.value if node.style else _plain(node.value)

    def _tagged(self, node: yaml.Node, kind: str) -> None:
        if node.tag != f"{_TAG}{kind}":
            raise _refused(self._source, _line(node), f"the tag {node.tag} is not supported; remove the tag")


def _is_merge(key: yaml.Node) -> bool:
    return isinstance(key, yaml.ScalarNode) and key.value == "<<" and not key.style


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _plain(text: str) -> object:
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if _INTEGER.fullmatch(text) and len(text) <= _LONGEST_INTEGER:
        return _integer(text.replace("_", ""))
    if _FLOAT.fullmatch(text) and isfinite(number := float(text.replace("_", ""))):
        return number
    return text


def _integer(text: str) -> int:
    sign, digits = (-1, text[1:]) if text[0] == "-" else (1, text.lstrip("+"))
    octal = digits[0] == "0" and digits[1:2].isdigit()
    return sign * int(f"0o{digits}" if octal else digits, 0)
