"""Text of the data that spells a control token: kept apart from the tokens that the template means.

A spelled token gets a guard character behind its first letter before the template sees it, so that
in the rendered text only the template's own tokens are whole. The guard goes before tokenising.
"""

from __future__ import annotations

from typing import Any, cast

from finetune_trainer.data.conversation import Conversation, Message
from finetune_trainer.data.tokeniser import Tokeniser

_GUARDS = [chr(code) for code in range(0xFDD5, 0xFDF0)]
# Replies may hold their reasoning between these; they are the model's own words there.
_REASONING = frozenset(("<think>", "</think>", "[THINK]", "[/THINK]"))


def spelled(conversation: Conversation, tokeniser: Tokeniser) -> bool:
    """Whether any text of the conversation spells a control token."""
    for message in conversation.messages:
        if tokeniser.spells_special(message["content"]):
            return True
        if len(message) > 2 and any(tokeniser.spells_special(text) for text in _texts(message)):
            return True
    return conversation.tools is not None and any(map(tokeniser.spells_special, _texts(conversation.tools)))


def texts(conversation: Conversation) -> list[str]:
    """All text of a conversation that comes from the data."""
    return _texts(conversation.messages) + _texts(conversation.tools)


def guard(conversation: Conversation, tokeniser: Tokeniser) -> tuple[Conversation, str]:
    """Return the conversation with guards in spelled control tokens, and the guard character.

    The character is one of Unicode's noncharacters that the conversation does not contain itself.
    """
    present = set("".join(texts(conversation)))
    mark = next(character for character in _GUARDS if character not in present)

    def guarded(text: str, keep: frozenset[str]) -> str:
        return tokeniser.special.sub(
            lambda found: found[0] if found[0] in keep else found[0][:1] + mark + found[0][1:], text
        )

    def walk(value: Any, keep: frozenset[str]) -> Any:
        if isinstance(value, str):
            return guarded(value, keep)
        if isinstance(value, list):
            return [walk(item, keep) for item in value]
        if isinstance(value, dict):
            return {walk(key, keep): walk(item, keep) for key, item in value.items()}
        return value

    messages: list[Message] = []
    for message in conversation.messages:
        keep = _REASONING if message["role"] == "assistant" else frozenset[str]()
        messages.append(cast("Message", {**walk(message, keep), "role": message["role"]}))
    return Conversation(messages, walk(conversation.tools, frozenset()), conversation.muted), mark


def _texts(value: object) -> list[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, dict):
        return [text for pair in value.items() for part in pair for text in _texts(part)]
    if isinstance(value, list):
        return [text for item in value for text in _texts(item)]
    return []
