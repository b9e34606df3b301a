"""Keys of a person's ds_config that contradict each other, do nothing together, or cannot run on this device.

Covered: what DeepSpeed 0.19.8 would refuse, or pass over without a word, in a file that its owner trains
with; it is put right or left out, and noted. Not covered: rules for configurations that offtune makes itself
(`ds_rules`), which the file has to pass in the end.
"""

from __future__ import annotations

from offtune.ds_change import Draft, KeyPath, shown
from offtune.trial import DeviceKind

_ZERO = "zero_optimization"
_OPTIMIZER = (_ZERO, "offload_optimizer")
_PARAM = (_ZERO, "offload_param")
_ADAM = ("adam", "adamw")
_QUANTIZED = ("zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients")


def resolve_conflicts(draft: Draft, device: DeviceKind, world_size: int) -> None:
    """Bring the file's keys in line with each other and with the device; "auto" is filled already."""
    _offload(draft)
    _ratio(draft)
    _partitions(draft, world_size)
    _autotuning(draft)
    if device == "cpu":
        _cpu_accelerator(draft)


def _leave_out(draft: Draft, path: KeyPath, why: str) -> None:
    value = draft.drop(path)
    draft.note("ignored", path, f"{why}; {shown(value)} is left out.")


def _offload(draft: Draft) -> None:
    stage = draft.get(_ZERO, "stage", default=0)
    if draft.get(*_PARAM) is not None and stage != 3:
        _leave_out(draft, _PARAM, f"does nothing at stage {stage}: parameters are offloaded at stage 3 only")
    if draft.get(*_OPTIMIZER, "device") == "nvme" and stage in (1, 2):
        draft.put((*_OPTIMIZER, "device"), "cpu")
        draft.note(
            "changed",
            (*_OPTIMIZER, "device"),
            f"nvme is taken for cpu at stage {stage} by DeepSpeed; now cpu.",
        )
    if draft.get(*_OPTIMIZER) is not None and stage == 0:
        _leave_out(draft, _OPTIMIZER, "the optimizer is offloaded at stages 1, 2 and 3 only")


def _ratio(draft: Draft) -> None:
    path = (*_OPTIMIZER, "ratio")
    ratio = draft.get(*path, default=1.0)
    if ratio >= 1:
        return
    stage, device = draft.get(_ZERO, "stage", default=0), draft.get(*_OPTIMIZER, "device", default="none")
    kind = str(draft.get("optimizer", "type", default="adamw")).lower()
    if stage != 3:
        _leave_out(
            draft, path, f"does nothing at stage {stage}, where DeepSpeed raises for it: it is for stage 3"
        )
    elif device != "cpu":
        _leave_out(draft, path, f"does nothing with device {device}: it is for offload to cpu")
    elif draft.get(*_PARAM, "device") == "nvme":
        _leave_out(draft, path, "a mix with parameters on NVMe is not supported by DeepSpeed")
    elif kind not in _ADAM or draft.get("optimizer", "params", "torch_adam"):
        _leave_out(draft, path, "only DeepSpeed's own CPU Adam can be split, others raise")


def _partitions(draft: Draft, world_size: int) -> None:
    path = (_ZERO, "zero_hpz_partition_size")
    size = draft.get(*path, default=1)
    if size > 1 and world_size % size:
        draft.drop(path)
        draft.note(
            "changed", path, f"{size} ranks do not divide the {world_size} here; left out, which means 1."
        )


def _autotuning(draft: Draft) -> None:
    """Even when it is off, DeepSpeed asserts about some of its keys (autotuning/config.py, 0.19.8)."""
    if draft.get("autotuning") is not None:
        draft.drop(("autotuning",))
        why = "DeepSpeed's own autotuning ends a training after a few steps; offtune tunes instead. Left out."
        draft.note("ignored", ("autotuning",), why)


def _cpu_accelerator(draft: Draft) -> None:
    """What fails on DeepSpeed's CPU accelerator; on a GPU the file is taken as it is."""
    for key in _QUANTIZED:
        if draft.get(_ZERO, key):
            draft.put((_ZERO, key), False)
            draft.note(
                "changed", (_ZERO, key), "now false: it needs DeepSpeed's CUDA quantizer, and here is no GPU."
            )
    if draft.get(*_OPTIMIZER, "super_offload"):
        _leave_out(draft, (*_OPTIMIZER, "super_offload"), "needs CUDA")
    if draft.get("compile", "deepcompile"):
        draft.put(("compile", "deepcompile"), False)
        draft.note(
            "changed",
            ("compile", "deepcompile"),
            "now false: its op cannot be built for the CPU accelerator.",
        )
    if draft.get(_ZERO, "zenflow") is not None and draft.get(_ZERO, "stage") == 3:
        _leave_out(draft, (_ZERO, "zenflow"), "at stage 3 it asks for CUDA by name")
    if draft.get("aio", "use_gds"):
        _leave_out(draft, ("aio", "use_gds"), "needs CUDA")
