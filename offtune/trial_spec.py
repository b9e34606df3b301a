"""From a run of a study to what a runner is given for it: its ds_config, its length, scratch of its own.

Covered: new trials and repeats of old ones. Not covered: which run comes next (`search.py`, `finals.py`).
"""

from __future__ import annotations

from dataclasses import dataclass

from offtune import ds_config, prepare, scratch
from offtune.config import RunConfig
from offtune.ds_auto import left_to_runtime
from offtune.ds_zero import placement_text
from offtune.knob_workload import workload_at
from offtune.records import Run, is_baseline
from offtune.trial import DsConfig, Facts, TrialSpec
from offtune.trial_length import Steps, rule_for


@dataclass(frozen=True, slots=True, kw_only=True)
class Before:
    """What the trials of a study have shown so far: the best, and step times by which scatter is told."""

    best: Run | None
    steps_s: Steps


def trial_spec(
    run: Run, config: RunConfig, facts: Facts, ops: tuple[str, ...], gpus: tuple[int, ...], before: Before
) -> TrialSpec:
    """The spec of a run on these GPUs, after what was shown `before`. Its folders are made."""
    swap_dir = None
    shared_dir = config.nodes.shared_dir if config.nodes else None
    if config.nvme_path is not None and "nvme" in placement_text(run.ds_config):
        swap_dir = str(scratch.make_swap_dir(config.nvme_path, run.study, run.number))
    fields = prepare.spec_fields(config, ops)
    rule = rule_for(
        fields["stop"], config.steps, is_baseline=is_baseline(run), best=before.best, steps_s=before.steps_s
    )
    return TrialSpec(
        **{**fields, "workload": workload_at(run.point, config.workload), "gpus": gpus, "stop": rule},
        study=run.study,
        number=run.number,
        ds_config=_given(config, ds_config.build(config.under_points, run.point, facts, swap_dir)),
        trial_dir=str(scratch.make_trial_dir(run.study, run.number, shared_dir)),
        swap_dir=swap_dir,
        token=scratch.new_token(),
    )


def _given(config: RunConfig, built: DsConfig) -> DsConfig:
    """What a trial is given of its ds_config; the runtime of a command fills some values itself."""
    if config.workload.command is None or config.base is None:
        return built
    return left_to_runtime(built, config.base)
