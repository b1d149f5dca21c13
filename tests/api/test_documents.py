"""YAML and JSON read as the API server reads them, with lines; parsers' silences made faults."""

from __future__ import annotations

import importlib.util
import json
import sys
from types import ModuleType
from typing import Any

import pytest
import yaml

from finetune_operator.api import documents
from finetune_operator.api.faults import spell
from finetune_operator.api.scalars import resolve

SCALARS: list[tuple[str, Any]] = [
    ("1e-4", 1e-4),
    ("1E5", 100000),
    ("1.0e+3", 1000),
    ("16.0", 16),
    ("-1.5", -1.5),
    (".5", 0.5),
    ("1.", 1),
    ("0", 0),
    ("-0", 0),
    ("+7", 7),
    ("010", 8),
    ("0o17", 15),
    ("08", 8),
    ("0x1F", 31),
    ("0b101", 5),
    ("1_000", 1000),
    ("1e999", "1e999"),
    ("1e", "1e"),
    ("1.2.3", "1.2.3"),
    ("12:30", "12:30"),
    ("-", "-"),
    ("+", "+"),
    (".", "."),
    ("2026-01-01", "2026-01-01"),
    ("2026-01-01T00:00:00Z", "2026-01-01T00:00:00Z"),
    ("9" * 500, "9" * 500),
    ("yes", True),
    ("Y", True),
    ("on", True),
    ("TRUE", True),
    ("no", False),
    ("n", False),
    ("Off", False),
    ("yEs", "yEs"),
    ("~", None),
    ("", None),
    ("Null", None),
    ("none", "none"),
    ("None", "None"),
    ("<<", "<<"),
    ("12345678901234567890123", 12345678901234567890123),
    ("8b1f3c0", "8b1f3c0"),
    ("infinity", "infinity"),
]


@pytest.mark.parametrize(("text", "value"), SCALARS)
def test_scalar(text: str, value: Any) -> None:
    assert resolve(text) == value
    assert type(resolve(text)) is type(value)


@pytest.mark.parametrize("text", [".inf", "-.Inf", "+.INF", ".nan", ".NaN"])
def test_not_in_json(text: str) -> None:
    with pytest.raises(ValueError, match="JSON"):
        resolve(text)


def slow_parser() -> ModuleType:
    """The module as it is where PyYAML was built without libyaml."""
    compiled = yaml.CSafeLoader
    del yaml.CSafeLoader
    try:
        spec = importlib.util.spec_from_file_location("documents_without_libyaml", documents.__file__)
        assert spec
        assert spec.loader
        module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = module  # dataclasses look their module up
        spec.loader.exec_module(module)
    finally:
        yaml.CSafeLoader = compiled  # type: ignore[misc]
    return module


@pytest.fixture(params=["libyaml", "python"])
def module(request: pytest.FixtureRequest) -> ModuleType:
    return documents if request.param == "libyaml" else slow_parser()


def values(module: ModuleType, text: str | bytes) -> list[Any]:
    return [document.value for document in module.read(text.encode() if isinstance(text, str) else text)]


VALUES: list[tuple[str | bytes, list[Any]]] = [
    ("", []),
    ("# a comment\n---\n---\n", []),
    ("---\na: 1\n---\nb: 2\n...\n", [{"a": 1}, {"b": 2}]),
    (
        "a: 'yes'\nb: \"1\"\nc: |\n  x\nd: !!str 5\ne: !!int '5'\nf: !own x",
        [{"a": "yes", "b": "1", "c": "x\n", "d": "5", "e": 5, "f": "x"}],
    ),
    ("yes: 1\n2: b\n1e-4: c\nnull: d", [{"true": 1, "2": "b", "0.0001": "c"}]),
    (
        "a: &x {b: 1, c: 2}\nd:\n  <<: *x\n  c: 3\ne: *x",
        [{"a": {"b": 1, "c": 2}, "d": {"b": 1, "c": 3}, "e": {"b": 1, "c": 2}}],
    ),
    (
        "a: &x {k: 1}\nb: &y {k: 2, l: 2}\nc: {<<: [*x, *y]}",
        [{"a": {"k": 1}, "b": {"k": 2, "l": 2}, "c": {"k": 1, "l": 2}}],
    ),
    (b"\xef\xbb\xbfa: \xe5\xad\x97\r\nb: 1\r\n", [{"a": "字", "b": 1}]),
    (
        '{\n "a": "\\ud83d\\ude00 \\/ \\\\ud83d",\n "b": [1.0, -2e3, true, null]\n}',
        [{"a": "😀 / \\ud83d", "b": [1, -2000, True, None]}],
    ),
]


@pytest.mark.parametrize(("text", "expected"), VALUES, ids=lambda part: str(part)[:40])
def test_values(module: ModuleType, text: str | bytes, expected: list[Any]) -> None:
    assert values(module, text) == expected


def test_json_written_by_anyone_is_read() -> None:
    value = {
        "emoji": "🔥",
        "nested": [{"x": [1, "2", None, False]}],
        "empty": {},
        "line": "a\nb\tc",
        "n": -1.5e-7,
    }
    for indent in (None, 2, "\t"):
        for ascii_only in (True, False):
            assert values(documents, json.dumps(value, indent=indent, ensure_ascii=ascii_only)) == [value]


PROBLEMS: list[tuple[str, str, int, str]] = [
    ("a: 1\nb:\n  c: 1\n  c: 2\n", "b.c", 4, "given twice, in lines 3 and 4"),
    ("a: 1\n'a': 2", "a", 2, "given twice"),
    ("1: a\n'1': b", '["1"]', 2, "given twice"),
    ("a:\n  - .inf", "a[0]", 2, "JSON"),
    ("a: 1\n? [x]\n: 2", "", 2, "no string"),
    ("a: &x\n  b: *x", "a.b", 2, "alias of something that contains it"),
    ("a: &x\n  <<: *x\n  b: 1", "a", 1, "alias of something that contains it"),
    ("a:\n  <<: 5", "a", 2, "merges something that is no mapping"),
]


@pytest.mark.parametrize(("text", "path", "line", "says"), PROBLEMS)
def test_problems(module: ModuleType, text: str, path: str, line: int, says: str) -> None:
    [document] = module.read(text.encode())
    problem = document.problems[0]
    assert spell(problem.path) == path
    assert (problem.line or document.line_of(problem.path)) == line
    assert says in problem.message


BROKEN: list[tuple[bytes, int, str]] = [
    (b"a:\n\tb: 1", 2, "indent with spaces"),
    (b"a: 1\nb: c: d", 2, "in quotes"),
    (b"a: [1, 2\nb: 3", 2, "is not YAML"),
    (b'a: "x', 1, "is not YAML"),
    (b"a: *nobody", 1, "is not YAML"),
    (b"a: 1\n\xff\xfe", 2, "not UTF-8"),
    ("a: 1".encode("utf-16"), 1, "UTF-16"),
    (b"a: \x00", 1, "is not YAML"),
    (b"x" * (3 * 2**20 + 1), 1, "3 MiB"),
]


@pytest.mark.parametrize(("data", "line", "says"), BROKEN, ids=lambda part: str(part)[:30])
def test_broken(module: ModuleType, data: bytes, line: int, says: str) -> None:
    with pytest.raises(module.DocumentError) as raised:
        list(module.read(data))
    assert says in f"{raised.value.message}; {raised.value.suggestion}"
    assert abs(raised.value.line - line) <= 1, "the two parsers differ by a line at the end of the text"


def test_documents_before_a_broken_one_are_given() -> None:
    reader = documents.read(b"a: 1\n---\nb: [\n")
    assert next(reader).value == {"a": 1}
    with pytest.raises(documents.DocumentError):
        next(reader)


@pytest.mark.parametrize("opening", [b"[", b"{a: "])
def test_deep_nesting_is_refused(module: ModuleType, opening: bytes) -> None:
    with pytest.raises(module.DocumentError):
        list(module.read(opening * 1200))


def test_nested_aliases_do_not_explode() -> None:
    for item in ("[{}]", "{{<<: [{}]}}"):
        levels = ["a0: &a0 {k: 1}"]
        levels += [f"a{n}: &a{n} {item.format(', '.join([f'*a{n - 1}'] * 9))}" for n in range(1, 20)]
        [document] = documents.read("\n".join(levels).encode())
        assert document.line_of(("a19", "nowhere")) == 20


LINES: list[tuple[tuple[str | int, ...], int, str]] = [
    (("spec",), 2, ""),
    (("spec", "a"), 3, "1e-4"),
    (("spec", "list", 1, "x"), 6, "two"),
    (("spec", "list", 7), 4, ""),
    (("spec", "missing", "deeper"), 2, ""),
    (("spec", "merged", "x"), 5, "one"),
    (("nowhere",), 1, ""),
    ((), 1, ""),
]


@pytest.mark.parametrize(("path", "line", "text"), LINES, ids=str)
def test_lines(path: tuple[str | int, ...], line: int, text: str) -> None:
    source = "name: j\nspec:\n  a: 1e-4\n  list:\n  - &m {x: one}\n  - x: 'two'\n  merged: {<<: *m}\n"
    [document] = documents.read(source.encode())
    assert document.line_of(path) == line
    assert document.text_of(path) == text
