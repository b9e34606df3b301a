"""A look at the person's command before the study: what it trains, on how many ranks, which optimizer.

The command runs up to `deepspeed.initialize`, which offtune's hook does not let happen. Covered: the
ds_config for the look, scripts with and without an optimizer of their own, what follows for the study. Not
covered: whether it trains; the first trial shows that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from offtune import command_verdict, scratch
from offtune.command_ranks import CommandRanks
from offtune.ds_quiet import quiet
from offtune.errors import OfftuneError, UsageError
from offtune.model_guess import GUESSED, described
from offtune.model_shape import shape_of
from offtune.rank_report import ProbeReport
from offtune.runner import Launch, TrialRunner, log_tails, run_ranks
from offtune.trial import DsConfig, Precision, TrialSpec, Workload, dump, load

# Odd enough that no file of the person's has it: by it the ds_config is known to be ours.
_MARK = 999_999_937
_TAIL_CHARACTERS = 1500
# Keys of a resolved ds_config that the study decides itself; all others are the script's and stay.
_DECIDED = frozenset({
    "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "zero_optimization",
    "bf16", "fp16", "steps_per_print", "wall_clock_breakdown", "aio",
})  # fmt: skip
_OPTIMIZER_KINDS = ("adagrad", "lion", "adamw", "adam")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What the look has shown: the workload as the study needs it, the model, notes for the person."""

    workload: Workload
    parameter_numels: tuple[int, ...]
    hidden_size: int | None
    notes: tuple[str, ...]


def probe(
    spec: TrialSpec, *, precision_given: bool, own: DsConfig, runner: TrialRunner | None = None
) -> Found:
    """Look at the command of `spec`. Raises OfftuneError with what was seen and what to change.

    `own` is the person's ds_config, "auto" and all, whose other keys the runtime resolves on the way.

    A command that fails is looked at a second time, with an optimizer in the ds_config: accelerate's
    `DummyOptim` wants one there, while the Trainer and accelerate refuse one beside a script's own. A script
    that fails when it is forked from the `runner`'s warm server is looked at in a fresh interpreter.
    """
    ask = partial(_look_twice, spec, precision_given=precision_given, own=own)
    warm = runner if runner is not None and runner.server is not None else None
    seen = ask(warm.command_ranks if warm else CommandRanks)
    if isinstance(seen, str) and warm:
        why, seen = seen, ask(CommandRanks)
        if not isinstance(seen, str):
            warm.stay_cold(why)
    if isinstance(seen, str):
        raise OfftuneError(seen, _HINT)
    return _found(spec.workload, seen)


def _look_twice(
    spec: TrialSpec, launch: Launch, *, precision_given: bool, own: DsConfig
) -> list[ProbeReport] | str:
    seen = _look(spec, launch, optimizer=False, precision_given=precision_given, own=own)
    if isinstance(seen, str):
        second = _look(spec, launch, optimizer=True, precision_given=precision_given, own=own)
        return seen if isinstance(second, str) else second
    return seen


_HINT = "Run the command by itself with a small ds_config; when it trains there, offtune can tune it."


def _look(
    spec: TrialSpec, launch: Launch, *, optimizer: bool, precision_given: bool, own: DsConfig
) -> list[ProbeReport] | str:
    """One run of the command: what each rank reported, or why none did."""
    ds_config = probe_config(spec.workload, optimizer=optimizer, precision_given=precision_given)
    ds_config |= quiet({key: value for key, value in own.items() if key not in _DECIDED}) if own else {}
    spec = replace(
        spec, probe=True, ds_config=ds_config, trial_dir=str(scratch.make_trial_dir(spec.study, -1))
    )
    spec_path = Path(spec.trial_dir) / "spec.json"
    spec_path.write_text(dump(spec))
    try:
        ending = run_ranks(spec, launch, spec_path)
        reports = _reports(Path(spec.trial_dir))
        if reports:
            return _checked(reports, ds_config)
        if ending.cause != "ended":
            return f"deepspeed.initialize was not reached within {spec.deadline_s:.0f} s (--trial-timeout)."
        if refusal := command_verdict.not_warm(spec.trial_dir):
            return refusal
        reason = command_verdict.explain(spec.trial_dir, ending.codes[0])[1]
        return f"{reason}\n{log_tails(spec, ending.codes)[-_TAIL_CHARACTERS:].strip()}"
    finally:
        scratch.remove_trial(spec.trial_dir, None, spec.token)


def probe_config(workload: Workload, *, optimizer: bool, precision_given: bool) -> DsConfig:
    """A ds_config every runtime takes and resolves: "auto" where its own arguments may decide.

    Parameters on the host, so that a model too large for a card can be looked at.
    """
    auto = {"enabled": "auto"}
    # The study's own global batch: a Trainer counts the steps of a whole training by it.
    accumulation = max(1, workload.global_batch // workload.world_size)
    config: DsConfig = {
        "train_batch_size": accumulation * workload.world_size,
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": accumulation,
        "zero_optimization": {
            "stage": 3, "sub_group_size": _MARK, "offload_param": {"device": "cpu", "pin_memory": False},
        },
        "bf16": {"enabled": workload.precision == "bf16"} if precision_given else auto,
        "fp16": {"enabled": workload.precision == "fp16"} if precision_given else auto,
        "gradient_clipping": "auto",
    }  # fmt: skip
    if optimizer:
        config["optimizer"] = {"type": "AdamW", "params": {"lr": "auto", "weight_decay": "auto"}}
    return config


def _reports(folder: Path) -> list[ProbeReport]:
    found = [load(ProbeReport, path.read_bytes()) for path in folder.glob("probe*.json")]
    return sorted(found, key=lambda report: report.rank)


def _checked(reports: list[ProbeReport], ours: DsConfig) -> list[ProbeReport] | str:
    theirs = reports[0].ds_config or {}
    if theirs.get("zero_optimization", {}).get("sub_group_size") != _MARK:
        return (
            "The script called deepspeed.initialize with a configuration of its own, not offtune's. Give "
            "it {ds_config}, or let it read the file named in OFFTUNE_DS_CONFIG."
        )
    if len(reports) < reports[0].world_size:
        return f"Only {len(reports)} of {reports[0].world_size} ranks reached deepspeed.initialize."
    return reports


def _found(workload: Workload, reports: Sequence[ProbeReport]) -> Found:
    first, command = reports[0], workload.command
    assert command is not None
    theirs = _without_auto(first.ds_config or {})
    command = replace(
        command,
        own_optimizer=first.optimizer,
        offloads=not first.optimizer or first.by_accelerate or _is_cpu_optimizer(first.optimizer),
        settings={key: value for key, value in theirs.items() if key not in _DECIDED},
    )
    precision = _precision(theirs, workload.precision)
    kind = next((kind for kind in _OPTIMIZER_KINDS if kind in first.optimizer.lower()), workload.optimizer)
    found = replace(
        workload, command=command, world_size=first.world_size, precision=precision, optimizer=kind,
        model_config=described(first.model_config, first.matrix_shapes),
        activation_checkpointing=first.activation_checkpointing,
    )  # fmt: skip
    return Found(
        workload=found,
        parameter_numels=first.parameter_numels,
        hidden_size=first.hidden_size,
        notes=_notes(found, first),
    )


def _is_cpu_optimizer(name: str) -> bool:
    return name.rpartition(".")[2].startswith("DeepSpeedCPU")


def _precision(theirs: DsConfig, default: Precision) -> Precision:
    """As the runtime resolved it; `default` where it left the matter open."""
    enabled = {name: theirs.get(name, {}).get("enabled") for name in ("bf16", "fp16")}
    if enabled["bf16"]:
        return "bf16"
    if enabled["fp16"]:
        return "fp16"
    return default if enabled["bf16"] is None else "fp32"


def _without_auto(value: Any) -> Any:
    """Words left for the runtime that it did not replace: as if they had not been said."""
    if isinstance(value, dict):
        return {key: _without_auto(item) for key, item in value.items() if item != "auto"}
    return value


def _notes(workload: Workload, report: ProbeReport) -> tuple[str, ...]:
    command = workload.command
    assert command is not None
    ranks = "1 rank" if workload.world_size == 1 else f"{workload.world_size} ranks"
    optimizer = command.own_optimizer or f"{workload.optimizer} from the ds_config"
    runtime = ", through accelerate" if report.by_accelerate else ""
    return (
        f"{workload.model_name} trains {sum(report.parameter_numels) / 1e6:.1f} million parameters in "
        f"{workload.precision} on {ranks}, optimizer: {optimizer}{runtime}.",
        _shape_note(workload.model_config, report.parameter_numels),
    )


def _shape_note(config: dict[str, Any], numels: tuple[int, ...]) -> str:
    """What predictions will go by, once a trial has shown how long the samples are."""
    try:
        shape = shape_of(config, numels) if config else None
    except UsageError:
        shape = None
    if shape is None:
        return "Nothing is predicted: its model is of no family known here, nor built like a decoder."
    family = config["model_type"]
    if shape.exact:
        return f"Its model is of the {family} family: after a first trial, others are predicted."
    looks = "looks like a decoder" if family == GUESSED else f"is a {family} with other parameters than usual"
    size = f"{shape.decoder.layers} layers, {shape.decoder.hidden} wide"
    return (
        f"Its model {looks} ({size}): after a first trial, predictions say what to try first; being guesses, "
        "they refuse nothing."
    )
