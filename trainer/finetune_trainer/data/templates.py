"""Templates by name: the model's own, or one made of a family's style as an ordinary chat template.

A named template is turned into Jinja text, so that training renders it as a server will, and the
published tokenizer carries the very template that was trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import jinja2

from finetune_trainer.config import ExitReason, RunError
from finetune_trainer.data.chat_template import ChatTemplate
from finetune_trainer.data.tokeniser import Tokeniser
from finetune_trainer.data.turn_styles import END, STYLES, Turns

NAMES = ("Model", *STYLES)
"""All values of `dataset.template`."""

TOOLS_INTRO = (
    "You can call functions. To call one, answer with a JSON object with its name and arguments between "
    "<tool_call> and </tool_call>. These are the functions:\n"
)
"""Before the functions, where a template has no words of its own for them."""


@dataclass(frozen=True, slots=True)
class Template:
    """The template of a run."""

    name: str
    chat: ChatTemplate | None
    """None: the model has no template and rows without turns need none."""
    with_tools: ChatTemplate | None
    """For conversations with tools, where the model has a second template for them."""
    before_input: str
    unknown_markers: tuple[str, ...]
    """Control tokens of the style that this tokenizer spells in several plain tokens."""

    def for_tools(self, tools: bool) -> ChatTemplate:
        """The template for a conversation.

        Raises:
            RunError: InvalidConfiguration, the model has none.
        """
        chosen = self.with_tools if tools and self.with_tools is not None else self.chat
        if chosen is None:
            raise RunError(
                ExitReason.INVALID_CONFIGURATION,
                "the model has no chat template of its own",
                f"choose one in dataset.template: {', '.join(STYLES)}",
            )
        return chosen


def resolve(name: str, tokeniser: Tokeniser, now: datetime) -> Template:
    """Find the template `name` for a tokenizer.

    Raises:
        RunError: InvalidConfiguration, the name is unknown or the model's own template is broken.
    """
    named = tokeniser.files.named
    if name == "Model":
        own, tools = tokeniser.files.chat_template, tokeniser.files.tool_template
        return Template(
            name,
            ChatTemplate(own, named, now) if own is not None else None,
            ChatTemplate(tools, named, now) if tools is not None else None,
            "\n",
            (),
        )
    if name not in STYLES:
        raise RunError(
            ExitReason.INVALID_CONFIGURATION,
            f"the template {name!r} is unknown",
            f"templates are {', '.join(NAMES)}",
        )
    style = STYLES[name]
    unknown = tuple(marker for marker in style.markers if tokeniser.token_id(marker) is None)
    end = tokeniser.eos[0] if tokeniser.eos is not None else ""
    source = jinja(style, bos=bool(tokeniser.prefix), end=end, stop_known=style.stop not in unknown)
    return Template(name, ChatTemplate(source, named, now, trusted=True), None, style.before_input, unknown)


def jinja(style: Turns, *, bos: bool, end: str, stop_known: bool) -> str:
    """Write a style as a chat template: its words put into the turns that all styles share.

    Args:
        style: the family's turns.
        bos: start with the beginning-of-text token.
        end: the tokenizer's end-of-text token.
        stop_known: the style's own end-of-turn is a token; otherwise `end` takes its place.
    """
    tool = style.tool or (style.user[0] + "<tool_response>\n", "\n</tool_response>" + style.user[1])
    # A server's prompt ends before the space: tokenizers put it into the reply's first word.
    prompt = style.assistant[0].rstrip(" ") + ("<think>\n" if style.thinking == "prompted" else "")
    words = {
        "default_system": style.default_system,
        "tools_intro": TOOLS_INTRO,
        "system_open": style.system[0],
        "system_close": style.system[1],
        "user_open": style.user[0],
        "user_close": style.user[1],
        "reply_open": style.assistant[0],
        "reply_close": style.assistant[1],
        "tool_open": tool[0],
        "tool_close": tool[1],
        "prompt": prompt,
    }
    if style.stop and not stop_known:
        words = {name: text.replace(style.stop, END) for name, text in words.items()}
    filled = {name: _quoted(text.replace(END, end)) for name, text in words.items()}
    return _TURNS.render(
        filled,
        start=f"{'bos_token + ' if bos else ''}{_quoted(style.start)}",
        folded=style.folded,
        thinking=style.thinking != "none",
        trim=" | trim" if style.trims else "",
    )


_TURNS = jinja2.Environment(  # noqa: S701 - chat templates are no HTML
    block_start_string="[%",
    block_end_string="%]",
    variable_start_string="[[",
    variable_end_string="]]",
    comment_start_string="[#",
    comment_end_string="#]",
    trim_blocks=True,
    lstrip_blocks=True,
).from_string(Path(__file__).with_name("turns.jinja").read_text(encoding="utf-8"))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace("'", "\\'").replace("\n", "\\n")
    return f"'{escaped}'"
