"""How model families write their turns: the parts from which a named template's Jinja text is made."""

# ruff: noqa: RUF001 - the families' tokens hold full-width bars

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

END = "\0end\0"
"""Stands for the tokenizer's own end-of-text token."""


@dataclass(frozen=True, slots=True)
class Turns:
    """What stands before and behind each turn.

    `END` stands for the tokenizer's end-of-text token, and so does `stop` on a tokenizer that does
    not have it as one token: a turn must end with something at which a server can stop.
    """

    user: tuple[str, str]
    assistant: tuple[str, str]
    system: tuple[str, str] = ("", "")
    folded: bool = False
    """The family has no system turn: the text goes into the first question."""
    tool: tuple[str, str] | None = None
    """None: the result of a tool is written as a user's turn."""
    stop: str = END
    default_system: str = ""
    start: str = ""
    """What a sequence starts with, apart from the tokenizer's beginning-of-text token."""
    before_input: str = "\n"
    """Between Alpaca's instruction and input."""
    thinking: Literal["none", "kept in last", "prompted"] = "none"
    """`kept in last`: reasoning stays in replies behind the last question only, an empty block where
    there is none; `prompted`: the same, and the prompt for a reply opens the block."""
    trims: bool = False
    """Contents lose outer white space."""
    markers: tuple[str, ...] = ()
    """Texts that the style expects to be control tokens."""


_CHATML = Turns(
    system=("<|im_start|>system\n", "<|im_end|>\n"),
    user=("<|im_start|>user\n", "<|im_end|>\n"),
    assistant=("<|im_start|>assistant\n", "<|im_end|>\n"),
    tool=("<|im_start|>tool\n", "<|im_end|>\n"),
    stop="<|im_end|>",
    markers=("<|im_start|>", "<|im_end|>"),
)


def _headed(opening: str, closing: str, stop: str) -> Turns:
    """The style of Llama 3 and 4: the role between two markers, a blank line, the content."""

    def turn(role: str) -> tuple[str, str]:
        return f"{opening}{role}{closing}\n\n", stop

    return Turns(
        system=turn("system"),
        user=turn("user"),
        assistant=turn("assistant"),
        tool=turn("ipython"),
        stop=stop,
        markers=(opening, closing, stop),
        trims=True,
    )


_DEEPSEEK = Turns(
    user=("<｜User｜>", ""),
    assistant=("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    stop="<｜end▁of▁sentence｜>",
    markers=("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
)
_QWEN_PROMPT = "You are Qwen, created by Alibaba Cloud. You are a helpful assistant."
_SMOLLM_PROMPT = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
_ALPACA_PROMPT = (
    "Below is an instruction that describes a task. "
    "Write a response that appropriately completes the request."
)
_ALPACA_CHINESE_PROMPT = "下面是一条描述任务的指令，请写出恰当地完成该任务的回答。"
_VICUNA_PROMPT = (
    "A chat between a curious user and an artificial intelligence assistant. "
    "The assistant gives helpful, detailed, and polite answers to the user's questions."
)

STYLES: dict[str, Turns] = {
    "Alpaca": Turns(
        system=("", "\n\n"),
        user=("### Instruction:\n", "\n\n"),
        assistant=("### Response:\n", END + "\n\n"),
        default_system=_ALPACA_PROMPT,
        before_input="\n\n### Input:\n",
    ),
    "AlpacaChinese": Turns(
        system=("", "\n\n"),
        user=("### 指令:\n", "\n\n"),
        assistant=("### 回答:\n", END + "\n\n"),
        default_system=_ALPACA_CHINESE_PROMPT,
        before_input="\n\n### 输入:\n",
    ),
    "Vicuna": Turns(
        system=("", " "),
        user=("USER: ", " "),
        assistant=("ASSISTANT: ", END),
        default_system=_VICUNA_PROMPT,
    ),
    "Zephyr": Turns(
        system=("<|system|>\n", END + "\n"),
        user=("<|user|>\n", END + "\n"),
        assistant=("<|assistant|>\n", END + "\n"),
    ),
    "Llama2": Turns(
        system=("<<SYS>>\n", "\n<</SYS>>\n\n"),
        folded=True,
        user=("[INST] ", " [/INST]"),
        assistant=(" ", " " + END),
        trims=True,
    ),
    "Llama3": _headed("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    "Llama4": _headed("<|header_start|>", "<|header_end|>", "<|eot|>"),
    "ChatML": _CHATML,
    "Qwen": replace(_CHATML, default_system=_QWEN_PROMPT, tool=None),
    "Qwen3": replace(_CHATML, tool=None, thinking="kept in last"),
    "Mistral": Turns(
        system=("", "\n\n"), folded=True, user=("[INST] ", "[/INST]"), assistant=(" ", END), trims=True
    ),
    "Gemma": Turns(
        system=("", "\n\n"),
        folded=True,
        user=("<start_of_turn>user\n", "<end_of_turn>\n"),
        assistant=("<start_of_turn>model\n", "<end_of_turn>\n"),
        stop="<end_of_turn>",
        markers=("<start_of_turn>", "<end_of_turn>"),
        trims=True,
    ),
    "Phi3": Turns(
        system=("<|system|>\n", "<|end|>\n"),
        user=("<|user|>\n", "<|end|>\n"),
        assistant=("<|assistant|>\n", "<|end|>\n"),
        stop="<|end|>",
        markers=("<|system|>", "<|user|>", "<|assistant|>", "<|end|>"),
    ),
    "Phi4": Turns(
        system=("<|im_start|>system<|im_sep|>", "<|im_end|>"),
        user=("<|im_start|>user<|im_sep|>", "<|im_end|>"),
        assistant=("<|im_start|>assistant<|im_sep|>", "<|im_end|>"),
        stop="<|im_end|>",
        markers=("<|im_start|>", "<|im_sep|>", "<|im_end|>"),
    ),
    "DeepSeek": _DEEPSEEK,
    "DeepSeekR1": replace(_DEEPSEEK, thinking="prompted"),
    "GLM4": Turns(
        start="[gMASK]<sop>",
        system=("<|system|>\n", ""),
        user=("<|user|>\n", ""),
        assistant=("<|assistant|>\n", ""),
        tool=("<|observation|>\n", ""),
        stop="",
        markers=("<|system|>", "<|user|>", "<|assistant|>", "<|observation|>"),
    ),
    "Yi": _CHATML,
    "InternLM2": _CHATML,
    "Baichuan2": Turns(
        user=("<reserved_106>", ""),
        assistant=("<reserved_107>", END),
        markers=("<reserved_106>", "<reserved_107>"),
    ),
    "Falcon": Turns(system=("System: ", "\n"), user=("User: ", "\n"), assistant=("Falcon: ", END + "\n")),
    "CommandR": Turns(
        system=("<|START_OF_TURN_TOKEN|><|SYSTEM_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        user=("<|START_OF_TURN_TOKEN|><|USER_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        assistant=("<|START_OF_TURN_TOKEN|><|CHATBOT_TOKEN|>", "<|END_OF_TURN_TOKEN|>"),
        stop="<|END_OF_TURN_TOKEN|>",
        markers=("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|USER_TOKEN|>", "<|CHATBOT_TOKEN|>"),
    ),
    "Granite": Turns(
        system=("<|start_of_role|>system<|end_of_role|>", "<|end_of_text|>\n"),
        user=("<|start_of_role|>user<|end_of_role|>", "<|end_of_text|>\n"),
        assistant=("<|start_of_role|>assistant<|end_of_role|>", "<|end_of_text|>\n"),
        stop="<|end_of_text|>",
        markers=("<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>"),
    ),
    "OLMo": Turns(
        system=("<|system|>\n", "\n"), user=("<|user|>\n", "\n"), assistant=("<|assistant|>\n", END + "\n")
    ),
    "SmolLM": replace(_CHATML, default_system=_SMOLLM_PROMPT),
    "Default": Turns(
        system=("System: ", "\n"), user=("Human: ", "\n"), assistant=("Assistant: ", END + "\n")
    ),
}
