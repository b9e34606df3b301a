"""RunConfig: everything a study needs, resolved from what the person typed before the first trial.

Covered: budgets, workload, device and ranks, limits, their defaults and the messages when they do not fit.
Not covered: what only the training environment knows (parameter counts, ops), see `prepare.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from offtune import hardware, installed
from offtune.errors import UsageError
from offtune.hardware import Machine
from offtune.models import Model, default_preset, resolve_model
from offtune.trial import DeviceKind, Precision, Workload
from offtune.units import format_bytes, parse_bytes, parse_seconds

OPTIMIZERS = ("adamw", "adam", "lion", "adagrad")
# Share of the host memory available at the start that trials may use together (design, section 2).
_HOST_SHARE = 0.9
# Eight samples a rank let the default search finish in minutes on two cores; a GPU wants more to be busy.
_SAMPLES_PER_RANK = {"cpu": 8, "cuda": 32}
_SEQ_LEN = {"cpu": 128, "cuda": 1024}
_TRIALS = 40
# The first step allocates optimizer states and records ZeRO-3's trace, the second is the first with prefetch.
_WARMUP_STEPS = 2
_STEPS = 5
_TRIAL_TIMEOUT_S = 600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the person typed, unread; None is "not given"."""

    budget: str | None = None
    host_budget: str | None = None
    headroom: str | None = None
    model: str | None = None
    seq_len: int | None = None
    global_batch: int | None = None
    precision: str = "bf16"
    optimizer: str = "adamw"
    activation_checkpointing: bool = False
    gpus: int | None = None
    device: str | None = None
    nvme_path: str | None = None
    space: str = "default"
    trials: int | None = None
    time: str | None = None
    trial_timeout: str | None = None
    warmup_steps: int = _WARMUP_STEPS
    steps: int = _STEPS
    seed: int = 0
    sampler: str = "tpe"
    predict: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A study's settings, complete. Stored with the study; a resume compares them field by field.

    `limit_bytes` is the budget less headroom, per rank; `gpus` are NVML indices, empty without CUDA.
    """

    workload: Workload
    device: DeviceKind
    gpus: tuple[int, ...]
    threads_per_rank: int
    budget_bytes: int
    limit_bytes: int
    host_limit_bytes: int
    nvme_path: str | None
    space: str
    trials: int
    time_s: float | None
    trial_timeout_s: float
    warmup_steps: int
    steps: int
    seed: int
    sampler: str
    machine: dict[str, str]
    predict: bool = True


def resolve(options: Options, machine: Machine) -> RunConfig:
    """Read and check every option against the machine. Raises UsageError naming the option."""
    device = _device(options, machine)
    gpus = _gpus(options, machine, device)
    world_size = len(gpus) or _positive(1 if options.gpus is None else options.gpus, "--gpus")
    budget = _budget(options, machine, gpus)
    return RunConfig(
        workload=_workload(options, device, world_size),
        device=device,
        gpus=gpus,
        # One core is left to the system and to offtune: shared cores are what makes step times jump.
        threads_per_rank=max(1, (machine.cores - 1) // world_size),
        budget_bytes=budget,
        limit_bytes=budget - _headroom(options.headroom, budget),
        host_limit_bytes=_host_limit(options),
        nvme_path=_nvme_path(options.nvme_path),
        space=options.space,
        trials=_positive(options.trials if options.trials is not None else _TRIALS, "--trials"),
        time_s=parse_seconds(options.time, "--time") if options.time else None,
        trial_timeout_s=_trial_timeout(options),
        warmup_steps=_positive(options.warmup_steps, "--warmup-steps", least=0),
        steps=_positive(options.steps, "--steps"),
        seed=_positive(options.seed, "--seed", least=0),
        sampler=options.sampler,
        machine=hardware.fingerprint(machine, device, gpus),
        predict=options.predict,
    )


def _trial_timeout(options: Options) -> float:
    return (
        parse_seconds(options.trial_timeout, "--trial-timeout") if options.trial_timeout else _TRIAL_TIMEOUT_S
    )


def _device(options: Options, machine: Machine) -> DeviceKind:
    has_cuda = bool(hardware.cuda_gpus(machine))
    if has_cuda and options.device != "cpu" and not torch_has_cuda():
        raise UsageError(
            "There is a GPU here, but torch is a build without CUDA.",
            "Install a CUDA build of torch, or say --device cpu to train without the GPU.",
        )
    if options.device is None:
        return "cuda" if has_cuda else "cpu"
    if options.device not in get_args(DeviceKind):
        raise UsageError(
            f"--device: '{options.device}' is neither cuda nor cpu.",
            "Leave --device out to use what is there.",
        )
    if options.device == "cuda" and not has_cuda:
        raise UsageError("--device cuda: no CUDA GPU is visible here.", "Run: offtune doctor")
    return "cuda" if options.device == "cuda" else "cpu"


def torch_has_cuda() -> bool:
    """Whether the installed torch was built for CUDA."""
    build = installed.torch_build()
    return build is not None and build.cuda is not None


def _gpus(options: Options, machine: Machine, device: DeviceKind) -> tuple[int, ...]:
    if device == "cpu":
        return ()
    visible = hardware.cuda_gpus(machine)
    wanted = _positive(options.gpus if options.gpus is not None else len(visible), "--gpus")
    if wanted > len(visible):
        raise UsageError(
            f"--gpus {wanted}: only {len(visible)} visible.",
            "Look at CUDA_VISIBLE_DEVICES, or ask for fewer.",
        )
    return tuple(gpu.index for gpu in visible[:wanted])


def _budget(options: Options, machine: Machine, gpus: tuple[int, ...]) -> int:
    if options.budget is not None:
        return parse_bytes(options.budget, "--budget")
    cards = [gpu.memory_bytes for gpu in machine.gpus if gpu.index in gpus]
    if not cards:
        raise UsageError(
            "--budget is missing: without a GPU there is no card size to take it from.", "Try: --budget 2GB"
        )
    return min(cards)


def _headroom(text: str | None, budget: int) -> int:
    """Bytes to keep free below the budget, from a size or a percentage."""
    if text is None:
        return 0
    if text.strip().endswith("%"):
        try:
            share = float(text.strip()[:-1]) / 100
        except ValueError:
            raise UsageError(
                f"--headroom: '{text}' is not a percentage.", "Write it like 5% or 2GB."
            ) from None
        headroom = round(budget * share)
    else:
        headroom = parse_bytes(text, "--headroom")
    if not 0 <= headroom < budget:
        raise UsageError(
            f"--headroom: {text} leaves nothing of {format_bytes(budget)}.", "Write it like 5% or 2GB."
        )
    return headroom


def _host_limit(options: Options) -> int:
    if options.host_budget is not None:
        return parse_bytes(options.host_budget, "--host-budget")
    return int(hardware.available_host_bytes() * _HOST_SHARE)


def _workload(options: Options, device: DeviceKind, world_size: int) -> Workload:
    model = resolve_model(options.model or default_preset(device))
    if options.optimizer not in OPTIMIZERS:
        raise UsageError(f"--optimizer: unknown '{options.optimizer}'.", f"One of: {', '.join(OPTIMIZERS)}.")
    return Workload(
        model_name=model.name,
        model_config=model.config,
        seq_len=_seq_len(options.seq_len, model, device),
        global_batch=_global_batch(options.global_batch, world_size, device),
        world_size=world_size,
        precision=_precision(options.precision, device),
        optimizer=options.optimizer,
        activation_checkpointing=options.activation_checkpointing,
        seed=options.seed,
    )


def _precision(text: str, device: DeviceKind) -> Precision:
    if text not in get_args(Precision):
        raise UsageError(f"--precision: unknown '{text}'.", "One of: bf16, fp16, fp32.")
    if text == "fp16" and device == "cpu":
        raise UsageError(
            "--precision fp16: DeepSpeed's CPU accelerator does not have it.", "Use bf16 or fp32."
        )
    precision: Precision = text  # type: ignore[assignment]
    return precision


def _seq_len(given: int | None, model: Model, device: DeviceKind) -> int:
    longest = max_positions(model.config)
    if given is None:
        return min(_SEQ_LEN[device], longest or _SEQ_LEN[device])
    if longest is not None and given > longest:
        raise UsageError(
            f"--seq-len {given}: {model.name} takes at most {longest} tokens.",
            f"Use --seq-len {longest} or less.",
        )
    return _positive(given, "--seq-len")


def max_positions(config: dict[str, Any]) -> int | None:
    """The longest sequence of a Hugging Face configuration, under whichever name it carries it."""
    for key in ("max_position_embeddings", "n_positions", "max_seq_len", "n_ctx"):
        if isinstance(config.get(key), int):
            return int(config[key])
    return None


def _global_batch(given: int | None, world_size: int, device: DeviceKind) -> int:
    batch = _positive(
        given if given is not None else _SAMPLES_PER_RANK[device] * world_size, "--global-batch"
    )
    if batch % world_size:
        near = max(world_size, batch // world_size * world_size)
        raise UsageError(
            f"--global-batch {batch} cannot be split over {world_size} ranks.", f"Use --global-batch {near}."
        )
    return batch


def _nvme_path(text: str | None) -> str | None:
    if text is None:
        return None
    path = Path(text).expanduser().resolve()
    if not path.is_dir():
        raise UsageError(
            f"--nvme-path: there is no folder '{text}'.", f"Make it (mkdir -p {text}) or name another."
        )
    probe = path / ".offtune-writable"
    try:
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"--nvme-path: cannot write to '{text}' ({error.strerror}).", "Name a writable folder."
        ) from error
    return str(path)


def _positive(value: int, option: str, least: int = 1) -> int:
    if value < least:
        raise UsageError(
            f"{option} {value}: must be at least {least}.", f"Leave {option} out for the default."
        )
    return value
