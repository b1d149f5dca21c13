"""Which tokens are learned, told by bytes or by offsets: the same answer."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, normalizers, pre_tokenizers

from finetune_trainer.data.align import Aligned, align
from finetune_trainer.data.masks import Rendered
from finetune_trainer.data.tokeniser import Tokeniser, read_files
from tests.fixtures.smollm2 import smollm2
from tests.fixtures.tokenizers import byte_level, sentencepiece_like

TEXTS = st.text(alphabet=st.sampled_from("abc the\n 渡轮🥐e\u0301é<|im_end|>.'s 12\u2581"), max_size=40)
ROWS = st.lists(st.lists(st.tuples(TEXTS, st.booleans()), min_size=1, max_size=4), max_size=6)


def tokenisers(folder: Path) -> dict[str, Tokeniser]:
    """Kinds of tokenizers, with what each does to a text."""

    def changed(name: str, **parts: object) -> Tokeniser:
        where = byte_level(folder / name)
        tokenizer = Tokenizer.from_file(str(where / "tokenizer.json"))
        for part, value in parts.items():
            setattr(tokenizer, part, value)
        tokenizer.save(str(where / "tokenizer.json"))
        return Tokeniser(read_files(where))

    swallowing = byte_level(
        folder / "swallowing", specials=("<|im_start|>", AddedToken("<|im_end|>", lstrip=True, rstrip=True))
    )
    return {
        "byte level": changed("plain"),
        "composed": changed("nfc", normalizer=normalizers.NFC()),
        "lower case": changed("lower", normalizer=normalizers.Lowercase()),
        "prefix space": changed("space", pre_tokenizer=pre_tokenizers.ByteLevel(add_prefix_space=True)),
        "swallowing": Tokeniser(read_files(swallowing)),
        "SentencePiece": Tokeniser(read_files(sentencepiece_like(folder / "sp", template=None))),
    }


@pytest.fixture(scope="module")
def kinds(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Tokeniser]:
    return tokenisers(tmp_path_factory.mktemp("align"))


def rendered(parts: list[tuple[str, bool]]) -> Rendered:
    text, learned = "", []
    for part, wanted in parts:
        if wanted and part:
            learned.append((len(text), len(text) + len(part)))
        text += part
    return Rendered(text, learned, 0, ends=True)


def by_offsets(
    texts: list[Rendered], tokeniser: Tokeniser, monkeypatch: pytest.MonkeyPatch
) -> list[Aligned | None]:
    with monkeypatch.context() as patch:
        patch.setattr(Tokeniser, "widths", None)
        return align(texts, tokeniser)


def plain(aligned: list[Aligned | None]) -> list[tuple[list[int], list[bool]] | None]:
    return [None if one is None else (one[0].tolist(), one[1].tolist()) for one in aligned]


@pytest.mark.parametrize(
    "kind", ["byte level", "composed", "lower case", "prefix space", "swallowing", "SentencePiece"]
)
@given(rows=ROWS)
@settings(max_examples=60, deadline=None)
def test_bytes_and_offsets_agree(
    kind: str, rows: list[list[tuple[str, bool]]], kinds: dict[str, Tokeniser]
) -> None:
    texts = [rendered(parts) for parts in rows]
    with pytest.MonkeyPatch.context() as monkeypatch:
        expected = by_offsets(texts, kinds[kind], monkeypatch)
    assert plain(align(texts, kinds[kind])) == plain(expected)


@pytest.mark.slow
def test_a_real_tokenizer_is_aligned_by_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    tokeniser = Tokeniser(read_files(smollm2()))
    texts = [
        rendered(
            [("<|im_start|>user\nWhy is 渡轮 late?<|im_end|>\n", False), ("Fog 🌫, naïve.<|im_end|>", True)]
        ),
        rendered([("one wo", False), ("rd", True)]),
        rendered([("", True), ("a  b\n\n", True), ("12 34", False), ("'s", True)]),
    ]
    expected = plain(by_offsets(texts, tokeniser, monkeypatch))
    monkeypatch.setattr(Tokeniser, "encode_batch", None)
    assert plain(align(texts, tokeniser)) == expected
    assert expected[1] is None
