"""What bytes are read as, whatever the name says."""

from __future__ import annotations

import gzip
import io
import json
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune_trainer.data import json_rows
from finetune_trainer.data.faults import FileFault, RowFault
from finetune_trainer.data.readers import blocks, select
from finetune_trainer.data.records import parse

ROW = b'{"text": "a"}'


def read(data: bytes, name: str = "rows.jsonl") -> list[tuple[int, Any]]:
    """All rows of a file that is good."""
    found = [row for block in blocks(io.BytesIO(data), name) for row in block.records()]
    return [(number, raw if isinstance(raw, dict) else parse(raw)) for number, raw in found]


@pytest.mark.parametrize(
    ("data", "name", "numbers"),
    [
        (ROW + b"\n" + ROW, "a.jsonl", [1, 2]),
        (ROW, "a.jsonl", [1]),
        (b"\n \n" + ROW + b"\n\t\n" + ROW + b"\n", "a.json", [3, 5]),
        (b"[" + ROW + b"," + ROW + b"]", "a.jsonl", [1, 2]),
        (b" [\n" + ROW + b"\n,\n" + ROW + b"\n]\n ", "a.json", [1, 2]),
        (b"[" + ROW + b",]", "a.json", [1]),
        (b'{\n "text": "a"\n}\n{\n "text": "b"\n}\n', "a.json", [1, 2]),
        (b'{\n "text": "a"\n}', "a.json", [1]),
        (b"\xef\xbb\xbf" + ROW, "a.json", [1]),
        (ROW.decode().encode("utf-16"), "a.json", [1]),
        (gzip.compress(ROW) + gzip.compress(b"\n" + ROW), "a.txt", [1, 2]),
        (zstandard.compress(ROW + b"\n") + zstandard.compress(ROW), "a.zst", [1, 2]),
        (gzip.compress(b"[" + ROW + b"]"), "a.json.gz", [1]),
        (b"text\na\nb\n", "a.csv", [1, 2]),
        (b"text;n\na;1\nb;2\n", "a.csv", [1, 2]),
        (b"text\tn\na\t1\n\nb\t2", "a.tsv", [1, 2]),
        (gzip.compress(b"text\na\n"), "a.csv.gz", [1]),
    ],
)
def test_good_files(data: bytes, name: str, numbers: list[int]) -> None:
    rows = read(data, name)
    assert [number for number, _ in rows] == numbers
    assert all("text" in record for _, record in rows)


@pytest.mark.parametrize(
    ("data", "name", "row", "words"),
    [
        (b"", "a.jsonl", None, "empty"),
        (b" \n\n", "a.jsonl", None, "no rows"),
        (b"[ ]", "a.json", None, "no rows"),
        (gzip.compress(b""), "a.json.gz", None, "no rows"),
        (b"text\n", "a.csv", None, "no rows"),
        (b"<html>", "a.json", None, "web page"),
        (b"<?xml version='1.0'?><Error/>", "a.json", None, "XML"),
        (b"PK\x03\x04rest", "a.jsonl", None, "ZIP"),
        (b"BZh91AY", "a.jsonl.bz2", None, "bzip2"),
        (b"PAR1 and no more", "a.parquet", None, "Parquet"),
        (b"hello", "a.txt", None, "neither JSON"),
        (gzip.compress(ROW * 100)[:40], "a.gz", None, "cut short"),
        (zstandard.compress((ROW + b"\n") * 100)[:-1], "a.zst", None, "cut short"),
        (zstandard.compress((ROW + b"\n") * 50_000)[:8], "a.zst", None, "cut short"),
        (zstandard.compress(ROW) + b"(\xb5/\xfd", "a.zst", None, "cut short"),
        (zstandard.compress(ROW) + b"more", "a.zst", None, "damaged"),
        (b"[" + ROW + b" " + ROW + b"]", "a.json", 2, "comma"),
        (b"[" + ROW + b",," + ROW + b"]", "a.json", 2, "unexpected"),
        (b"[" + ROW + b"," + ROW, "a.json", 2, "not closed"),
        (b"[" + ROW + b',{"text": "b', "a.json", 2, "cut short"),
        (b"[" + ROW + b"]" + ROW, "a.json", 2, "behind the end"),
        (b'[{"text": "a"}, "b"]', "a.json", 2, "is text"),
        (b"text,n\na,1\nb\n", "a.csv", 2, "1 fields under a header of 2"),
        (b"text,n\na,1\n\xe9,2\n", "a.csv", 1, "UTF-8"),
        (b'{"version": 2,\n "data": [\n' + ROW + b"," * 70_000, "a.json", None, "under the key 'data'"),
    ],
)
def test_bad_files(data: bytes, name: str, row: int | None, words: str) -> None:
    with pytest.raises(FileFault) as caught:
        read(data, name)
    assert (caught.value.row, words in caught.value.reason) == (row, True), caught.value.reason


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b'{"a": 1', "cut short"),
        (b'{"a": "b', "unterminated"),
        (b'{"a": "b\x00"}', "NUL"),
        (b'{"a": "b\x01"}', "control character"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": 1} x', "more text"),
        (b'{"a": "\xe9"}', "UTF-8"),
        (b'{"a": 1, "a": 1}', "more than once"),
        (b'{"b": {"a": 1, "a": 2}}', "more than once"),
        (b"[1]", "a list"),
        (b"7", "a number"),
        (b"{'a': 1}", "double quotes"),
        (b'{"a": ' + b"[" * 100_000, "deep"),
        (b'{"a": ' + b"9" * 5000 + b"}", "digits"),
    ],
)
def test_bad_rows(raw: bytes, words: str) -> None:
    with pytest.raises(RowFault) as caught:
        parse(raw)
    assert words in caught.value.reason


class Drip(io.BytesIO):
    """A stream that gives a few bytes at a time, as networks do."""

    def read(self, size: int | None = -1, /) -> bytes:
        return super().read(min(size, 7) if size is not None and size >= 0 else 7)


RECORDS = st.dictionaries(st.text(max_size=9), st.text(max_size=20) | st.lists(st.integers(), max_size=3))


@settings(max_examples=50, deadline=None)
@given(st.lists(RECORDS, min_size=1, max_size=5), st.sampled_from([None, 1]))
def test_an_array_is_cut_where_its_records_end(records: list[dict[str, object]], indent: int | None) -> None:
    whole = json.dumps(records, indent=indent).encode()
    cut = [raw for _, block in json_rows.objects(Drip(whole), array=True) for raw in block]
    assert [json.loads(raw) for raw in cut] == records


def test_lines_are_counted_across_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows, "READ", 16)
    data = b"".join(b'{"text": "%d"}\n' % number for number in range(100))
    rows = read(data)
    assert [(number, record["text"]) for number, record in rows] == [(n + 1, str(n)) for n in range(100)]


@pytest.mark.parametrize(
    ("paths", "files", "held_out"),
    [
        (["odd.name"], ["odd.name"], []),
        (
            ["b.jsonl", "a.json.gz", "README.md", ".gitattributes", "dataset_info.json"],
            ["a.json.gz", "b.jsonl"],
            [],
        ),
        (
            ["data/train-0.parquet", "data/test-0.parquet", "data/validation-0.parquet"],
            ["data/train-0.parquet"],
            ["data/test-0.parquet", "data/validation-0.parquet"],
        ),
        (["test.jsonl", "more.jsonl"], ["more.jsonl", "test.jsonl"], []),
        (["notes.txt", "image.png"], [], []),
    ],
)
def test_files_of_a_folder(paths: list[str], files: list[str], held_out: list[str]) -> None:
    selection = select(paths)
    assert (selection.files, selection.held_out) == (files, held_out)


def test_parquet_of_nested_rows(tmp_path: Path) -> None:
    import pyarrow  # type: ignore[import-untyped]
    import pyarrow.parquet  # type: ignore[import-untyped]

    rows = [{"messages": [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]}] * 3
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "a.parquet")
    assert [record for _, record in read((tmp_path / "a.parquet").read_bytes(), "a.parquet")] == rows
