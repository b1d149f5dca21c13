"""Named templates: the names of the job's API, one start, learned ends, the same text as in a server."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import transformers

from finetune_trainer.config import RunError
from finetune_trainer.config.run import TEMPLATES
from finetune_trainer.data.chat_template import ChatTemplate
from finetune_trainer.data.conversation import Message, ToolCall
from finetune_trainer.data.faults import RowFault
from finetune_trainer.data.templates import NAMES, resolve
from finetune_trainer.data.tokeniser import Tokeniser, read_files
from finetune_trainer.data.turn_styles import STYLES
from tests.data.building import Built
from tests.fixtures.folders import fill
from tests.fixtures.tokenizers import byte_level

NOW = datetime(2025, 1, 1, tzinfo=UTC)
TALK = (
    '{"messages": [{"role": "system", "content": "SYS."}, {"role": "user", "content": "Q one?"}, '
    '{"role": "assistant", "content": "A one."}, {"role": "user", "content": "Q two?"}, '
    '{"role": "assistant", "content": "A two."}]}\n'
)
CALL: ToolCall = {"type": "function", "function": {"name": "get_depth", "arguments": {"at": "é"}}}
SCHEMA: dict[str, object] = {"name": "get_depth", "parameters": {"type": "object"}}
TOOLS: list[dict[str, object]] = [{"type": "function", "function": SCHEMA}]
MESSAGES: list[Message] = [
    {"role": "system", "content": "SYS."},
    {"role": "user", "content": "Q one?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "7"},
    {"role": "assistant", "content": "A two."},
]


@pytest.fixture(scope="session")
def family(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Folder of a tokenizer that has all control tokens of a style and starts texts with one."""
    folders: dict[str, Path] = {}

    def make(name: str) -> Path:
        if name not in folders:
            markers = [] if name == "Model" else list(STYLES[name].markers)
            specials = dict.fromkeys(["<s>", "</s>", "<|im_start|>", "<|im_end|>", *markers])
            folder = tmp_path_factory.mktemp(name)
            folders[name] = byte_level(folder, specials=list(specials), bos="<s>", eos="</s>", adds_bos=True)
        return folders[name]

    return make


def test_the_names_are_those_of_the_api() -> None:
    assert sorted(NAMES) == sorted(TEMPLATES)


@pytest.mark.parametrize("name", STYLES)
def test_replies_and_their_ends_are_learned(name: str, family: Any, prepared: Any, tmp_path: Path) -> None:
    source = fill(tmp_path / "in", {"talk.jsonl": TALK})
    built: Built = prepared(source, model=family(name), template=name)
    style = STYLES[name]
    end = style.stop if style.stop not in ("", "\0end\0") else "</s>"
    pieces = [built.text(place, learned=True) for place in range(built.report.examples)]
    text = "".join(pieces)
    assert "A one." in text
    assert "A two." in text
    assert "Q" not in text
    assert "SYS" not in text
    assert text.count(end) == (1 if name == "GLM4" else 2)
    assert pieces[-1].endswith(end)
    for place in range(built.report.examples):
        whole = built.text(place)
        assert whole.count("<s>") == 1
        assert whole.startswith("<s>")
        assert "SYS." in whole


@pytest.mark.parametrize("name", STYLES)
def test_transformers_renders_the_published_template_alike(name: str, family: Any) -> None:
    folder = family(name)
    tokeniser = Tokeniser(read_files(folder))
    chat = resolve(name, tokeniser, NOW).chat
    assert chat is not None
    served = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    for reply in (True, False):
        for tools in (None, TOOLS):
            theirs = served.apply_chat_template(
                MESSAGES, tools=tools, chat_template=chat.source, tokenize=False, add_generation_prompt=reply
            )
            assert chat.render(MESSAGES, tools, reply=reply) == theirs
            assert ("get_depth" in theirs.split("Q one?")[0]) == (tools is not None)
            assert '<tool_call>\n{"name": "get_depth", "arguments": {"at": "é"}}' in theirs


@pytest.mark.parametrize("name", STYLES)
def test_a_prompt_is_the_start_of_the_conversation(name: str, family: Any) -> None:
    chat = resolve(name, Tokeniser(read_files(family(name))), NOW).chat
    assert chat is not None
    messages: list[Message] = [{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}]
    assert chat.render(messages).startswith(chat.render(messages[:1], reply=True))


def test_without_the_family_tokens_turns_end_with_the_tokenizers_own(tiny: Path) -> None:
    template = resolve("Llama3", Tokeniser(read_files(tiny)), NOW)
    assert template.unknown_markers == ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")
    assert template.chat is not None
    text = template.chat.render([{"role": "user", "content": "Q"}, {"role": "assistant", "content": "A"}])
    assert text.endswith("A<|im_end|>")


def test_unknown_names_and_broken_templates_are_refused(tiny: Path) -> None:
    with pytest.raises(RunError, match="unknown"):
        resolve("Nobody", Tokeniser(read_files(tiny)), NOW)
    with pytest.raises(RunError, match="line 2"):
        ChatTemplate("\n{% if %}", {}, NOW)


def test_the_environment_is_that_of_transformers() -> None:
    source = (
        "{%- for m in messages %}\n  {%- if m.role == 'user' %}{% continue %}{% endif %}\n"
        "{% generation %}{{ m.content | tojson }}{% endgeneration %}{{ m | tojson(indent=2) }}\n{% endfor %}"
        "{{ strftime_now('%Y') }}"
    )
    messages: list[Message] = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "<é>"}]
    text = ChatTemplate(source, {}, NOW).render(messages)
    theirs = transformers.utils.chat_template_utils.render_jinja_template(
        [[dict(message) for message in messages]],
        chat_template=source.replace("{{ strftime_now('%Y') }}", "2025"),
    )[0][0]
    assert text == theirs
    with pytest.raises(RowFault, match="not allowed"):
        ChatTemplate("{{ messages.__class__.__mro__ }}", {}, NOW).render(messages)
