"""Settings of a study of the person's own command, completed by a first look at it.

Covered: what follows from the ranks it starts, and that a resumed command is still the same. Not covered: the
look itself (`probe.py`).
"""

from __future__ import annotations

from dataclasses import replace

from offtune.config import Options, RunConfig, global_batch
from offtune.errors import StudyMismatch, UsageError
from offtune.trial import Workload, as_dict


def settle(config: RunConfig, options: Options, workload: Workload) -> RunConfig:
    """The settings once a look at the command has shown how many ranks it starts."""
    ranks, before = workload.world_size, config.workload.world_size
    if config.gpus and ranks > len(config.gpus):
        raise UsageError(
            f"The command starts {ranks} ranks for {len(config.gpus)} GPUs.",
            "Start fewer ranks, or give --gpus.",
        )
    return replace(
        config,
        workload=replace(workload, global_batch=global_batch(_asked(config, options), ranks, config.device)),
        gpus=config.gpus[:ranks],
        threads_per_rank=max(1, config.threads_per_rank * before // ranks),
    )


def _asked(config: RunConfig, options: Options) -> int | None:
    """The global batch the person asked for: by option, else by their own ds_config."""
    return config.workload.global_batch if config.base is not None else options.global_batch


def refuse_change(config: RunConfig, workload: Workload) -> None:
    """Raise StudyMismatch where a study's command now trains something else than it did."""
    before, now = as_dict(config.workload), as_dict(workload)
    changes = [f"{key} {before[key]} then, {now[key]} now" for key in before if before[key] != now[key]]
    if changes:
        raise StudyMismatch(
            f"The command is not what it was: {'; '.join(changes)}.",
            "Start a new study for what it trains now.",
        )
