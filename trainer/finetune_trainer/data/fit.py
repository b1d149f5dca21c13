"""Rows longer than `maxLength`: cut so that there is still something to learn, or left out.

The prompt is kept whole and the reply cut at its end as long as half of the length, or the whole
reply, is left for it. Otherwise the prompt is shortened: oldest exchanges first, then the middle of
its longest text, so that the template's own words and the start of the reply always remain.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from finetune_trainer.data.conversation import Conversation, Message, Passage
from finetune_trainer.data.encode import Example
from finetune_trainer.data.tokeniser import Tokeniser

GAP = " … "
"""Stands where the middle of a text was taken out."""


def bound(row: Conversation | Passage, characters: int) -> Conversation | Passage:
    """Cut texts that exceed the length alone, so that a row of megabytes costs no more than a long one.

    Args:
        row: the row.
        characters: so many that a text of them has more tokens than the length anyway.
    """
    if isinstance(row, Passage):
        if max(len(row.prompt), len(row.completion)) <= characters:
            return row
        return Passage(row.prompt[-characters:], row.completion[:characters])
    if all(len(message["content"]) <= characters for message in row.messages):
        return row
    messages: list[Message] = []
    for message in row.messages:
        text = message["content"]
        if len(text) > characters:
            text = text[:characters] if message["role"] == "assistant" else _middle(text, characters)
        messages.append({**message, "content": text})
    return Conversation(messages, row.tools, row.muted)


def _middle(text: str, characters: int) -> str:
    head = (characters + 1) // 2
    tail = characters - head
    return text[:head] + GAP + (text[-tail:] if tail else "")


def prompt_limit(prompt: int, reply: int, limit: int) -> int:
    """Tokens that the prompt may keep of `limit`, for a first reply of `reply` tokens."""
    return min(prompt, limit - min(reply, limit - limit // 2))


def shape(example: Example) -> tuple[int, int]:
    """Tokens before the first learned one, and of the first learned stretch."""
    edges = np.flatnonzero(np.diff(example.learned.astype(np.int8), prepend=0, append=0))
    return int(edges[0]), int(edges[1] - edges[0])


def cut(example: Example, limit: int, tokeniser: Tokeniser) -> Example | None:
    """Keep the first `limit` tokens, without half a character or unlearned tokens at the end.

    Returns:
        None where nothing learned is left.
    """
    ids, learned = example.ids[:limit], example.learned[:limit]
    # A character of several byte tokens has at most four.
    for _ in range(3):
        if not len(ids) or not tokeniser.decode(ids[-4:].tolist()).endswith("\ufffd"):
            break
        ids, learned = ids[:-1], learned[:-1]
    places = np.flatnonzero(learned)
    if not len(places):
        return None
    end = int(places[-1]) + 1
    return Example(ids[:end], learned[:end].copy())


def shorten_passage(example: Example, limit: int, prefix: int) -> Example:
    """Drop the start of a passage's prompt: what stands just before the completion matters most.

    Args:
        example: the passage as it was encoded.
        limit: tokens.
        prefix: tokens at its start that are none of the prompt.
    """
    prompt, reply = shape(example)
    start = prefix + max(0, prompt - max(prefix, prompt_limit(prompt, reply, limit)))
    return Example(
        np.concatenate((example.ids[:prefix], example.ids[start:])),
        np.concatenate((example.learned[:prefix], example.learned[start:])),
    )


def shorten_conversation(
    conversation: Conversation,
    place: int,
    example: Example,
    limit: int,
    build: Callable[[Conversation], Example],
) -> Example | None:
    """Shorten what stands before a reply until the reply has its share.

    Args:
        conversation: the whole.
        place: of the first reply to learn; what follows it is left out.
        example: the conversation as it was encoded.
        limit: tokens.
        build: encodes a conversation that ends with the reply.

    Returns:
        None where even empty questions leave too little room.
    """
    messages = list(conversation.messages[: place + 1])
    prompt, reply = shape(example)
    budget = prompt_limit(prompt, reply, limit)
    while prompt > budget and (messages_left := _without_oldest(messages)) is not None:
        messages = messages_left
        example = build(Conversation(messages, conversation.tools))
        prompt = shape(example)[0]
    # Characters per token are an estimate; what it leaves over is small, and taken off generously.
    for generosity in (1.0, *[1.5] * 10):
        if prompt <= budget:
            return example
        longest = max(
            range(len(messages) - 1), key=lambda index: len(messages[index]["content"]), default=None
        )
        text = messages[longest]["content"] if longest is not None else ""
        if longest is None or len(text) <= len(GAP):
            return None
        total = sum(len(message["content"]) for message in messages[:-1])
        surplus = generosity * (prompt - budget) * total / prompt + len(GAP)
        kept = max(0, int(len(text) - surplus))
        messages[longest] = {**messages[longest], "content": _middle(text, kept) if kept else ""}
        example = build(Conversation(list(messages), conversation.tools))
        prompt = shape(example)[0]
    return None


def _without_oldest(messages: list[Message]) -> list[Message] | None:
    """The messages without the oldest exchange; None where only the last question is left."""
    start = 1 if messages[0]["role"] == "system" else 0
    later = [place for place, message in enumerate(messages) if message["role"] == "user" and place > start]
    if not later:
        return None
    return messages[:start] + messages[later[0] :]
