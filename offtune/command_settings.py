"""Settings of a study of the person's own command, completed by a first look at it.

Covered: what follows from the ranks it starts, and that a resumed command is still the same. Not covered: the
look itself (`probe.py`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from offtune.config import Options, RunConfig, global_batch, with_base
from offtune.errors import StudyMismatch, UsageError
from offtune.trial import Workload, as_dict


def settle(config: RunConfig, options: Options, workload: Workload, hidden_size: int | None) -> RunConfig:
    """The settings once a look at the command has shown its ranks and its model.

    A base is read again with both: batch sizes follow from the ranks, "auto" sizes from the model's width.
    """
    ranks, before = workload.world_size, config.workload.world_size
    if config.gpus and ranks > len(config.gpus):
        raise UsageError(
            f"The command starts {ranks} ranks for {len(config.gpus)} GPUs.",
            "Start fewer ranks, or give --gpus.",
        )
    model_config = None if hidden_size is None else {"hidden_size": hidden_size}
    decided, base = with_base(options, model_config, config.device, ranks)
    return replace(
        config,
        workload=replace(workload, global_batch=global_batch(decided.global_batch, ranks, config.device)),
        gpus=config.gpus[:ranks],
        threads_per_rank=max(1, config.threads_per_rank * before // ranks),
        base=base,
    )


def refuse_change(config: RunConfig, workload: Workload) -> None:
    """Raise StudyMismatch where a study's command now trains something else than it did."""
    before, now = as_dict(config.workload), as_dict(workload)
    changes = list(_changes(before, now))
    if changes:
        raise StudyMismatch(
            f"The command is not what it was: {'; '.join(changes)}.",
            "Start a new study for what it trains now.",
        )


def _changes(before: Mapping[str, Any], now: Mapping[str, Any], where: str = "") -> Iterator[str]:
    """What differs, one phrase each; of blocks only the keys that do."""
    for key in {**before, **now}:
        old, new = before.get(key), now.get(key)
        if isinstance(old, Mapping) and isinstance(new, Mapping):
            yield from _changes(old, new, f"{where}{key}.")
        elif old != new:
            yield f"{where}{key} {old} then, {new} now"
