"""Measure this machine: prepare DeepSpeed's ops, let the child measure, keep what it found.

Covered: a deadline, a child that hangs, dies or reports garbage; figures that are missing say why. Not
covered: measuring (`worker/calibrate.py`), the profile made of the figures (`calibrated_profile.py`).
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from offtune import calibration, hardware, host, ops, scratch
from offtune.calibration import BYTES, Calibration, Figure, Task
from offtune.child_lines import ReportingChild
from offtune.config import Options, RunConfig, resolve
from offtune.errors import OfftuneError, UsageError
from offtune.hardware import Machine
from offtune.launch import child_environment
from offtune.ops import OpState, Say
from offtune.records import utc_now
from offtune.trial import dump, load

COMMAND = (sys.executable, "-m", "offtune.worker.calibrate")
# A calm machine needs a minute, imports included; with five processes a core it took three (two cores).
DEADLINE_S = 420.0
_BUDGET_S, _QUICK_BUDGET_S = 1.0, 0.2  # for one figure; there are 20 to 35
_BUSY_LOAD_PER_CORE = 0.5
_NEEDS_OP = {"CPU Adam": "cpu_adam", "storage": "async_io", "layers": "deepspeed_shm_comm"}
_ANY_BUDGET = "1GB"  # `resolve` wants one; nothing here depends on it


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What a person asks for; `gpus` are ranks. `quick` measures each figure briefly, and no layers."""

    nvme_path: str | None = None
    gpus: int | None = None
    device: str | None = None
    quick: bool = False
    deadline_s: float = DEADLINE_S


def check_output(path: Path | None, force: bool) -> None:
    """Raise UsageError where the profile could not be written or later be read, before a minute is spent."""
    if path is None:
        return
    if path.suffix not in (".yaml", ".yml"):
        raise UsageError(f"-o {path}: a hardware profile is a YAML file.", f"Try: -o {path.stem}.yaml")
    if not path.parent.is_dir():
        raise UsageError(f"-o {path}: there is no folder {path.parent}.", f"mkdir -p {path.parent}")
    if path.exists() and not force:
        raise UsageError(
            f"{path} exists already.", "Overwrite it with --force, or name another file with -o."
        )


def calibrate(settings: Settings, say: Say, command: Sequence[str] = COMMAND) -> Calibration:
    """Measure what is there; `command` is the child, which gets a Task as JSON.

    Raises UsageError for options that cannot be met, OfftuneError when nothing at all could be measured.
    """
    machine = hardware.detect()
    config = _resolved(settings, machine)
    states = _ops(config, say)
    load_before, began = host.load_per_core(), time.monotonic()
    for warning in _busy(load_before):
        say(warning)
    found = _measure(settings, config, machine, states, say, command)
    return Calibration(
        measured_at=utc_now(),
        device=config.device,
        ranks=config.workload.world_size,
        threads=config.threads_per_rank,
        load_per_core=load_before,
        seconds=time.monotonic() - began,
        fingerprint=config.machine,
        figures=(*_sizes(config, machine), *found),
        notes=(*_busy(max(load_before, host.load_per_core())), *_lost(states)),
    )


def _resolved(settings: Settings, machine: Machine) -> RunConfig:
    """The settings that a search with the same options would have: device, ranks, threads, folder."""
    return resolve(
        Options(budget=_ANY_BUDGET, gpus=settings.gpus, device=settings.device, nvme_path=settings.nvme_path),
        machine,
    )


def _ops(config: RunConfig, say: Say) -> dict[str, OpState]:
    names = ops.needed_ops(config.device, "adamw", ["zero3 opt=cpu"], nvme=config.nvme_path is not None)
    return ops.prepare(names, config.device, say)


def _busy(load: float) -> list[str]:
    if load < _BUSY_LOAD_PER_CORE:
        return []
    return [f"Others use this machine (load {load:.1f} per core): rates come out too low, and they scatter."]


def _lost(states: Mapping[str, OpState]) -> list[str]:
    lost = (state for state in states.values() if state.state != "ready")
    return [f"Without {state.op}: {state.error}. {state.remedy}".strip() for state in lost]


def _sizes(config: RunConfig, machine: Machine) -> tuple[Figure, ...]:
    """What needs no measuring."""
    cards = [gpu.memory_bytes for gpu in machine.gpus if gpu.index in config.gpus]
    size = min(cards, default=machine.memory_bytes)
    detail = "as the driver reports it" if cards else "the host's: there is no device"
    return (
        Figure(key="memory.device", value=float(size), unit=BYTES, detail=detail),
        Figure(
            key="memory.host", value=float(machine.memory_bytes), unit=BYTES,
            detail="as the kernel and the control group limit it",
        ),
    )  # fmt: skip


def _measure(
    settings: Settings, config: RunConfig, machine: Machine, states: Mapping[str, OpState], say: Say,
    command: Sequence[str],
) -> list[Figure]:  # fmt: skip
    """All figures of all sections, those that could not be measured included."""
    wanted = [name for name in calibration.SECTIONS if not (settings.quick and name == "layers")]
    unready = {name: reason for name in wanted if (reason := _lacking(name, states))}
    token = scratch.new_token()
    with tempfile.TemporaryDirectory(prefix="offtune-calibrate-") as folder, _swap(config) as swap:
        task = Task(
            device=config.device,
            sections=tuple(name for name in wanted if name not in unready),
            threads=config.threads_per_rank,
            cores=machine.cores,
            ranks=config.workload.world_size,
            budget_s=_QUICK_BUDGET_S if settings.quick else _BUDGET_S,
            gpu=config.gpus[0] if config.gpus else None,
            nvme_dir=swap,
            scratch_dir=folder,
            token=token,
        )
        try:
            figures = _figures([*command, dump(task)], task, config, settings.deadline_s, unready, say)
        finally:
            scratch.remove_swap_and_shm(None, token)
    return figures


def _lacking(section: str, states: Mapping[str, OpState]) -> str:
    """Why a section cannot be measured: the op it needs was not to be had; empty when it can."""
    state = states.get(_NEEDS_OP.get(section, ""))
    return f"without {state.op}: {state.error}" if state is not None and state.state != "ready" else ""


@contextmanager
def _swap(config: RunConfig) -> Iterator[str | None]:
    """A folder of our own under --nvme-path, removed afterwards; None without one."""
    if config.nvme_path is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="offtune-calibrate-", dir=config.nvme_path) as folder:
        yield folder


def _figures(
    command: Sequence[str],
    task: Task,
    config: RunConfig,
    deadline_s: float,
    reasons: dict[str, str],
    say: Say,
) -> list[Figure]:
    by_key: dict[str, Figure] = {}
    section = "start"
    finished = False
    with ReportingChild(command, _environment(config, task)) as child:
        for event in child.events(deadline_s):
            if event.get("event") == "begin" and event.get("section") in calibration.SECTIONS:
                section = event["section"]
                say(f"measuring {section}")
            elif event.get("event") == "failed":
                reasons[section] = str(event.get("error"))
            elif event.get("event") == "end":
                finished = True
                break
            else:
                by_key |= _figure(event)
        ended = "" if finished else f"{child.ending()} (at: {section})"
    found = list(by_key.values())
    if not any(figure.value is not None for figure in found):
        why = ended or "; ".join(f"{name}: {reason}" for name, reason in reasons.items())
        raise OfftuneError(f"Nothing could be measured: {why}.", "Run: offtune doctor")
    return [*found, *_missing(found, (*task.sections, *reasons), reasons, ended)]


def _environment(config: RunConfig, task: Task) -> dict[str, str]:
    """As trials have it, with all cores for OpenMP, and all cards of the ranks visible."""
    environment = child_environment(config.device, task.cores)
    if config.gpus:
        cards = ",".join(str(index) for index in config.gpus)
        # NVML counts cards in PCI order, CUDA by default in order of speed.
        environment |= {"CUDA_DEVICE_ORDER": "PCI_BUS_ID", "CUDA_VISIBLE_DEVICES": cards}
    return environment


def _figure(event: Mapping[str, Any]) -> dict[str, Figure]:
    """The figure in an event, by its key; nothing for one that is none."""
    fields = {name: value for name, value in event.items() if name != "event"}
    try:
        figure = load(Figure, json.dumps(fields))
    except ValueError:
        return {}
    return {figure.key: figure}


def _missing(
    found: Iterable[Figure], sections: Iterable[str], reasons: Mapping[str, str], ended: str
) -> Iterator[Figure]:
    """What no figure came for, with the reason."""
    keys = [figure.key for figure in found]
    for section in dict.fromkeys(sections):
        for prefix, unit in calibration.SECTIONS[section]:
            if not any(key.startswith(prefix) for key in keys):
                reason = reasons.get(section) or ended or "the measuring process reported none"
                yield Figure(key=prefix, value=None, unit=unit, detail=reason)
