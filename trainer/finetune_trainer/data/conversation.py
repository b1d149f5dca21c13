"""What every format is turned into: a conversation in the words of chat templates, or a passage of text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NotRequired, TypedDict

Role = Literal["system", "user", "assistant", "tool"]


class Function(TypedDict):
    """A call by name; `arguments` is the parsed object, as chat templates expect it."""

    name: str
    arguments: object


class ToolCall(TypedDict):
    """A call that the model makes."""

    type: Literal["function"]
    function: Function
    id: NotRequired[str]


class Message(TypedDict):
    """One turn, with the keys that chat templates read."""

    role: Role
    content: str
    reasoning_content: NotRequired[str]
    tool_calls: NotRequired[list[ToolCall]]
    name: NotRequired[str]
    tool_call_id: NotRequired[str]


@dataclass(frozen=True, slots=True)
class Conversation:
    """Messages in order.

    `tools` are the functions offered to the model (JSON schema objects); `muted` holds the places of
    replies that the data marks as not to be learned.
    """

    messages: list[Message]
    tools: list[dict[str, object]] | None = None
    muted: frozenset[int] = frozenset()


@dataclass(frozen=True, slots=True)
class Passage:
    """Text without turns: `completion` is learned, `prompt` (which may be empty) is not."""

    prompt: str
    completion: str


Row = Conversation | Passage
