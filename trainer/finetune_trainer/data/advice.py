"""Warnings: what in a report ruins more fine-tunes than hardware does, with the remedy."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from finetune_trainer.data.report import Report, Warned
from finetune_trainer.data.templates import Template
from finetune_trainer.data.tokeniser import Tokeniser

LITTLE, MUCH = 0.05, 0.95
"""Shares of trained tokens between which a chat set usually lies."""


def warnings(report: Report, tally: Counter[str], template: Template, tokeniser: Tokeniser) -> list[Warned]:
    """Judge a report; `tally` counts what rows had in common (see `work`)."""
    return [
        *_shares(report, tally["conversations"]),
        *_left_out(report),
        *_splits(report),
        *_prompts(report, tally),
        *_ends(report, tally["unended"], template, tokeniser),
    ]


def _shares(report: Report, conversations: int) -> Iterator[Warned]:
    share = report.trained_share
    if not conversations or report.loss == "All":
        return
    if share < LITTLE:
        yield Warned(
            message=f"only {share:.1%} of the tokens are trained: nearly all of each row is prompt",
            hint="shorten prompts and inputs, and check that the answers are in the right column",
        )
    elif share > MUCH:
        yield Warned(
            message=f"{share:.1%} of the tokens are trained: the rows have hardly any prompt",
            hint="check that questions and answers are not swapped and that the format is right",
        )


def _left_out(report: Report) -> Iterator[Warned]:
    if report.truncated:
        yield Warned(
            message=f"{report.truncated} of {report.rows} rows were cut to maxLength ({report.max_length}"
            " tokens); an answer that is cut off does not teach where to stop",
            hint="raise dataset.maxLength, or set dataset.overlong to Drop",
        )
    if report.dropped:
        yield Warned(
            message=f"{report.dropped} rows were dropped: {report.dropped_reasons[0].reason}",
            hint="raise dataset.maxLength to keep them",
        )
    for reason in report.skipped_reasons[:3]:
        rows = ", ".join(reason.rows[:3]) + (", ..." if reason.count > 3 else "")
        yield Warned(
            message=f"{reason.count} rows were skipped: {reason.reason} ({rows})",
            hint="fill them in or remove them; report.json has all reasons",
        )
    if report.left_out:
        yield Warned(
            message=f"files named as held-out splits were left out: {', '.join(report.left_out[:5])}",
            hint="give them as sources of their own to train on them",
        )


def _splits(report: Report) -> Iterator[Warned]:
    if report.duplicates_across_splits:
        yield Warned(
            message=f"{report.duplicates_across_splits} rows of the validation and test splits are duplicates"
            " of rows that are trained: their loss will look better than it is",
            hint="remove repeated rows",
        )
    empty = [name for name in report.wanted_splits if not report.splits[name].rows]
    if empty:
        yield Warned(
            message=f"too few rows to split: all {report.rows} go to train,"
            f" and {' and '.join(empty)} stay empty",
            hint="add rows to have an evaluation",
        )


def _prompts(report: Report, tally: Counter[str]) -> Iterator[Warned]:
    conversations = tally["conversations"]
    if 0 < report.with_system_prompt < conversations:
        yield Warned(
            message=f"{report.with_system_prompt} of {conversations} conversations have a system prompt, the"
            " others have none",
            hint="set dataset.systemPrompt for those without, and serve with the prompt that was trained",
        )
    if tally["foreign prompts"]:
        yield Warned(
            message=f"in {tally['foreign prompts']} rows the template prompts for a reply with words that it"
            " does not write before these replies (a reasoning block, most likely)",
            hint="give the replies their reasoning_content, or choose a template without reasoning",
        )
    for role in ("system", "user", "tool"):
        if rows := tally[f"lost {role}"]:
            yield Warned(
                message=f"in {rows} rows the template leaves out or rewrites messages of the role {role}",
                hint="look at them with `finetune data`, and choose a template that shows these messages",
            )
    if tally["tools in the system prompt"]:
        yield Warned(
            message="the template has no place for tools: in"
            f" {tally['tools in the system prompt']} rows the functions are listed in the system prompt",
            hint="serve with the same system prompt, or choose a template that shows tools, such as Qwen",
        )


def _ends(report: Report, unended: int, template: Template, tokeniser: Tokeniser) -> Iterator[Warned]:
    eos = tokeniser.eos
    if unended and eos is None:
        yield Warned(
            message="neither the template nor the tokenizer has a token that ends a reply:"
            " the model will not stop",
            hint="choose a template with an end-of-turn, or a model whose tokenizer has an eos_token",
        )
    elif unended and eos is not None:
        yield Warned(
            message=f"the template has no end-of-turn: {eos[0]} was put behind the last reply of each row",
            hint="choose a template with an end-of-turn to teach it in every turn",
        )
    if template.unknown_markers:
        yield Warned(
            message=f"the tokenizer has no {', '.join(template.unknown_markers)}:"
            f" the template {template.name} spells them in plain characters",
            hint="use the template Model, or the one of the model's family",
        )
    stop = tokeniser.specials.get(report.end_of_turn)
    stops = tokeniser.files.stops or ((eos[1],) if eos is not None else ())
    if stop is not None and stops and stop not in stops:
        yield Warned(
            message=f"replies end with {report.end_of_turn},"
            " but the model's generation_config.json stops elsewhere",
            hint=f"serve with {report.end_of_turn} as a stop token",
        )
