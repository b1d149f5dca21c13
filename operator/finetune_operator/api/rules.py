"""Rules between fields: what the schema of one field cannot see.

Each rule reads the raw spec, so that it speaks even when other fields are at fault, and says nothing
when the fields it needs are themselves absent or of the wrong kind.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from finetune_operator.api.adapter import ALL_LINEAR
from finetune_operator.api.faults import Path, Problem
from finetune_operator.api.operation import Protection
from finetune_operator.api.quantities import amount
from finetune_operator.api.training import Training
from finetune_operator.api.workers import Workers

Spec = Mapping[str, Any]


def check(spec: object) -> list[Problem]:
    """Find every broken rule of a raw `spec`; paths begin with `spec`."""
    if not isinstance(spec, Mapping):
        return []
    return [problem for rule in RULES for problem in rule(spec)]


def _block(spec: Spec, name: str) -> Spec:
    block = spec.get(name)
    return block if isinstance(block, Mapping) else {}


def _whole(block: Spec, name: str, default: int | None, lowest: int = 1) -> int | None:
    """A whole number as the schema wants it, the default where it is absent, None where it is neither."""
    value = block.get(name)
    if value is None:
        return default
    return value if type(value) is int and value >= lowest else None


def quantization_needs_qlora(spec: Spec) -> Iterator[Problem]:
    """Ignoring the block would train an unquantised model, which was not asked for."""
    adapter = _block(spec, "adapter")
    if adapter.get("quantization") is not None and adapter.get("method", "LoRA") == "LoRA":
        yield Problem(
            ("spec", "adapter", "quantization"),
            "is for method QLoRA only",
            "write method: QLoRA, or remove quantization",
        )


def one_length(spec: Spec) -> Iterator[Problem]:
    """A run has one length."""
    training = _block(spec, "training")
    if training.get("epochs") is not None and training.get("maxSteps") is not None:
        yield Problem(("spec", "training", "maxSteps"), "is given beside epochs", "remove epochs or maxSteps")


def batches_are_whole(spec: Spec) -> Iterator[Problem]:
    """The global batch is a whole number of micro batches on every rank."""
    training, workers = _block(spec, "training"), _block(spec, "workers")
    default = Training.model_fields["global_batch_size"].default
    whole = _whole(training, "globalBatchSize", default)
    micro = _whole(training, "microBatchSize", None)
    replicas = _whole(workers, "replicas", Workers.model_fields["replicas"].default)
    gpus = _whole(workers, "gpusPerWorker", Workers.model_fields["gpus_per_worker"].default, lowest=0)
    if whole is None or micro is None or replicas is None or gpus is None:
        return
    ranks = max(1, gpus)
    unit = replicas * ranks * micro
    if whole % unit:
        lower = whole // unit * unit
        given = training.get("globalBatchSize") is not None
        yield Problem(
            ("spec", "training", "globalBatchSize"),
            f"is {whole}{'' if given else ' by default'}, no multiple of {unit} "
            f"({replicas} replicas x {ranks} ranks x microBatchSize {micro})",
            f"write {f'{lower} or ' if lower else ''}{lower + unit}, or another microBatchSize",
        )


def all_linear_stands_alone(spec: Spec) -> Iterator[Problem]:
    """With names beside it, it is unclear what was meant."""
    names = _block(spec, "adapter").get("targetModules")
    if isinstance(names, list) and len(names) > 1 and ALL_LINEAR in names:
        yield Problem(
            ("spec", "adapter", "targetModules"),
            f"{ALL_LINEAR} stands beside other names",
            f"write [{ALL_LINEAR}], or the names alone",
        )


def offload_needs_its_stage(spec: Spec) -> Iterator[Problem]:
    """Only what ZeRO splits over the ranks can be offloaded; Auto takes the stage that is needed."""
    deepspeed = _block(spec, "deepspeed")
    stage = deepspeed.get("stage", "Auto")
    if type(stage) is not int:
        return
    if deepspeed.get("offloadOptimizer") == "CPU" and stage == 0:
        yield Problem(
            ("spec", "deepspeed", "offloadOptimizer"),
            "needs a stage above 0",
            "write stage: 2, or offloadOptimizer: None",
        )
    if deepspeed.get("offloadParameters") == "CPU" and stage in (0, 1, 2):
        yield Problem(
            ("spec", "deepspeed", "offloadParameters"),
            f"needs stage 3, only that splits the parameters; stage is {stage}",
            "write stage: 3, or offloadParameters: None",
        )


def expert_keys_do_not_contradict(spec: Spec) -> Iterator[Problem]:
    """What the job says in its own fields is not said otherwise below `deepspeed.config`."""
    config = _block(_block(spec, "deepspeed"), "config")
    if not config:
        return
    # Imported where it is needed: few jobs have an overlay, and every start would pay for it.
    from finetune_trainer.config.overlay import contradictions

    for path, field in contradictions(config):
        yield Problem(
            ("spec", "deepspeed", "config", *path),
            "is decided by the job",
            f"remove it and set {field} instead",
        )


def warning_ends_below_its_start(spec: Spec) -> Iterator[Problem]:
    """Without a gap the guard flips at every sample."""
    protection = _block(spec, "protection")
    warn = _whole(protection, "warnCelsius", Protection.model_fields["warn_celsius"].default)
    clear = _whole(protection, "clearCelsius", Protection.model_fields["clear_celsius"].default, lowest=0)
    if warn is not None and clear is not None and clear >= warn:
        given = protection.get("clearCelsius") is not None
        yield Problem(
            ("spec", "protection", "clearCelsius"),
            f"is {clear}{'' if given else ' by default'}, must be below warnCelsius ({warn})",
            f"write clearCelsius: {warn - 5}",
        )


def tolerations_obey_pods_rules(spec: Spec) -> Iterator[Problem]:
    """The pods would be refused, and nobody would see that error."""
    for index, toleration in _mappings(_block(spec, "workers").get("tolerations")):
        at: Path = ("spec", "workers", "tolerations", index)
        exists = toleration.get("operator") == "Exists"
        if not toleration.get("key") and toleration.get("operator", "Equal") == "Equal":
            yield Problem(at, "has no key, so operator must be Exists", "write key, or operator: Exists")
        if exists and toleration.get("value"):
            yield Problem(
                (*at, "value"), "stands beside operator Exists", "remove value, or write operator: Equal"
            )
        if toleration.get("tolerationSeconds") is not None and toleration.get("effect") != "NoExecute":
            yield Problem((*at, "tolerationSeconds"), "needs effect NoExecute", "write effect: NoExecute")


def variables_are_named_once(spec: Spec) -> Iterator[Problem]:
    """The list is a map by name."""
    seen: dict[str, int] = {}
    for index, variable in _mappings(_block(spec, "workers").get("environment")):
        name = variable.get("name")
        if not isinstance(name, str):
            continue
        if name in seen:
            at = ("spec", "workers", "environment", index, "name")
            yield Problem(at, f"{name} is set twice, first at environment[{seen[name]}]", "keep one of them")
        seen.setdefault(name, index)


def resources_are_consistent(spec: Spec) -> Iterator[Problem]:
    """GPUs are asked for by number, and a request fits into its limit."""
    workers = _block(spec, "workers")
    resources = _block(workers, "resources")
    gpu = workers.get("resourceName") or Workers.model_fields["resource_name"].default
    for block in ("requests", "limits"):
        if gpu in _block(resources, block):
            at = ("spec", "workers", "resources", block, gpu)
            yield Problem(at, "is asked for by gpusPerWorker", "remove it here")
    for name, limit in _block(resources, "limits").items():
        asked, most = amount(_block(resources, "requests").get(name)), amount(limit)
        if asked is not None and most is not None and asked > most:
            at = ("spec", "workers", "resources", "requests", name)
            yield Problem(at, f"is more than its limit, {limit}", "raise the limit or lower the request")


def _mappings(items: object) -> list[tuple[int, Spec]]:
    if not isinstance(items, list):
        return []
    return [(index, item) for index, item in enumerate(items) if isinstance(item, Mapping)]


RULES: tuple[Callable[[Spec], Iterator[Problem]], ...] = (
    quantization_needs_qlora,
    one_length,
    batches_are_whole,
    all_linear_stands_alone,
    offload_needs_its_stage,
    expert_keys_do_not_contradict,
    warning_ends_below_its_start,
    tolerations_obey_pods_rules,
    variables_are_named_once,
    resources_are_consistent,
)
