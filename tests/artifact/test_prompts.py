from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
from tokenizers import Tokenizer

from finetune_trainer.artifact.prompts import Held, Reader, choose
from finetune_trainer.data.arrays import Examples
from finetune_trainer.data.chat_template import ChatTemplate
from finetune_trainer.data.tokeniser import Tokeniser, read_files
from tests.artifact.conftest import CHATML, PAIRS, encode, write_split

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DEFAULT_SYSTEM = (
    "{% if messages[0]['role'] != 'system' %}<|im_start|>system\nBe kind.<|im_end|>\n{% endif %}" + CHATML
)
PLAIN = (
    "{% for m in messages %}{{ 'Human: ' if m['role'] == 'user' else 'Assistant: ' }}{{ m['content'] }}\n"
    "{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)
INST = (
    "{% for m in messages %}{% if m['role'] == 'user' %}[INST] {{ m['content'] }} [/INST]"
    "{% else %} {{ m['content'] }}<|im_end|>{% endif %}{% endfor %}"
)
REFUSES = "{{ raise_exception('no') }}"


@pytest.fixture(scope="module")
def tokeniser(tokenizer_folder: Path) -> Tokeniser:
    return Tokeniser(read_files(tokenizer_folder))


def reader(tokeniser: Tokeniser, template: str | None) -> Reader:
    return Reader(tokeniser, ChatTemplate(template, {}, NOW) if template is not None else None)


@pytest.mark.parametrize(
    ("template", "text", "question"),
    [
        (CHATML, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n", "Who?"),
        (
            CHATML,
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nOne?<|im_end|>\n"
            "<|im_start|>assistant\nYes.<|im_end|>\n"
            "<|im_start|>user\nThe user said\nuser?<|im_end|>\n<|im_start|>assistant\n",
            "The user said\nuser?",
        ),
        (CHATML, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n", "Who?"),
        (CHATML, "<|im_start|>user\nWho?<|im_end|>\n<|im_start|>", "Who?"),
        (CHATML, "just text", "just text"),
        (
            DEFAULT_SYSTEM,
            "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nWho?<|im_end|>\n"
            "<|im_start|>assistant\n",
            "Who?",
        ),
        (PLAIN, "Human: One?\nAssistant: Yes.\nHuman: Two?\nAssistant:", "Two?"),
        (INST, "[INST] One? [/INST] Yes.<|im_end|>[INST] Two? [/INST]", "Two?"),
        (REFUSES, "<|im_start|>user\nWho?<|im_end|>", "user\nWho?"),
        (None, "Once upon<|im_end|>", "Once upon"),
    ],
    ids=[
        "one turn",
        "many turns",
        "reply starts inside",
        "reply starts early",
        "no turn",
        "default system prompt",
        "plain words",
        "brackets",
        "template refuses",
        "no template",
    ],
)
def test_only_the_question_is_shown(
    tokeniser: Tokeniser, template: str | None, text: str, question: str
) -> None:
    ids = tokeniser.encode_part(text, behind=False)
    assert reader(tokeniser, template).prompt(ids) == question


def test_replies_lose_their_control_tokens(tokeniser: Tokeniser) -> None:
    ids = tokeniser.encode_part(" Am Hafen, 港口.<|im_end|>", behind=False)
    assert reader(tokeniser, CHATML).text(ids) == "Am Hafen, 港口."


@pytest.mark.parametrize(
    ("template", "parts", "prompt", "expected"),
    [
        (CHATML, [("<|im_start|>user\nA<|im_end|>", 0), ("B<|im_end|>", 1)], "A<|im_end|>", "B<|im_end|>"),
        (CHATML, [("A", 0), ("B", 1), ("C", 0), ("D", 1)], "C", "D"),
        (CHATML, [("A", 0), ("B", 1), ("C", 0)], "A", "B"),
        (
            CHATML,
            [("<|im_start|>", 0), ("user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>", 1)],
            "<|im_start|>assistant\n",
            "B<|im_end|>",
        ),
        (None, [("<|im_start|>", 0), ("x y z w", 1)], None, None),
    ],
    ids=["reply", "last of several", "text behind it", "all learned", "plain text"],
)
def test_an_example_is_cut_before_the_last_reply(
    tokeniser: Tokeniser,
    template: str | None,
    parts: list[tuple[str, int]],
    prompt: str | None,
    expected: str | None,
) -> None:
    pieces = [(tokeniser.encode_part(text, behind=False), bool(learned)) for text, learned in parts]
    tokens = [token for ids, _ in pieces for token in ids]
    trained = [learned for ids, learned in pieces for _ in ids]
    held = reader(tokeniser, template).hold(tokens, trained)
    assert held is not None
    assert held.prompt + held.expected == tokens[: len(held.prompt) + len(held.expected)]
    if prompt is None or expected is None:
        assert 1 < len(held.prompt) < len(tokens)
    else:
        assert tokeniser.decode(held.prompt).endswith(prompt)
        assert tokeniser.decode(held.expected) == expected


def test_an_example_without_learned_tokens_shows_nothing(tokeniser: Tokeniser) -> None:
    assert reader(tokeniser, CHATML).hold([5, 6, 7], [False] * 3) is None


def test_samples_are_short_and_differ(tokenizer_folder: Path, tokeniser: Tokeniser, tmp_path: Path) -> None:
    whole = Tokenizer.from_file(str(tokenizer_folder / "tokenizer.json"))
    pairs = [("x " * 2000, "Too long."), PAIRS[0], ("Harbour?", PAIRS[0][1]), *PAIRS[1:]]
    write_split(tmp_path / "test", [encode(whole, question, reply) for question, reply in pairs])
    look = reader(tokeniser, CHATML)
    chosen = choose(Examples(tmp_path / "test"), look, 3)
    assert [(look.prompt(held.prompt), look.text(held.expected)) for held in chosen] == PAIRS[:3]
    assert choose(Examples(tmp_path / "test"), look, 1) == chosen[:1]
    assert all(isinstance(held, Held) for held in chosen)
