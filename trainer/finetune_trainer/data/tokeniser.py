"""The model's tokenizer: its files, its named tokens, and text that must stay text.

`tokenizers` alone does the work: importing transformers takes seconds in every process.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tokenizers import AddedToken, Encoding, Tokenizer, decoders, normalizers

from finetune_trainer.config import ExitReason, RunError

PATTERNS = (
    "config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template*",
    "*.tiktoken",
    "vocab.*",
    "merges.txt",
    "*.model",
)
"""Files of a model that a tokenizer may consist of."""

# A token that no text can spell: private noncharacters around a name.
_ANCHOR = "\ufdd1finetune anchor\ufdd2"
_NAMED = ("bos_token", "eos_token", "pad_token", "unk_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True)
class TokenizerFiles:
    """What the files say beside the vocabulary."""

    folder: Path
    named: dict[str, str] = field(default_factory=dict)
    """`bos_token` and the like, as templates refer to them."""
    chat_template: str | None = None
    tool_template: str | None = None
    """A second template that some models have for conversations with tools."""
    adds_bos: bool | None = None
    stops: tuple[int, ...] = ()
    """Token ids at which a server ends a reply, from generation_config.json."""


def _json(path: Path) -> dict[str, object]:
    if not path.is_file():
        return {}
    try:
        value = json.loads(path.read_bytes())
    except ValueError as error:
        raise RunError(
            ExitReason.MODEL_UNAVAILABLE, f"{path.name} of the model is damaged: {error}"
        ) from None
    return value if isinstance(value, dict) else {}


def read_files(folder: Path) -> TokenizerFiles:
    """Read the tokenizer's configuration and chat templates from a model's folder.

    Raises:
        RunError: ModelUnavailable, a file is damaged.
    """
    config = _json(folder / "tokenizer_config.json")
    tokens = {**_json(folder / "special_tokens_map.json"), **config}
    named = {}
    for name in _NAMED:
        value = tokens.get(name)
        content = value.get("content") if isinstance(value, dict) else value
        if isinstance(content, str):
            named[name] = content
    template = config.get("chat_template") or _json(folder / "chat_template.json").get("chat_template")
    file = folder / "chat_template.jinja"
    if file.is_file():
        template = file.read_text(encoding="utf-8")
    tool_template = None
    if isinstance(template, list):
        by_name = {item.get("name"): item.get("template") for item in template if isinstance(item, dict)}
        template, tool_template = by_name.get("default"), by_name.get("tool_use")
    adds_bos = config.get("add_bos_token")
    stops = _json(folder / "generation_config.json").get("eos_token_id")
    return TokenizerFiles(
        folder,
        named,
        template if isinstance(template, str) else None,
        tool_template if isinstance(tool_template, str) else None,
        adds_bos if isinstance(adds_bos, bool) else None,
        tuple(stops) if isinstance(stops, list) else (stops,) if isinstance(stops, int) else (),
    )


class Tokeniser:
    """Text to token ids, exactly as the model's own tokenizer gives them.

    Args:
        files: the model's tokenizer files; `tokenizer.json` is made from the others where it is absent.

    Raises:
        RunError: ModelUnavailable, there is no tokenizer or it cannot be read.
    """

    def __init__(self, files: TokenizerFiles) -> None:
        self.files = files
        self._whole = _load(files.folder)
        added = self._whole.get_added_tokens_decoder()
        self.specials = {token.content: place for place, token in added.items() if token.special}
        """Control tokens by their text; text of the data that spells one stays text."""
        self.special_ids = frozenset(self.specials.values())
        self._strip = {t.content: (t.lstrip, t.rstrip) for t in added.values() if t.special}
        longest_first = sorted(self.specials, key=len, reverse=True)
        self.special = re.compile("|".join(map(re.escape, longest_first)) or "(?!)")
        # Almost no text has even the first two characters of a control token: a quick no.
        starts = sorted({re.escape(text[:2]) for text in longest_first})
        self._maybe = re.compile("|".join(starts) or "(?!)")
        self.vocabulary = self._whole.get_vocab_size(with_added_tokens=True)

    @functools.cached_property
    def _anchored(self) -> Tokenizer:
        copy = Tokenizer.from_str(self._whole.to_str())
        copy.add_tokens([AddedToken(_ANCHOR, normalized=False, special=False)])
        return copy

    @functools.cached_property
    def _glue(self) -> str:
        """What a text that goes on in mid-sentence is encoded behind.

        Older SentencePiece tokenizers put a space before every stretch of text, except behind a
        character that never merges.
        """
        probe = self._anchored.encode(_ANCHOR + "a", add_special_tokens=False)
        return _ANCHOR if probe.tokens[1:2] != ["\u2581a"] else "\n"

    def __getstate__(self) -> TokenizerFiles:
        return self.files

    def __setstate__(self, files: TokenizerFiles) -> None:
        self.__init__(files)  # type: ignore[misc]

    @functools.cached_property
    def eos(self) -> tuple[str, int] | None:
        """Text and id of the end-of-text token."""
        text = self.files.named.get("eos_token")
        token = self._whole.token_to_id(text) if text is not None else None
        return (text, token) if text is not None and token is not None else None

    @functools.cached_property
    def prefix(self) -> list[int]:
        """What the tokenizer puts before plain text: the beginning-of-text token, or nothing."""
        bos = self._whole.token_to_id(self.files.named.get("bos_token", ""))
        if self.files.adds_bos is not None:
            return [bos] if self.files.adds_bos and bos is not None else []
        ids = self._whole.encode("", add_special_tokens=True).ids
        return ids[:1] if bos is not None and ids[:1] == [bos] else []

    def token_id(self, text: str) -> int | None:
        """Id of the text as one token, control token or not."""
        return self._whole.token_to_id(text)

    def spells_special(self, text: str) -> bool:
        """Whether the text contains the spelling of a control token."""
        return self._maybe.search(text) is not None and self.special.search(text) is not None

    @functools.cached_property
    def widths(self) -> npt.NDArray[np.int64] | None:
        """UTF-8 bytes of text that each token stands for, int64 `[vocabulary]`; None where tokens do not say.

        A byte-level vocabulary writes one letter for each byte.
        """
        if not isinstance(self._whole.decoder, decoders.ByteLevel):
            return None
        vocabulary = self._whole.get_vocab(with_added_tokens=True)
        added = {token.content for token in self._whole.get_added_tokens_decoder().values()}
        widths = np.zeros(max(vocabulary.values()) + 1, dtype=np.int64)
        for text, token in vocabulary.items():
            widths[token] = len(text.encode()) if text in added else len(text)
        return widths

    def keeps(self, text: str) -> bool:
        """Whether the tokenizer is known to read the text as it stands, not normalised to another one."""
        if self._whole.normalizer is None:
            return True
        return isinstance(self._whole.normalizer, normalizers.NFC) and unicodedata.is_normalized("NFC", text)

    def encode_ids(self, texts: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """As encode_batch, without places.

        Returns:
            The ids of all texts end to end, int32 `[tokens]`, and how many are each text's, int64 `[texts]`.
        """
        return _ids(self._whole, texts)

    def encode_literal(self, texts: list[str], *, behind: bool) -> list[npt.NDArray[np.int32]]:
        """Encode many texts of the data in which control tokens are only spelled, as encode_part does one.

        Args:
            texts: the texts.
            behind: they stand behind plain text.
        """
        if not texts:
            return []
        if behind and self._glue != _ANCHOR:
            parts = (self.encode_part(text, behind=True, glued=True, literal=True) for text in texts)
            return [np.array(part, dtype=np.int32) for part in parts]
        tokenizer, lead = (self._anchored, _ANCHOR) if behind else (self._whole, "")
        tokenizer.encode_special_tokens = True
        ids, counts = _ids(tokenizer, [lead + text for text in texts])
        tokenizer.encode_special_tokens = False
        # The lead is one token of its own.
        return [part[len(lead) > 0 :] for part in np.split(ids, np.cumsum(counts)[:-1])]

    def encode_batch(self, texts: list[str]) -> list[Encoding]:
        """Encode texts that hold control tokens where they are meant; nothing is added."""
        return self._whole.encode_batch(texts, add_special_tokens=False)

    def encode_part(
        self, text: str, *, behind: bool, glued: bool = False, literal: bool = False
    ) -> list[int]:
        """Encode one part of a sequence, adding nothing.

        Args:
            text: the part.
            behind: it stands behind another part, not at the start.
            glued: what it stands behind is plain text, not a control token.
            literal: control tokens are only spelled in it and stay plain characters.
        """
        tokenizer = self._anchored if behind or literal else self._whole
        tokenizer.encode_special_tokens = literal
        lead = "" if not behind else self._glue if glued else _ANCHOR
        encoding = tokenizer.encode(lead + text, add_special_tokens=False)
        if not behind:
            return encoding.ids
        starts = (place for place, (start, _) in enumerate(encoding.offsets) if start >= len(lead))
        return encoding.ids[next(starts, len(encoding.ids)) :]

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, control tokens included."""
        return self._whole.decode(list(ids), skip_special_tokens=False)

    @functools.cached_property
    def longest(self) -> int:
        """Characters of the longest token: no text of `n` times as many has fewer than `n` tokens."""
        return max(map(len, self._whole.get_vocab(with_added_tokens=True)))

    def strips(self, special: str) -> tuple[bool, bool]:
        """Whether a control token swallows white space on its left and on its right."""
        return self._strip[special]


def _ids(tokenizer: Tokenizer, texts: list[str]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    counts = np.array([len(encoding) for encoding in encodings], dtype=np.int64)
    each = itertools.chain.from_iterable(encoding.ids for encoding in encodings)
    return np.fromiter(each, dtype=np.int32, count=int(counts.sum())), counts


def _load(folder: Path) -> Tokenizer:
    file = folder / "tokenizer.json"
    if not file.is_file():
        return _convert(folder)
    try:
        tokenizer = Tokenizer.from_file(str(file))
    except Exception as error:  # tokenizers raises plain Exception for whatever is wrong with the file
        raise RunError(
            ExitReason.MODEL_UNAVAILABLE, f"tokenizer.json of the model is damaged: {error}"
        ) from None
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def _convert(folder: Path) -> Tokenizer:
    """Let transformers make a fast tokenizer of older files."""
    import transformers

    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        return Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    except Exception as error:  # whatever the many converters raise means the same to the user
        raise RunError(
            ExitReason.MODEL_UNAVAILABLE,
            f"the model has no tokenizer.json and its tokenizer cannot be converted: {error}",
            "choose a model with a tokenizer.json",
        ) from None
