"""offtune inside the person's own process: around `deepspeed.initialize`, and at the end of the process.

Covered: checking what DeepSpeed is about to be given, the look before a study (probe), reports of every
ending. Not covered: the steps themselves (`watch.py`) and getting here (`inject/sitecustomize.py`).
"""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, NoReturn

import deepspeed
import torch
import torch.distributed as dist

from offtune.rank_report import Failure, ProbeReport, RankReport
from offtune.trial import TrialSpec, dump, load
from offtune.worker import level, seen_model
from offtune.worker.compare import differences, given_config, without_auto
from offtune.worker.failures import INITIALIZE, described
from offtune.worker.rank import write
from offtune.worker.record import Record, gpu_of
from offtune.worker.watch import Watch

_SHOWN_DIFFERENCES = 6


def attach(before_initialize: Callable[[], None] = lambda: None) -> None:
    """Called once deepspeed is imported, in every process of a command that imports it."""
    before = level.resident_now()
    spec = load(TrialSpec, Path(os.environ["OFFTUNE_SPEC"]).read_bytes())
    hook = Hook(spec, before_initialize)
    _touch(spec, f"imported-{os.getpid()}")
    deepspeed.initialize = hook.around(deepspeed.initialize)
    if spec.probe:
        _take_auto_for_unsaid()
    sys.excepthook = hook.around_excepthook(sys.excepthook)
    atexit.register(hook.at_exit)
    level.add_to_level(level.resident_now() - before)


class Hook:
    """One process of a command: at most one engine of it is watched, the first that is made."""

    def __init__(self, spec: TrialSpec, before_initialize: Callable[[], None] = lambda: None) -> None:
        self.spec = spec
        self._before_initialize = before_initialize
        self.record: Record | None = None
        self._pid = os.getpid()
        self._failure: BaseException | None = None
        self._early: Record | None = None
        self._engine: Watch | None = None
        if not spec.probe:
            level.when_model_begins(self._watch_memory)

    def _watch_memory(self) -> None:
        """A model is about to be built, before anything is known of ranks but what the environment says."""
        gpu = gpu_of(self.spec, int(os.environ.get("LOCAL_RANK", "0")))
        self._early = Record(self.spec, int(os.environ.get("RANK", "0")), gpu)
        self._early.watch_memory(level.level_bytes())

    def around(self, initialize: Callable[..., Any]) -> Callable[..., Any]:
        """`deepspeed.initialize` with our checks before it and our watch on its engine."""

        def watched_initialize(*args: Any, **kwargs: Any) -> Any:
            if self.record is not None:
                return initialize(*args, **kwargs)
            self._before_initialize()
            config = given_config(args, kwargs)
            _touch(self.spec, f"port-{os.environ.get('MASTER_PORT', '')}")
            if self.spec.probe:
                self._leave_probe(args, kwargs, config)
            self._begin()
            self._check_arguments(
                _class_name(kwargs.get("optimizer", args[2] if len(args) > 2 else None)), config
            )
            try:
                made = initialize(*args, **kwargs)
            except Exception as error:
                self._failure = error
                raise
            self._watch(made[0])
            return made

        return watched_initialize

    def _leave_probe(self, args: Any, kwargs: dict[str, Any], config: Any) -> NoReturn:
        """Write down what was seen and end the process here, before anything is moved or allocated."""
        model = kwargs.get("model", args[1] if len(args) > 1 else None)
        caller = sys._getframe(2).f_globals.get("__name__", "")
        found = ProbeReport(
            rank=_rank(),
            world_size=_world_size(),
            parameter_numels=seen_model.numels(model),
            ds_config=config,
            optimizer=_class_name(kwargs.get("optimizer", args[2] if len(args) > 2 else None)),
            by_accelerate=caller.startswith("accelerate."),
            hidden_size=seen_model.hidden_size(model),
            model_config=seen_model.configuration(model),
            matrix_shapes=seen_model.matrix_shapes(model),
            activation_checkpointing=seen_model.checkpoints_activations(model),
        )
        draft = Path(self.spec.trial_dir) / f"probe{found.rank}.tmp"
        draft.write_text(dump(found))
        draft.rename(draft.with_suffix(".json"))
        _leave(0)

    def _begin(self) -> None:
        """From here on this process is a rank."""
        if self._early is None:
            self._watch_memory()
        assert self._early is not None
        self.record = self._early
        self.record.rank = _rank()
        self.record.enter(INITIALIZE)
        if self.spec.device == "cuda":
            self.record.cap_allocator(torch.device("cuda", torch.cuda.current_device()))

    def _check_arguments(self, optimizer: str, config: Any) -> None:
        if config is None:
            self._refuse(
                "deepspeed.initialize was called without a configuration that could be read. " + _PASS_IT
            )
        found = differences(self.spec.ds_config, config)
        if found:
            more = f" and {len(found) - _SHOWN_DIFFERENCES} more" if len(found) > _SHOWN_DIFFERENCES else ""
            shown = ", ".join(found[:_SHOWN_DIFFERENCES])
            self._refuse(f"The script overrode the configuration: {shown}{more}. {_PASS_IT}")
        offload = config.get("zero_optimization", {}).get("offload_optimizer") or {}
        if offload.get("device", "none") != "none" and optimizer and not takes_offload(optimizer):
            self._refuse(
                f"The script builds its optimizer itself ({optimizer}), which DeepSpeed does not offload. "
                "Leave `optimizer` out of deepspeed.initialize (offtune writes one into the ds_config), or "
                "build deepspeed.ops.adam.DeepSpeedCPUAdam."
            )

    def _watch(self, engine: Any) -> None:
        assert self.record is not None
        wanted, found = self.spec.workload.global_batch, int(engine.train_batch_size())
        if found != wanted or _world_size() != self.spec.workload.world_size:
            self._refuse(
                f"The engine trains {found} samples a step on {_world_size()} ranks; the study has {wanted} "
                f"on {self.spec.workload.world_size}. Start the same number of ranks, and leave the batch "
                "size to the ds_config."
            )
        if not hasattr(engine, "backward") or type(engine).__name__.startswith(("Pipeline", "DualPipe")):
            self._refuse(
                "The script trains a pipeline engine, which offtune does not watch. Use ZeRO without it."
            )
        self.record.enter("wait for the first step")
        self._engine = Watch(self.record, engine, finish=self._finish, refuse=self._refuse)

    def _finish(self, report: RankReport) -> NoReturn:
        """Every rank writes, and only then any of them ends: launchers kill the others when one has gone."""
        write(self.spec, report)
        assert self.record is not None
        self.record.barrier()
        _leave(0)

    def _refuse(self, reason: str) -> NoReturn:
        assert self.record is not None
        print(f"offtune: {reason}", file=sys.stderr, flush=True)  # noqa: T201 into the trial's log
        write(self.spec, self.record.report("invalid", reason))
        _leave(1)

    def around_excepthook(self, original: Callable[..., Any]) -> Callable[..., Any]:
        """What the interpreter calls for an exception that nobody caught."""

        def watched(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            self._failure = self._failure or error
            original(kind, error, trace)

        return watched

    def at_exit(self) -> None:
        """The script has ended before offtune ended it."""
        if os.getpid() != self._pid:  # a forked data loader worker
            return
        if self.record is None:
            if self._failure is not None:
                _leave_failure(self.spec, self._failure)
        elif self._failure is not None:
            watch = self._engine
            failed = watch.failed if watch is not None else self.record.failed
            write(self.spec, failed(self._failure))
        elif self._engine is not None and self._engine.is_usable:
            write(self.spec, self._engine.report())
        else:
            write(self.spec, self.record.report("crashed", _ended_early(self.record)))


_PASS_IT = (
    "Give {ds_config} (or the file named in OFFTUNE_DS_CONFIG) to deepspeed.initialize as it is, and batch "
    "sizes by {micro_batch} and {grad_accum}."
)


def takes_offload(optimizer: str) -> bool:
    """Whether DeepSpeed offloads an optimizer of this class: only its own for the CPU (engine.py, 0.19.8)."""
    return optimizer.rpartition(".")[2].startswith("DeepSpeedCPU")


def _ended_early(record: Record) -> str:
    if record.steps_done == 0:
        return (
            "The script ended without an optimizer step: deepspeed.initialize was called, but engine.step() "
            "never ended one. Look at the log; a data set smaller than one global batch does that."
        )
    return (
        f"The script ended after {record.steps_done} of {record.total_steps} optimizer steps. Let it train "
        "longer (its number of steps, epochs or samples), or ask for fewer: --steps, --warmup-steps."
    )


def _leave_failure(spec: TrialSpec, error: BaseException) -> None:
    functions = set()
    trace = error.__traceback__
    while trace is not None:
        functions.add(trace.tb_frame.f_code.co_name)
        trace = trace.tb_next
    failure = Failure(
        error=described(error),
        program=Path(sys.argv[0]).name if sys.argv else "",
        # Where the Trainer compares its arguments with the file (transformers, integrations/deepspeed.py).
        overridden="trainer_config_finalize" in functions,
    )
    (Path(spec.trial_dir) / "seen" / f"failure-{os.getpid()}.json").write_text(dump(failure))


def _take_auto_for_unsaid() -> None:
    """Let plain DeepSpeed read the "auto" of a probe, as zero.Init does before deepspeed.initialize."""
    from deepspeed.runtime.config import DeepSpeedConfig

    original = DeepSpeedConfig.__init__

    def read(self: Any, config: Any, *args: Any, **kwargs: Any) -> None:
        found = given_config((), {"config": config})
        original(self, without_auto(found) if found is not None else config, *args, **kwargs)

    DeepSpeedConfig.__init__ = read


def _touch(spec: TrialSpec, name: str) -> None:
    (Path(spec.trial_dir) / "seen" / name).touch()


def _leave(code: int) -> NoReturn:
    """End this process without its exit handlers: those of gloo, NCCL and loggers can hang."""
    if code == 0 and dist.is_initialized() and dist.get_world_size() > 1:
        dist.barrier()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0"))


def _world_size() -> int:
    return dist.get_world_size() if dist.is_initialized() else int(os.environ.get("WORLD_SIZE", "1"))


def _class_name(optimizer: Any) -> str:
    if optimizer is None:
        return ""
    kind = type(optimizer)
    return f"{kind.__module__}.{kind.__qualname__}"
