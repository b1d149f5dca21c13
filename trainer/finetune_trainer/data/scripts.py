"""Which writing systems a text uses: enough to notice that a dataset is not what it was taken for."""

from __future__ import annotations

import functools
import re

_SCRIPTS = {
    "Latin": "A-Za-z\u00c0-\u024f",
    "Chinese": "\u4e00-\u9fff\u3400-\u4dbf",
    "Japanese": "\u3040-\u30ff\uff66-\uff9f",
    "Korean": "\uac00-\ud7af\u1100-\u11ff",
    "Cyrillic": "\u0400-\u04ff",
    "Arabic": "\u0600-\u06ff",
    "Hebrew": "\u0590-\u05ff",
    "Greek": "\u0370-\u03ff",
    "Devanagari": "\u0900-\u097f",
    "Thai": "\u0e00-\u0e7f",
}
_PATTERNS = {name: re.compile(f"[{characters}]") for name, characters in _SCRIPTS.items()}


@functools.cache
def _script(character: str) -> str:
    """The script of a character, empty where it belongs to none of those above."""
    return next((name for name, pattern in _PATTERNS.items() if pattern.match(character)), "")


def scripts(text: str) -> list[str]:
    """Names of the scripts that occur in a text, in a fixed order; kana makes it Japanese, not Chinese."""
    if text.isascii():
        return ["Latin"] if _PATTERNS["Latin"].search(text) else []
    present = set(map(_script, set(text)))
    if "Japanese" in present:
        present.discard("Chinese")
    return [name for name in _SCRIPTS if name in present]
