"""What is learned under templates that make it hard."""

from __future__ import annotations

import functools
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from finetune_trainer.data.chat_template import ChatTemplate
from finetune_trainer.data.conversation import Conversation, Message, Role
from finetune_trainer.data.faults import RowFault
from finetune_trainer.data.masks import Loss, Rendered, Renderer
from finetune_trainer.data.templates import jinja
from finetune_trainer.data.turn_styles import STYLES
from tests.fixtures.tokenizers import CHATML

NOW = datetime(2025, 1, 1, tzinfo=UTC)
SPECIALS = ("<|im_start|>", "<|im_end|>", "</s>", "<s>")

# Drops the reasoning of all replies but those behind the last question, and opens it in the prompt.
THINKING = """{%- set last = namespace(user=-1) -%}
{%- for message in messages if message.role == 'user' -%}{%- set last.user = last.user + 1 -%}{%- endfor -%}
{%- set seen = namespace(user=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set seen.user = seen.user + 1 -%}<s>U {{ message.content }}
{%- else -%}<s>A {% set parts = message.content.split('</think>') -%}
{%- if seen.user == last.user and parts | length > 1 -%}{{ message.content }}
{%- else -%}{{ parts[-1].lstrip() }}{%- endif -%}</s>{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<s>A {% endif -%}"""
NO_END = "{% for m in messages %}\n{{ m.role }}: {{ m.content }}{% endfor %}"
NO_END += "{% if add_generation_prompt %}\nassistant: {% endif %}"
INST = "{% for m in messages %}{% if m.role == 'user' %}<s>[INST] {{ m.content }} [/INST]"
INST += "{% else %} {{ m.content | trim }} </s>{% endif %}{% endfor %}"
PROMPTED = CHATML.replace("'<|im_start|>assistant\n' }}", "'<|im_start|>assistant\n<think>\n' }}")
STRICT = "{% if messages[0].role == 'system' %}{{ raise_exception('no system please') }}{% endif %}" + CHATML


def says(*contents: str, first: str = "user") -> list[Message]:
    """Turns that alternate."""
    roles: tuple[Role, Role] = ("user", "assistant") if first == "user" else ("assistant", "user")
    return [{"role": roles[place % 2], "content": content} for place, content in enumerate(contents)]


def render(
    messages: list[Message], template: str = CHATML, loss: Loss = "Response", **more: object
) -> list[Rendered]:
    conversation = Conversation(messages, **more)  # type: ignore[arg-type]
    return Renderer(ChatTemplate(template, {}, NOW), SPECIALS, loss).render(conversation)


def learned(rendered: list[Rendered]) -> list[list[str]]:
    return [[one.text[start:end] for start, end in one.learned] for one in rendered]


@pytest.mark.parametrize(
    ("messages", "template", "loss", "expected"),
    [
        (says("q", "a"), CHATML, "Response", [["a<|im_end|>"]]),
        (says("q", "a", "r", "b"), CHATML, "Response", [["a<|im_end|>", "b<|im_end|>"]]),
        (says("q", "a", "r", "b"), CHATML, "LastTurn", [["b<|im_end|>"]]),
        (says("q", "a", "r"), CHATML, "Response", [["a<|im_end|>"]]),
        (
            says("hello", "q", "a", first="assistant"),
            CHATML,
            "Response",
            [["hello<|im_end|>", "a<|im_end|>"]],
        ),
        # The words of the header, of the prompt or of another reply do not mislead: positions count.
        (says("assistant\n", "assistant\n"), CHATML, "Response", [["assistant\n<|im_end|>"]]),
        (says("a", "a", "a", "a"), CHATML, "Response", [["a<|im_end|>", "a<|im_end|>"]]),
        (says("q", "a", "r", "b"), INST, "Response", [[" a </s>", " b </s>"]]),
        (says("q", "a", "r", "b"), NO_END, "Response", [["a", "b"]]),
        # Earlier turns are rewritten: one text per reply, each as it is served.
        (
            says("q", "<think>x</think> a", "r", "<think>y</think> b"),
            THINKING,
            "Response",
            [["<think>x</think> a</s>"], ["<think>y</think> b</s>"]],
        ),
        (says("q", "<think>x</think> a", "r", "b"), THINKING, "LastTurn", [["b</s>"]]),
        (says("q", "a", "r", "b"), THINKING, "Response", [["a</s>", "b</s>"]]),
        (says("q", "<think>\nx</think>a"), PROMPTED, "Response", [["x</think>a<|im_end|>"]]),
        (says("q", "a"), PROMPTED, "Response", [["a<|im_end|>"]]),
    ],
)
def test_what_is_learned(
    messages: list[Message], template: str, loss: Loss, expected: list[list[str]]
) -> None:
    assert learned(render(messages, template, loss)) == expected


def test_rewritten_turns_are_seen_as_served() -> None:
    messages = says("q", "<think>x</think> a", "r", "<think>y</think> b")
    first, second = render(messages, THINKING)
    assert first.text == "<s>U q<s>A <think>x</think> a</s>"
    assert second.text == "<s>U q<s>A a</s><s>U r<s>A <think>y</think> b</s>"


def test_all_learns_the_questions_too() -> None:
    (one,) = render(says("q", "a"), loss="All")
    assert one.learned == [(0, len(one.text.rstrip()))]


def test_muted_replies_are_context() -> None:
    rendered = render(says("q", "a", "r", "b"), muted=frozenset([1]))
    assert learned(rendered) == [["b<|im_end|>"]]


@pytest.mark.parametrize(("template", "ends"), [(CHATML, True), (INST, True), (NO_END, False)])
def test_templates_without_end_of_turn_are_known(template: str, ends: bool) -> None:
    assert render(says("q", "a"), template)[0].ends is ends


@pytest.mark.parametrize(("template", "foreign"), [(CHATML, False), (PROMPTED, True)])
def test_prompts_that_are_not_what_stands_before_replies(template: str, foreign: bool) -> None:
    assert render(says("q", "a"), template)[0].foreign_prompt is foreign


def test_refusals_are_faults_of_the_row() -> None:
    messages: list[Message] = [{"role": "system", "content": "s"}, *says("q", "a")]
    with pytest.raises(RowFault, match="no system please"):
        render(messages, STRICT)
    with pytest.raises(RowFault, match="leaves the reply out"):
        render(says("q", "a"), "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}")
    with pytest.raises(RowFault, match="fails on the row"):
        render(says("q", "a"), "{{ messages[7].content + 1 }}")


PIECES = [
    "q",
    "a",
    "",
    " spaced ",
    "assistant\n",
    "<think>z</think>b",
    "x</think>\n\nc",
    "U q",
    "</s>",
    "\n",
    "雾",
]
CONVERSATIONS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(PIECES), min_size=2, max_size=6),
        st.sampled_from([None, "s", "q"]),
        st.sampled_from([None, [{"name": "f"}], [{"name": "g"}]]),
    ),
    min_size=2,
    max_size=5,
)
TEMPLATES = {
    **dict(zip("CINTP", (CHATML, INST, NO_END, THINKING, PROMPTED), strict=True)),
    **{name: jinja(style, bos=False, end="</s>", stop_known=True) for name, style in STYLES.items()},
}


@functools.cache
def compiled(template: str) -> ChatTemplate:
    return ChatTemplate(TEMPLATES[template], {"eos_token": "</s>", "bos_token": "<s>"}, NOW)


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("loss", ["Response", "LastTurn", "All"])
@given(rows=CONVERSATIONS)
@settings(max_examples=10, deadline=None)
def test_later_rows_of_a_kind_are_found_like_the_first(
    template: str, loss: Loss, rows: list[tuple[list[str], str | None, list[dict[str, object]] | None]]
) -> None:
    """The shortcut for rows of a known kind gives what rendering in full gives."""
    chat = compiled(template)
    renderer = Renderer(chat, SPECIALS, loss)
    for contents, system, tools in rows:
        start: list[Message] = [{"role": "system", "content": system}] if system is not None else []
        conversation = Conversation([*start, *says(*contents)], tools)

        def rendered(renderer: Renderer, conversation: Conversation = conversation) -> list[Rendered] | str:
            try:
                return renderer.render(conversation)
            except RowFault as fault:
                return fault.reason

        assert rendered(renderer) == rendered(Renderer(chat, SPECIALS, loss))


def test_a_known_kind_is_rendered_once() -> None:
    class Counting(ChatTemplate):
        renders = 0

        def render(self, *args: Any, **options: Any) -> str:
            self.renders += 1
            return super().render(*args, **options)

    chat = Counting(CHATML, {}, NOW)
    renderer = Renderer(chat, SPECIALS, "Response")
    for contents, renders in (
        # "r" is found in the word "user" first: what is learned of that row fits no other.
        (("q", "a", "r", "b"), 4),
        (("Where?", "Here.", "When?", "Now."), 4),
        (("one", "two", "three", "four"), 1),
        (("r", "r", "", "user"), 1),
    ):
        chat.renders = 0
        renderer.render(Conversation(says(*contents)))
        assert chat.renders == renders, contents
