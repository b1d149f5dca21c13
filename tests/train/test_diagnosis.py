"""Which causes are named, in which order, and with which figures."""

import math
from dataclasses import replace
from typing import Any

import pytest

from finetune_trainer.config import Dataset, ExitReason, Model, Output, RunConfig, Source, Training
from finetune_trainer.data.report import Report, SplitCount
from finetune_trainer.data.report import Warned as DataWarned
from finetune_trainer.train import diagnosis
from finetune_trainer.train.diagnosis import Known, named, not_finite

HEALTHY = Known(
    total_steps=100,
    learning_rate=1e-4,
    warmup_steps=10,
    precision="BF16",
    max_gradient_norm=1.0,
    vocabulary=32_000,
    template="Model",
    learns_everything=False,
    trained_share=0.4,
    truncated_share=0.0,
    data_warnings=0,
)


def test_it_is_taken_from_the_run_and_the_verdict_on_its_data() -> None:
    run = RunConfig(
        name="x",
        uid="u",
        model=Model(uri="file:///x"),
        dataset=Dataset(sources=[Source(uri="file:///x")], template="Alpaca", loss="All"),
        output=Output(uri="file:///x"),
        training=Training(learning_rate=3e-3, warmup_ratio=0.05, precision="FP16", max_gradient_norm=0.0),
    )
    report = Report(
        rows=50,
        truncated=10,
        splits={"train": SplitCount(tokens=200, trained_tokens=30)},
        warnings=[DataWarned(message="m", hint="h")],
    )
    assert Known.of(run, report, total_steps=110, vocabulary=99) == Known(
        total_steps=110,
        learning_rate=3e-3,
        warmup_steps=6,
        precision="FP16",
        max_gradient_norm=0.0,
        vocabulary=99,
        template="Alpaca",
        learns_everything=True,
        trained_share=0.15,
        truncated_share=0.2,
        data_warnings=1,
    )


@pytest.mark.parametrize(
    ("differs", "start", "says"),
    [
        ({"learning_rate": 1e-2}, 2.0, "learningRate 0.01 is above 0.0005"),
        ({"learning_rate": 1e-7}, 2.0, "raise it to 0.0002"),
        ({"template": "Alpaca"}, 2.0, "dataset.template Alpaca"),
        ({"trained_share": 0.02}, 2.0, "only 2.0% of the tokens are trained"),
        ({"trained_share": 0.99}, 2.0, "questions and answers are not swapped"),
        ({"truncated_share": 0.5}, 2.0, "50% of the rows are cut off: raise dataset.maxLength"),
        ({"data_warnings": 1}, 2.0, "heed the warning about the data"),
        ({"data_warnings": 3}, 2.0, "heed the 3 warnings about the data"),
        ({}, 10.0, "blind guess (10.37)"),
    ],
)
def test_what_keeps_a_loss_up_comes_first(differs: dict[str, Any], start: float, says: str) -> None:
    hint = diagnosis.not_falling(replace(HEALTHY, **differs), start=start, norms=[1.0])
    assert hint.startswith("likeliest first: (1) ")
    first, _ = hint.split("; (2) ")
    assert says in first


def test_where_nothing_is_odd_it_sends_to_the_rows() -> None:
    hint = diagnosis.not_falling(HEALTHY, start=2.0, norms=[1.0])
    assert hint.startswith("see with `finetune data`")


def test_no_share_is_odd_where_everything_is_learned() -> None:
    known = replace(HEALTHY, trained_share=1.0, learns_everything=True)
    assert "tokens are trained" not in diagnosis.not_falling(known, start=2.0, norms=[])


def test_several_causes_are_ranked() -> None:
    known = replace(HEALTHY, learning_rate=2e-3, template="Alpaca", trained_share=0.01)
    hint = diagnosis.not_falling(known, start=2.0, norms=[4e3, 5e3])
    places = [
        hint.index(text)
        for text in (
            "(1) training.learningRate 0.002",
            "(2) the gradient's",
            "(3) dataset.t",
            "(4) only 1.0%",
        )
    ]
    assert places == sorted(places)


@pytest.mark.parametrize(
    ("differs", "start", "first"),
    [
        ({"precision": "FP16"}, 2.0, "in FP16 small gradients become zero"),
        ({}, 10.3, "the loss begins at 10.30"),
        ({}, 2.0, "the adapted layers have no part in the output"),
    ],
)
def test_what_freezes_an_adapter(differs: dict[str, Any], start: float, first: str) -> None:
    hint = diagnosis.frozen(replace(HEALTHY, **differs), start=start)
    assert hint.startswith(f"likeliest first: (1) {first}")


@pytest.mark.parametrize(
    ("differs", "rows", "first"),
    [
        ({"learning_rate": 1e-3, "max_gradient_norm": 0.0}, (), "training.learningRate 0.001"),
        ({"max_gradient_norm": 0.0}, (), "gradients are not clipped"),
        ({}, (4, 2), "look at the rows of that batch: 3, 5"),
        ({"warmup_steps": 0}, (), "warm up longer"),
    ],
)
def test_what_makes_gradients_large(differs: dict[str, Any], rows: tuple[int, ...], first: str) -> None:
    hint = diagnosis.large_gradients(replace(HEALTHY, **differs), rows=rows)
    assert hint.startswith(f"likeliest first: (1) {first}")


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_names_step_and_rows(value: float) -> None:
    error = not_finite(
        HEALTHY, "the loss", value, step=12, rows=range(39, -1, -1), narrowed=False, norms=[1.0]
    )
    assert error.reason is ExitReason.NON_FINITE_LOSS
    assert error.message.startswith(f"the loss is {value} at step 12; rows of that batch: 1, 2, 3,")
    assert error.message.endswith(" and 24 more")


@pytest.mark.parametrize(
    ("differs", "step", "norms", "causes"),
    [
        ({"learning_rate": 1e-2}, 5, [1.0] * 4, ["learningRate 0.01 is above", "look at those rows"]),
        (
            {"learning_rate": 1e-2, "precision": "FP16"},
            5,
            [1.0, 2.0, 5e3],
            ["learningRate 0.01", "had grown from 1.5 to 5e+03", "FP16 ends at 65504"],
        ),
        ({"max_gradient_norm": 0.0}, 5, [1.0], ["not clipped: set training.maxGradientNorm: 1"]),
        ({}, 5, [1.0] * 4, ["look at those rows", "lower training.learningRate"]),
        ({"learning_rate": 1.0}, 1, [], ["nothing was learned yet", "look at those rows"]),
        ({"precision": "FP16"}, 1, [], ["FP16 ends at", "nothing was learned yet"]),
    ],
)
def test_its_likely_causes(differs: dict[str, Any], step: int, norms: list[float], causes: list[str]) -> None:
    error = not_finite(
        replace(HEALTHY, **differs), "the loss", math.nan, step=step, rows=[7], narrowed=True, norms=norms
    )
    assert error.message == f"the loss is nan at step {step}; rows that it comes from: 8"
    told = error.hint.removeprefix("likeliest first: ").split("; ")
    assert [cause in text for cause, text in zip(causes, told, strict=False)] == [True] * len(causes)


def test_rows_are_counted_from_one_and_named_once() -> None:
    assert named([4, 0, 4]) == "1, 5"
    assert named(range(20)).endswith("15, 16 and 4 more")
