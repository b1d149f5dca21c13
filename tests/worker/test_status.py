from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from finetune_trainer.config import (
    Checkpoint,
    Evaluation,
    Event,
    ExitReason,
    Outcome,
    RunConfig,
    RunError,
    Stage,
    Step,
    Warned,
)
from finetune_trainer.worker.progress import Progress
from finetune_trainer.worker.status import StatusServer

STEP = Step(
    step=40,
    total_steps=160,
    epoch=0.25,
    loss=1.25,
    learning_rate=1e-4,
    gradient_norm=float("inf"),
    memory_bytes=2_000_000_000,
    tokens=4000,
    tokens_per_second=231.5,
    eta_seconds=72.0,
)
STORY: list[Event] = [
    Stage(name="load"),
    Stage(name="train"),
    Checkpoint(step=20, resumed=True),
    STEP,
    Evaluation(split="validation", step=40, loss=1.5, tokens=100),
    Checkpoint(step=40, bytes=10, seconds=0.5),
    Warned(message="careful"),
]


class Served:
    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.server = StatusServer(0, lambda: self.progress)

    def get(self, path: str, accept: str = "") -> tuple[int, str, str]:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.server.port}{path}", headers={"Accept": accept}
        )
        try:
            with urllib.request.urlopen(request, timeout=5) as answer:
                return answer.status, answer.headers["Content-Type"], answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.headers["Content-Type"], error.read().decode()


@pytest.fixture
def served(make_config: Callable[..., RunConfig]) -> Iterator[Served]:
    served = Served(Progress.begin(make_config(), 0, 1.0))
    yield served
    served.server.close()


def test_before_the_first_event(served: Served) -> None:
    status, _, text = served.get("/metrics")
    names = {family.name for family in text_string_to_metric_families(text)}
    assert status == 200
    assert names == {"finetune_run_info", "finetune_warnings", "finetune_checkpoints"}


def test_metrics_tell_the_story(served: Served) -> None:
    for event in STORY:
        served.progress = served.progress.after(event, 2.0)
    _, content_type, text = served.get("/metrics")
    assert content_type.startswith("text/plain")
    samples = {
        (sample.name, *(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples.items() >= {
        (("finetune_step",), 40.0),
        (("finetune_planned_steps",), 160.0),
        (("finetune_loss",), 1.25),
        (("finetune_gradient_norm",), float("inf")),
        (("finetune_tokens_total",), 4000.0),
        (("finetune_tokens_per_second",), 231.5),
        (("finetune_evaluation_loss", "validation"), 1.5),
        (("finetune_stage", "train"), 1.0),
        (("finetune_checkpoint_step",), 40.0),
        (("finetune_checkpoints_total",), 1.0),
        (("finetune_warnings_total",), 1.0),
        (("finetune_run_info", "1", "demo", "default", "demo-1234", "0"), 1.0),
    }


@pytest.mark.parametrize("stage", ["save", "sample", "merge"])
def test_every_stage_of_ours_has_its_name(served: Served, stage: str) -> None:
    served.progress = served.progress.after(Stage(name=stage), 2.0)
    assert f'finetune_stage{{stage="{stage}"}} 1.0' in served.get("/metrics")[2]


def test_an_unknown_stage_adds_no_label(served: Served) -> None:
    for name in ("train", "something-new-1", "something-new-2"):
        served.progress = served.progress.after(Stage(name=name), 2.0)
    assert 'finetune_stage{stage="other"} 1.0' in served.get("/metrics")[2]


def test_open_metrics_on_request(served: Served) -> None:
    _, content_type, text = served.get("/metrics", accept="application/openmetrics-text; version=1.0.0")
    assert content_type.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


def test_progress_is_valid_json_whatever_the_numbers(served: Served) -> None:
    for event in STORY:
        served.progress = served.progress.after(event, 2.0)
    status, content_type, text = served.get("/progress?x=1")
    shown = json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    assert (status, content_type) == (200, "application/json")
    assert Step.model_validate(shown["step"]) == STEP
    assert shown["checkpoint"]["step"] == 40
    assert shown["evaluations"]["validation"]["loss"] == 1.5
    assert shown["outcome"] is None
    assert (shown["uid"], shown["attempt"], shown["worker"]) == ("demo-1234", 1, 0)


def test_health_needs_a_beat(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    assert served.get("/healthz")[0] == 200
    monkeypatch.setattr("finetune_trainer.worker.status._STUCK_SECONDS", -1.0)
    assert served.get("/healthz")[0] == 503


def test_other_paths(served: Served) -> None:
    status, _, text = served.get("/")
    assert status == 404
    assert "/metrics" in text


def test_a_taken_port(served: Served) -> None:
    with pytest.raises(RunError, match="Address already in use") as caught:
        StatusServer(served.server.port, lambda: served.progress)
    assert caught.value.reason is ExitReason.PREFLIGHT_FAILED


def test_the_outcome_is_part_of_the_progress(served: Served) -> None:
    served.progress = served.progress.after(Outcome(reason=ExitReason.PREEMPTED, step=7), 3.0)
    assert json.loads(served.get("/progress")[2])["outcome"]["reason"] == "Preempted"
