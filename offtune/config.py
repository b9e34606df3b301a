"""RunConfig: everything a study needs, resolved from what the person typed before the first trial.

Covered: budgets, workload, device and ranks, limits, their defaults and the messages when they do not fit.
Not covered: what only the training environment knows (parameter counts, ops), see `prepare.py`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from offtune import hardware, installed
from offtune.budgets import budget_bytes, headroom_bytes, host_limit_bytes
from offtune.command import command_workload, parse_command, refuse_beside
from offtune.convergence import ends_early
from offtune.ds_change import Base
from offtune.ds_settle import Wishes, settle_file
from offtune.errors import UsageError
from offtune.hardware import Machine
from offtune.models import Model, default_preset, max_positions, resolve_model
from offtune.multinode import Nodes, resolve_nodes
from offtune.scratch import swap_folder
from offtune.trial import DeviceKind, DsConfig, Precision, Workload
from offtune.trial_length import MOST_STEPS, accuracy_share
from offtune.units import parse_seconds

OPTIMIZERS = ("adamw", "adam", "lion", "adagrad")
# Eight samples a rank let the default search finish in minutes on two cores; a GPU wants more to be busy.
_SAMPLES_PER_RANK = {"cpu": 8, "cuda": 32}
_SEQ_LEN = {"cpu": 128, "cuda": 1024}
_TRIALS = 40
# The first step allocates optimizer states and records ZeRO-3's trace, the second is the first with prefetch.
_WARMUP_STEPS = 2
_PRECISION = "bf16"
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
    precision: str | None = None
    optimizer: str | None = None
    activation_checkpointing: bool | None = None
    gpus: int | None = None
    hostfile: str | None = None
    launcher: str | None = None
    shared_dir: str | None = None
    device: str | None = None
    nvme_path: str | None = None
    base: str | None = None
    space: str = "default"
    trials: int | None = None
    time: str | None = None
    trial_timeout: str | None = None
    warmup_steps: int = _WARMUP_STEPS
    steps: int | None = None
    accuracy: str | None = None
    seed: int = 0
    sampler: str = "offtune"
    until_converged: bool = False
    predict: bool = True
    command: tuple[str, ...] | None = None
    trial_cwd: str = "here"
    loss_check: bool = True
    finals: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class RunConfig:
    """A study's settings, complete. Stored with the study; a resume compares them field by field.

    `limit_bytes` is the budget less headroom, per rank; `gpus` are NVML indices, empty without CUDA; with
    `nodes` they are this node's, the others being like it. `base` is the person's own ds_config, which is
    under every point. With `until_converged` the study may end before `trials`. With `accuracy_share` a trial
    stops once its step time is known that well, and `steps` are the most it measures; None: it measures
    exactly `steps`.
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
    base: Base | None = None
    nodes: Nodes | None = None
    loss_check: bool = True
    until_converged: bool = False
    accuracy_share: float | None = None
    finals: bool = True

    @property
    def under_points(self) -> DsConfig:
        """The ds_config that points are laid over: the person's file and what their script fixes."""
        own = self.base.ds_config if self.base else {}
        command = self.workload.command
        return own if command is None else {**own, **command.settings}


def resolve(options: Options, machine: Machine) -> RunConfig:
    """Read and check every option against the machine. Raises UsageError naming the option."""
    nodes = resolve_nodes(
        options.hostfile, options.launcher, options.shared_dir, options.gpus, options.command
    )
    if nodes is not None:
        options = replace(options, gpus=nodes.ranks_per_node)
    device = _device(options, machine)
    gpus = _gpus(options, machine, device)
    ranks_here = len(gpus) or _positive(1 if options.gpus is None else options.gpus, "--gpus")
    world_size = nodes.world_size if nodes else ranks_here
    budget = budget_bytes(options.budget, machine, gpus)
    model = None if options.command is not None else resolve_model(options.model or default_preset(device))
    options, base = with_base(options, model.config if model else None, device, world_size)
    return RunConfig(
        workload=_workload(options, model, device, world_size),
        device=device,
        gpus=gpus,
        # One core is left to the system and to offtune: shared cores are what makes step times jump.
        threads_per_rank=max(1, (machine.cores - 1) // ranks_here),
        budget_bytes=budget,
        limit_bytes=budget - headroom_bytes(options.headroom, budget),
        host_limit_bytes=host_limit_bytes(options.host_budget),
        nvme_path=swap_folder(options.nvme_path),
        space=options.space,
        trials=_positive(options.trials if options.trials is not None else _TRIALS, "--trials"),
        time_s=parse_seconds(options.time, "--time") if options.time else None,
        trial_timeout_s=_trial_timeout(options),
        warmup_steps=_positive(options.warmup_steps, "--warmup-steps", least=0),
        steps=_positive(MOST_STEPS if options.steps is None else options.steps, "--steps"),
        accuracy_share=accuracy_share(options.steps, options.accuracy),
        seed=_positive(options.seed, "--seed", least=0),
        sampler=options.sampler,
        machine=hardware.fingerprint(machine, device, gpus),
        predict=options.predict,
        base=base,
        nodes=nodes,
        loss_check=options.loss_check,
        until_converged=ends_early(options.until_converged, options.trials, options.sampler),
        finals=options.finals,
    )


def with_base(
    options: Options, model_config: dict[str, Any] | None, device: DeviceKind, world_size: int
) -> tuple[Options, Base | None]:
    """The options with what the person's ds_config decides, where they leave it open.

    `model_config` is None as long as only the person's script knows the model.
    """
    if options.base is None:
        return options, None
    if options.global_batch is not None:
        _positive(options.global_batch, "--global-batch")
    wishes = Wishes(
        device=device, world_size=world_size, optimizers=OPTIMIZERS, model_config=model_config,
        default_batch=_SAMPLES_PER_RANK[device] * world_size, precision=options.precision,
        optimizer=options.optimizer, global_batch=options.global_batch, nvme_path=options.nvme_path,
    )  # fmt: skip
    found = settle_file(Path(options.base).expanduser(), installed.version("deepspeed") or "0", wishes)
    decided = replace(
        options, precision=found.precision, optimizer=found.optimizer, global_batch=found.global_batch,
        nvme_path=found.nvme_path,
    )  # fmt: skip
    return decided, found.base


def _trial_timeout(options: Options) -> float:
    given = options.trial_timeout
    return parse_seconds(given, "--trial-timeout") if given else _TRIAL_TIMEOUT_S


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


def _workload(options: Options, model: Model | None, device: DeviceKind, world_size: int) -> Workload:
    optimizer = options.optimizer if options.optimizer is not None else OPTIMIZERS[0]
    if optimizer not in OPTIMIZERS:
        raise UsageError(f"--optimizer: unknown '{optimizer}'.", f"One of: {', '.join(OPTIMIZERS)}.")
    precision = _precision("bf16" if options.precision is None else options.precision, device)
    if options.command is not None:
        refuse_beside({"--model": options.model, "--seq-len": options.seq_len,
                       "--activation-checkpointing": options.activation_checkpointing})  # fmt: skip
        return command_workload(
            parse_command(options.command, str(Path.cwd()), options.trial_cwd),
            global_batch=global_batch(options.global_batch, world_size, device), world_size=world_size,
            precision=precision, optimizer=optimizer, seed=options.seed,
        )  # fmt: skip
    assert model is not None
    return Workload(
        model_name=model.name,
        model_config=model.config,
        seq_len=_seq_len(options.seq_len, model, device),
        global_batch=global_batch(options.global_batch, world_size, device),
        world_size=world_size,
        precision=precision,
        optimizer=optimizer,
        activation_checkpointing=options.activation_checkpointing,
        seed=options.seed,
    )


def _precision(given: str | None, device: DeviceKind) -> Precision:
    text = _PRECISION if given is None else given
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


def global_batch(given: int | None, world_size: int, device: DeviceKind) -> int:
    """Samples a step: `given`, or so many a rank. Raises UsageError where ranks cannot share them."""
    batch = _positive(
        given if given is not None else _SAMPLES_PER_RANK[device] * world_size, "--global-batch"
    )
    if batch % world_size:
        near = max(world_size, batch // world_size * world_size)
        raise UsageError(
            f"--global-batch {batch} cannot be split over {world_size} ranks.", f"Use --global-batch {near}."
        )
    return batch


def _positive(value: int, option: str, least: int = 1) -> int:
    if value < least:
        raise UsageError(
            f"{option} {value}: must be at least {least}.", f"Leave {option} out for the default."
        )
    return value
