"""Job files as text: YAML or JSON into plain values that remember their lines.

Values come out as the API server would see them (see `scalars`), and the faults that a parser silently
forgives, duplicate keys above all, are reported.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path as FilePath
from typing import TYPE_CHECKING, Any, BinaryIO

import yaml

from finetune_operator.api.faults import Path, Problem, printable
from finetune_operator.api.scalars import resolve

if TYPE_CHECKING:
    from yaml import SafeLoader as _Loader
else:
    _Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

SIZE_LIMIT = 3 * 2**20
"""Bytes; the API server takes no larger request."""

_TAG = "tag:yaml.org,2002:"
_PLAIN = f"{_TAG}plain"
_SURROGATES = re.compile(r"(?<!\\)((?:\\\\)*)\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")

_HINTS = {
    "mapping values are not allowed": "put a value that contains ': ' in quotes, or mend the indentation",
    "did not find expected key": "mend the indentation",
    "could not find expected ':'": "mend the indentation, or the ':' that is missing",
    "did not find expected ',' or": "close the bracket, or put the value in quotes",
    "cannot start any token": "put the value in quotes",
}


class DocumentError(Exception):
    """The text is no YAML or JSON at all.

    Args:
        line: from 1.
        message: what is wrong.
        suggestion: what to do about it; may be empty.
    """

    def __init__(self, line: int, message: str, suggestion: str = "") -> None:
        super().__init__(message)
        self.line = line
        self.message = message
        self.suggestion = suggestion


class _Reader(_Loader):
    """Composes nodes only; marks plain scalars, which `scalars.resolve` will judge."""

    def resolve(self, kind: type[yaml.Node], value: str, implicit: Any) -> str:
        if kind is yaml.ScalarNode:
            return _PLAIN if implicit[0] else f"{_TAG}str"
        return f"{_TAG}map" if kind is yaml.MappingNode else f"{_TAG}seq"


@dataclass
class Document:
    """One document of a file."""

    root: yaml.Node
    value: object = None
    """Plain JSON values."""
    problems: list[Problem] = field(default_factory=list)
    """What the parser itself found wrong."""
    _values: dict[int, object] = field(default_factory=dict)

    @classmethod
    def of(cls, root: yaml.Node) -> Document:
        """Turn a composed node into values."""
        document = cls(root)
        document.value = document._value(root, (), frozenset())
        return document

    @property
    def line(self) -> int:
        """Where the document begins, from 1."""
        return int(self.root.start_mark.line) + 1

    def line_of(self, path: Path) -> int:
        """The line of a path's key, or of the innermost part of the path that is there."""
        return self._find(path)[0] + 1

    def text_of(self, path: Path) -> str:
        """The scalar at a path as it is spelled in the file, without its quotes; empty if there is none."""
        _, node, found = self._find(path)
        return str(node.value) if found and isinstance(node, yaml.ScalarNode) else ""

    def _find(self, path: Path) -> tuple[int, yaml.Node, bool]:
        node, line = self.root, self.root.start_mark.line
        for step in path:
            if isinstance(node, yaml.MappingNode):
                pair = next((pair for pair in _pairs(node) if _key(pair[0]) == step), None)
                if pair is None:
                    return line, node, False
                line, node = pair[0].start_mark.line, pair[1]
            elif isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
                node = node.value[step]
                line = node.start_mark.line
            else:
                return line, node, False
        return line, node, True

    def _value(self, node: yaml.Node, path: Path, above: frozenset[int]) -> object:
        if id(node) in above:
            self.problems.append(Problem(path, "is an alias of something that contains it"))
            return None
        if id(node) in self._values:  # an alias: shared, so that nested ones cannot explode
            return self._values[id(node)]
        value: object
        if isinstance(node, yaml.MappingNode):
            value = self._mapping(node, path, above | {id(node)})
        elif isinstance(node, yaml.SequenceNode):
            within = above | {id(node)}
            value = [self._value(item, (*path, index), within) for index, item in enumerate(node.value)]
        else:
            value = self._scalar(node, path)
        self._values[id(node)] = value
        return value

    def _scalar(self, node: yaml.Node, path: Path) -> object:
        if node.tag.removeprefix(_TAG) not in ("plain", "int", "float", "bool", "null"):
            return node.value
        try:
            return resolve(node.value)
        except ValueError as error:
            self.problems.append(
                Problem(path, str(error), f'write "{node.value}" in quotes if text is meant')
            )
            return None

    def _mapping(self, node: yaml.MappingNode, path: Path, within: frozenset[int]) -> dict[str, object]:
        mapping: dict[str, object] = {}
        merged: dict[str, object] = {}
        first: dict[str, int] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if _is_merge(key_node):
                for source in _merge_sources(value_node):
                    value = self._value(source, path, within)
                    if isinstance(value, dict):
                        merged = {**value, **merged}
                    else:
                        self.problems.append(Problem(path, "merges something that is no mapping", line=line))
                continue
            key = _key(key_node)
            if key is None:
                self.problems.append(
                    Problem(path, "has a key that is no string", "write the key as plain text", line)
                )
            elif key in first:
                message = f"is given twice, in lines {first[key]} and {line}"
                self.problems.append(Problem((*path, key), message, "keep one of them", line))
            else:
                first[key] = line
                mapping[key] = self._value(value_node, (*path, key), within)
        return {**merged, **mapping} if merged else mapping


def read(data: bytes) -> Iterator[Document]:
    """Parse a file's documents one after the other; empty ones are left out.

    Raises:
        DocumentError: when the faulty place is reached; the documents before it have been given.
    """
    if len(data) > SIZE_LIMIT:
        raise DocumentError(1, "is larger than 3 MiB, more than a cluster takes", "is it a job file?")
    text = _text(data)
    try:
        reader = _Reader(text)
        while reader.check_node():
            root = reader.get_node()
            if root is None or (isinstance(root, yaml.ScalarNode) and root.tag == _PLAIN and not root.value):
                continue
            yield Document.of(root)
    except yaml.YAMLError as error:
        raise _not_yaml(error, text) from None
    except RecursionError:
        raise DocumentError(1, "is nested too deeply") from None


def read_file(path: FilePath) -> bytes:
    """Read a job file, but no more of it than is needed to see that it is too large.

    Raises:
        OSError: it cannot be read.
    """
    with path.open("rb") as stream:
        return read_stream(stream)


def read_stream(stream: BinaryIO) -> bytes:
    """Read a job from a stream, but no more than is needed to see that it is too large."""
    return stream.read(SIZE_LIMIT + 1)


def _text(data: bytes) -> str:
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise DocumentError(1, "is UTF-16 text", "save it as UTF-8")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise DocumentError(
            line, f"byte 0x{data[error.start]:02x} is not UTF-8 text", "save it as UTF-8"
        ) from None
    if text.lstrip()[:1] in ("{", "["):
        # JSON writes characters above U+FFFF as two escapes, which YAML does not know.
        text = _SURROGATES.sub(_one_escape, text)
    return text


def _one_escape(match: re.Match[str]) -> str:
    high, low = int(match[2], 16) - 0xD800, int(match[3], 16) - 0xDC00
    return f"{match[1]}\\U{0x10000 + (high << 10) + low:08x}"


def _not_yaml(error: yaml.YAMLError, text: str) -> DocumentError:
    if not isinstance(error, yaml.MarkedYAMLError):
        return DocumentError(1, f"is not YAML: {printable(' '.join(str(error).split()), 300)}")
    mark = error.problem_mark or error.context_mark
    line = mark.line if mark else 0
    problem = f"{error.problem} {error.context or ''}".strip()
    lines = text.splitlines()
    indent = lines[line][: len(lines[line]) - len(lines[line].lstrip())] if line < len(lines) else ""
    hint = next((hint for words, hint in _HINTS.items() if words in problem), "")
    return DocumentError(
        line + 1,
        f"is not YAML: {printable(problem, 300)}",
        "indent with spaces, not tabs" if "\t" in indent else hint,
    )


def _is_merge(node: yaml.Node) -> bool:
    return node.tag in (_PLAIN, f"{_TAG}merge") and node.value == "<<"


def _merge_sources(node: yaml.Node) -> list[yaml.Node]:
    """What a `<<` names; earlier ones win over later ones."""
    return list(node.value) if isinstance(node, yaml.SequenceNode) else [node]


def _pairs(node: yaml.MappingNode) -> Iterator[tuple[yaml.Node, yaml.Node]]:
    """Own pairs first, then merged ones: the order in which they count."""
    waiting: list[yaml.Node] = [node]
    seen: set[int] = set()
    while waiting:
        mapping = waiting.pop(0)
        if id(mapping) in seen or not isinstance(mapping, yaml.MappingNode):
            continue
        seen.add(id(mapping))
        for key, value in mapping.value:
            if _is_merge(key):
                waiting += _merge_sources(value)
            else:
                yield key, value


def _key(node: yaml.Node) -> str | None:
    """A mapping's key as JSON has it: always a string."""
    if not isinstance(node, yaml.ScalarNode):
        return None
    if node.tag != _PLAIN:
        return str(node.value)
    try:
        value = resolve(node.value)
    except ValueError:
        return str(node.value)
    if value is None:
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)
