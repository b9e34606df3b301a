"""What is switched off in a ds_config while a trial measures it, and put back when it is exported.

Covered: reports, monitors and profilers, which write files, ask services or slow the measured steps. Not
covered: settings that change the training itself; a trial has those of the person's file.
"""

from __future__ import annotations

from typing import Any

from offtune.ds_keys import block
from offtune.trial import DsConfig

# DeepSpeed's own "never": the log of a trial is for errors.
_STEPS_PER_PRINT = 1_000_000_000
_SETTINGS: dict[str, Any] = {"steps_per_print": _STEPS_PER_PRINT, "wall_clock_breakdown": False}
_ONLY_IF_WRITTEN = ("memory_breakdown", "dump_state")
# tensorboard to comet: monitor/config.py, DeepSpeed 0.19.8.
_SWITCHED = ("tensorboard", "wandb", "csv_monitor", "comet", "flops_profiler", "comms_logger")
QUIETED = frozenset({*_SETTINGS, *_ONLY_IF_WRITTEN, *_SWITCHED})


def quiet(ds_config: DsConfig) -> DsConfig:
    """The ds_config with reports off, as a trial runs it."""
    silent: DsConfig = {key: False for key in _ONLY_IF_WRITTEN if key in ds_config}
    silent |= {key: {**block(ds_config, key), "enabled": False} for key in _SWITCHED if key in ds_config}
    return {**ds_config, **_SETTINGS, **silent}


def restored(ds_config: DsConfig, base: DsConfig) -> DsConfig:
    """A measured ds_config with the person's own reports again, and without the optimizer of a trial where
    the person's file leaves that to the script."""
    kept = {key: value for key, value in ds_config.items() if key not in QUIETED}
    if base and "optimizer" not in base:
        kept.pop("optimizer", None)
    return {**kept, **{key: base[key] for key in QUIETED if key in base}}
