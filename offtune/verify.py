"""Train an exported configuration for a few steps and hold it against its record.

Covered: one more real trial of one ds_config, and the two ratios. Not covered: deciding what is best.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from offtune import ops, prepare, scratch
from offtune.config import RunConfig
from offtune.ds_quiet import quiet
from offtune.ds_zero import placement_text
from offtune.errors import OfftuneError
from offtune.export import portable
from offtune.knob_workload import workload_at
from offtune.records import Run
from offtune.trial import DsConfig, Status, TrialResult, TrialSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Verification:
    """What the exported file did now, beside what its trial recorded; ratios are now / then."""

    result: TrialResult
    throughput_ratio: float | None
    device_memory_ratio: float | None

    @property
    def holds(self) -> bool:
        """Whether it trained within the budget; slower or faster is a matter of noise, shown, not judged."""
        return self.result.status is Status.OK


def verify(config: RunConfig, run: Run, exported: DsConfig, say: Callable[[str], None]) -> Verification:
    """Train `exported`, the very content of the file. Raises OfftuneError where ops are missing."""
    ready = _ops(config, run, say)
    with prepare.new_runner(config, ready, say) as runner:
        spec = _spec(config, run, exported, ready)
        result = runner(spec)
        scratch.remove_trial(spec.trial_dir, spec.swap_dir, spec.token)
    then = run.result
    assert then is not None
    return Verification(
        result=result,
        throughput_ratio=_ratio(result.samples_per_s, then.samples_per_s),
        device_memory_ratio=_ratio(result.memory.used_device_bytes, then.memory.used_device_bytes),
    )


def _ops(config: RunConfig, run: Run, say: Callable[[str], None]) -> tuple[str, ...]:
    placement = placement_text(run.ds_config)
    names = ops.needed_ops(config.device, config.workload.optimizer, [placement], nvme="nvme" in placement)
    for name, state in ops.prepare(names, config.device, say).items():
        if state.state != "ready":
            raise OfftuneError(
                f"Cannot verify without {name}: {state.error}.", state.remedy or "Run: offtune doctor"
            )
    return names


def _spec(config: RunConfig, run: Run, exported: DsConfig, ready: tuple[str, ...]) -> TrialSpec:
    study = f"{run.study}-verify"
    swap_dir = None
    if config.nvme_path is not None and "nvme" in placement_text(run.ds_config):
        swap_dir = str(scratch.make_swap_dir(config.nvme_path, study, run.number))
    return TrialSpec(
        **{**prepare.spec_fields(config, ready), "workload": workload_at(run.point, config.workload)},
        study=study,
        number=run.number,
        ds_config=_for_trial(run, exported, swap_dir),
        trial_dir=str(
            scratch.make_trial_dir(study, run.number, config.nodes.shared_dir if config.nodes else None)
        ),
        swap_dir=swap_dir,
        token=scratch.new_token(),
    )


def _for_trial(run: Run, exported: DsConfig, swap_dir: str | None) -> DsConfig:
    """The file as a trial runs it: reports off, a swap folder, an optimizer where the script has it."""
    optimizer = {} if "optimizer" in exported else {"optimizer": run.ds_config["optimizer"]}
    return quiet({**portable(exported, swap_dir), **optimizer})


def _ratio(now: float | None, then: float | None) -> float | None:
    return now / then if now is not None and then else None
