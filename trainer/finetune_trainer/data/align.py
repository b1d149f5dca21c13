"""Which tokens of an encoded text are learned, told by where they lie in the text.

The tokens of a byte-level vocabulary say how many bytes each stands for, so one running sum over a whole
batch places them all; the tokenizer need not keep track of characters, which is slower. Texts that the sum
does not fit (something was swallowed or rewritten) are placed by the tokenizer's own offsets.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
from tokenizers import Encoding

from finetune_trainer.data.masks import Rendered
from finetune_trainer.data.tokeniser import Tokeniser

Ids = npt.NDArray[np.int32]
Flags = npt.NDArray[np.bool_]
Aligned = tuple[Ids, Flags]


def align(texts: Sequence[Rendered], tokeniser: Tokeniser) -> list[Aligned | None]:
    """Encode texts and flag the tokens of their learned ranges.

    Returns:
        For each text its ids, int32 `[tokens]`, and flags, bool `[tokens]`; None where a token lies across
        the start of a range.
    """
    if tokeniser.widths is None:
        encodings = tokeniser.encode_batch([rendered.text for rendered in texts])
        return [_by_offsets(*pair) for pair in zip(texts, encodings, strict=True)]
    return _by_widths(texts, tokeniser, tokeniser.widths)


def _by_widths(
    texts: Sequence[Rendered], tokeniser: Tokeniser, widths: npt.NDArray[np.int64]
) -> list[Aligned | None]:
    ids, counts = tokeniser.encode_ids([rendered.text for rendered in texts])
    # Byte at which each token starts in the texts laid end to end, and the end of the last one.
    starts = np.concatenate(([0], np.cumsum(widths[ids])))
    edges = np.concatenate(([0], np.cumsum(counts)))
    bytes_before = starts[edges]
    learned = np.zeros(len(ids), dtype=np.bool_)
    sizes = np.diff(bytes_before)
    begins: list[int] = []
    ends: list[int] = []
    owners: list[int] = []
    misfits: set[int] = set()
    for place, rendered in enumerate(texts):
        text = rendered.text
        ascii_only = text.isascii()
        size = len(text) if ascii_only else len(text.encode())
        if size != sizes[place] or not tokeniser.keeps(text):
            misfits.add(place)
            continue
        base = int(bytes_before[place])
        for start, end in rendered.learned:
            begins.append(base + (start if ascii_only else len(text[:start].encode())))
            ends.append(base + (end if ascii_only else len(text[:end].encode())))
            owners.append(place)
    first = np.searchsorted(starts, begins)
    across = set(np.array(owners, dtype=np.int64)[starts[first] != begins].tolist())
    for begin, end in zip(first.tolist(), np.searchsorted(starts, ends).tolist(), strict=True):
        learned[begin:end] = True
    bounds = edges.tolist()
    found: list[Aligned | None] = []
    for place, rendered in enumerate(texts):
        if place in across:
            found.append(None)
        elif place in misfits:
            found.append(_by_offsets(rendered, tokeniser.encode_batch([rendered.text])[0]))
        else:
            stretch = slice(bounds[place], bounds[place + 1])
            found.append((ids[stretch], learned[stretch]))
    return found


def _by_offsets(rendered: Rendered, encoding: Encoding) -> Aligned | None:
    count = len(encoding)
    learned = np.zeros(count, dtype=np.bool_)
    for start, end in rendered.learned:
        first, last = encoding.char_to_token(start), encoding.char_to_token(end - 1)
        if first is None or last is None:
            return None
        if cast("tuple[int, int]", encoding.token_to_chars(first))[0] != start:
            return None
        if first and cast("tuple[int, int]", encoding.token_to_chars(first - 1))[1] > start:
            return None
        # A character of several byte tokens: char_to_token gives its first one.
        while last + 1 < count and cast("tuple[int, int]", encoding.token_to_chars(last + 1))[0] < end:
            last += 1
        learned[first : last + 1] = True
    return np.array(encoding.ids, dtype=np.int32), learned
