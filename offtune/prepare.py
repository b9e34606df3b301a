"""What only the training environment knows, found out before the first trial: ops, parameters, the space.

Covered: building ops, starting the warm server, counting the model's parameters, fitting the space. Not
covered: trials.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from offtune import host, installed, multinode, op_cache, ops, scratch, toolchain
from offtune.command_settings import refuse_change, settle
from offtune.config import Options, RunConfig
from offtune.ds_auto import with_autos
from offtune.ds_zero import placement_text
from offtune.errors import OfftuneError, UsageError
from offtune.knob_workload import decided
from offtune.launch import ServerGone, WarmServer, child_environment
from offtune.models import ModelProfile
from offtune.probe import probe
from offtune.runner import TrialRunner
from offtune.space import Space, load_space
from offtune.trial import Facts, StopRule, TrialSpec, load
from offtune.warm_command import SWITCH, warm_program

Say = Callable[[str], None]
_INSPECT_S = 120.0
_ALWAYS_LOADED = "deepspeed_shm_comm"
_RECORDED_PACKAGES = ("torch", "deepspeed", "transformers", "optuna", "offtune")


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A machine ready for trials: close `runner` when done. `notes` are for the person."""

    config: RunConfig
    facts: Facts
    space: Space
    ops: tuple[str, ...]
    runner: TrialRunner
    notes: tuple[str, ...]


def with_space(config: RunConfig) -> tuple[RunConfig, Space]:
    """The settings of a new study with its space, which may leave what nobody decided as it is."""
    space = load_space(config.space)
    names = [knob.name for knob in space.knobs]
    return replace(config, workload=decided(config.workload, names)), space


def prepare(config: RunConfig, space: Space, say: Say, options: Options | None = None) -> Prepared:
    """Build what is missing, load everything once, and narrow the space to what works here.

    A command is looked at instead; with `options` (a new study) its settings follow from what was seen.
    """
    ready, notes = _ready_ops(config, space, say)
    if config.workload.command is not None:
        return _prepare_command(config, space, say, options, ready, notes)
    runner = new_runner(config, ready, say)
    try:
        profile = profile_model(runner, config) if runner.server else profile_apart(config)
        facts = make_facts(config, profile.parameter_numels, frozenset(ready))
        fitted = space.fit(facts)
    except BaseException:
        runner.close()
        raise
    return Prepared(config=config, facts=facts, space=fitted, ops=ready, runner=runner, notes=notes)


def _prepare_command(
    config: RunConfig,
    space: Space,
    say: Say,
    options: Options | None,
    ready: tuple[str, ...],
    notes: tuple[str, ...],
) -> Prepared:
    runner = new_runner(config, ready, say)
    try:
        say("A first look at the command: it runs up to deepspeed.initialize.")
        config, numels, seen = look(config, ready, options, runner)
        facts = make_facts(config, numels, frozenset(ready))
        fitted = space.fit(facts)
    except BaseException:
        runner.close()
        raise
    return Prepared(config=config, facts=facts, space=fitted, ops=ready, runner=runner,
                    notes=(*seen, *notes))  # fmt: skip


def look(
    config: RunConfig, ready: tuple[str, ...], options: Options | None, runner: TrialRunner | None = None
) -> tuple[RunConfig, tuple[int, ...], tuple[str, ...]]:
    """Settings completed by a look at the command, its parameters, notes. Raises OfftuneError if it fails."""
    spec = TrialSpec(
        **spec_fields(config, ready),
        study="look",
        number=0,
        ds_config={},
        trial_dir="",
        token=scratch.new_token(),
    )
    given = options is None or options.precision is not None or config.base is not None
    own = with_autos(config.base) if config.base is not None else {}
    found = probe(spec, precision_given=given, own=own, runner=runner)
    if options is not None:
        config = settle(config, options, found.workload, found.hidden_size)
    else:
        refuse_change(config, found.workload)
    return config, found.parameter_numels, found.notes


def new_runner(config: RunConfig, ready: tuple[str, ...], say: Say) -> TrialRunner:
    """What runs the trials: here, warm where it can be, or on other nodes, once all have answered."""
    if (command := config.workload.command) is not None:
        warm = warm_program(command.arguments, command.cwd) is not None
        if warm:
            say(
                f"Loading torch and DeepSpeed once; the script starts from there ({SWITCH}=1: start it anew)."
            )
        return TrialRunner(config.device, config.threads_per_rank, ready, "", say, warm=warm)
    model_type = str(config.workload.model_config.get("model_type", ""))
    if config.nodes is None:
        say("Loading torch, DeepSpeed and transformers once; each trial starts from there.")
        return TrialRunner(config.device, config.threads_per_rank, ready, model_type, say)
    hosts = {hello["host"] for hello in multinode.greet(config.nodes, config.device)}
    say(
        f"{config.nodes.world_size} ranks answered from {len(hosts)} hosts through {config.nodes.launcher}; "
        "trials start cold there."
    )
    launch = multinode.launch_on(config.nodes)
    return TrialRunner(config.device, config.threads_per_rank, ready, model_type, say, launch=launch)


def make_facts(config: RunConfig, parameter_numels: tuple[int, ...], ready: frozenset[str]) -> Facts:
    """The facts a point is judged against, from what is known before any trial."""
    return Facts(
        workload=config.workload,
        device=config.device,
        parameter_numels=parameter_numels,
        nvme_dir=config.nvme_path,
        ops=ready,
        deepspeed_version=installed.version("deepspeed") or "0",
        memlock_bytes=host.memlock_bytes(),
    )


def spec_fields(config: RunConfig, ready: tuple[str, ...]) -> dict[str, Any]:
    """The fields of a TrialSpec that are the same for every trial of a study."""
    return {
        "workload": config.workload,
        "device": config.device,
        "gpus": config.gpus,
        "warmup_steps": config.warmup_steps,
        "steps": config.steps,
        "stop": StopRule(accuracy_share=config.accuracy_share) if config.accuracy_share else None,
        "deadline_s": config.trial_timeout_s,
        "limit_bytes": config.limit_bytes,
        "host_limit_bytes": config.host_limit_bytes,
        "threads_per_rank": config.threads_per_rank,
        "ops": ready,
    }


def recorded_versions() -> dict[str, str]:
    """Versions that are stored with a study and compared on resume."""
    return installed.versions(*_RECORDED_PACKAGES)


def needed(config: RunConfig, space: Space) -> tuple[str, ...]:
    """The DeepSpeed ops that trials of this space may load."""
    placements = [str(p) for knob in space.knobs if knob.name == "placement" for p in knob.choices]
    if config.base is not None:
        placements.append(placement_text(config.base.ds_config))
    return ops.needed_ops(
        config.device, config.workload.optimizer, placements, nvme=config.nvme_path is not None
    )


def _ready_ops(config: RunConfig, space: Space, say: Say) -> tuple[tuple[str, ...], tuple[str, ...]]:
    states = ops.prepare(needed(config, space), config.device, say, ops.BUILD_DEADLINE_S)
    ready = tuple(name for name, state in states.items() if state.state == "ready")
    if (lost := states.get(_ALWAYS_LOADED)) is not None and lost.state != "ready":
        # init_distributed compiles it even for one rank: without it every configuration fails alike.
        raise OfftuneError(
            f"DeepSpeed cannot train here: {lost.error}.", lost.remedy or "Run: offtune doctor"
        )
    notes = tuple(
        f"Without {name}: {state.error}. {state.remedy}"
        for name, state in states.items()
        if name not in ready
    )
    return ready, notes


def profile_model(runner: TrialRunner, config: RunConfig) -> ModelProfile:
    """Count the model's parameters in a forked process, on the meta device."""
    assert runner.server is not None
    with tempfile.TemporaryDirectory(prefix="offtune-model-") as folder:
        source, answer = Path(folder) / "config.json", Path(folder) / "profile.json"
        source.write_text(json.dumps(config.workload.model_config))
        _inspect(runner.server, source, answer, config)
        return load(ModelProfile, answer.read_bytes())


def _inspect(server: WarmServer, source: Path, answer: Path, config: RunConfig) -> None:
    try:
        process = server.inspect(source, answer)
    except ServerGone:
        raise OfftuneError(
            "The training environment ended while it was loaded.", "Run: offtune doctor"
        ) from None
    give_up = time.monotonic() + _INSPECT_S
    while not process.poll() and time.monotonic() < give_up:
        time.sleep(0.02)
    process.kill()
    if not answer.exists():
        raise _cannot_build(config)


def profile_apart(config: RunConfig) -> ModelProfile:
    """The same count in a process of its own, for when no warm server is wanted."""
    answer = subprocess.run(
        [sys.executable, "-m", "offtune.worker.inspect_model"],
        input=json.dumps(config.workload.model_config).encode(),
        capture_output=True,
        env=child_environment(config.device, config.threads_per_rank),
        timeout=_INSPECT_S,
        check=False,
    )
    if answer.returncode != 0:
        raise _cannot_build(config)
    return load(ModelProfile, answer.stdout)


def expected_ops(config: RunConfig, space: Space) -> tuple[frozenset[str], tuple[str, ...]]:
    """The ops a search would have, and notes on those it would build or lack; builds nothing."""
    wanted = needed(config, space)
    missing = [op for op in wanted if not op_cache.built(op)]
    lacks = {op: _lacks(op) for op in missing}
    notes = [f"{op} would be built first." for op in missing if not lacks[op]]
    notes += [f"Without {op}: {lack.what}. {lack.remedy}" for op in missing for lack in lacks[op]]
    return frozenset(op for op in wanted if not lacks.get(op)), tuple(notes)


def _lacks(op: str) -> tuple[toolchain.Lack, ...]:
    needs_libaio = op == "async_io" and toolchain.libaio_header() is None
    return (*toolchain.lacks(), *((toolchain.NO_LIBAIO,) if needs_libaio else ()))


def _cannot_build(config: RunConfig) -> UsageError:
    return UsageError(
        f"--model: transformers cannot build '{config.workload.model_name}' from its configuration.",
        "See the model's config.json; a preset such as llama-5m works.",
    )
