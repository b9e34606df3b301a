"""Facts the space and ds_config tests judge against: a small llama on any device, with every op."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from offtune.knobs import Knob
from offtune.space import Space
from offtune.trial import Facts, Point, Workload

ALL_OPS = frozenset({"cpu_adam", "fused_adam", "cpu_lion", "fused_lion", "cpu_adagrad", "async_io"})
# Embedding, four layers of attention, MLP and two norms, head: 5.3 million parameters.
LAYER = (65536, 65536, 65536, 65536, 196608, 196608, 196608, 256, 256)
NUMELS = (1048576, *LAYER * 4, 256, 1048576)


def workload(**changes: Any) -> Workload:
    fields: dict[str, Any] = {
        "model_name": "llama-5m",
        "model_config": {},
        "seq_len": 128,
        "global_batch": 8,
        "world_size": 1,
        "precision": "bf16",
        "optimizer": "adamw",
        "activation_checkpointing": False,
        "seed": 0,
    }
    return Workload(**{**fields, **changes})


def facts(**changes: Any) -> Facts:
    """Facts with `changes`, which may name fields of the workload too."""
    fields: dict[str, Any] = {
        "device": "cuda",
        "parameter_numels": NUMELS,
        "nvme_dir": "/scratch",
        "ops": ALL_OPS,
        "deepspeed_version": "0.19.8",
    }
    own = {name: value for name, value in changes.items() if name in Facts.__dataclass_fields__}
    rest = {name: value for name, value in changes.items() if name not in own}
    return Facts(**{**fields, **own}, workload=workload(**rest))


@st.composite
def any_facts(draw: st.DrawFn, fp16: bool = True) -> Facts:
    """A machine and workload of any kind that offtune knows."""
    device = draw(st.sampled_from(["cpu", "cuda"]))
    precisions = ["bf16", "fp32", "fp16"] if fp16 and device == "cuda" else ["bf16", "fp32"]
    world_size = draw(st.integers(1, 4))
    return facts(
        device=device,
        parameter_numels=tuple(draw(st.lists(st.integers(1, 2_000_000), min_size=1, max_size=80))),
        nvme_dir=draw(st.sampled_from([None, "/scratch"])),
        deepspeed_version=draw(st.sampled_from(["0.19.6", "0.19.7", "0.19.8", "0.20.1"])),
        world_size=world_size,
        global_batch=world_size * draw(st.integers(1, 48)),
        precision=draw(st.sampled_from(precisions)),
        optimizer=draw(st.sampled_from(["adamw", "adam", "lion", "adagrad"])),
    )


@st.composite
def points(draw: st.DrawFn, space: Space) -> Point:
    """Any point of `space`."""

    def choose(knob: Knob) -> Any:
        return draw(st.sampled_from(knob.values), label=knob.name)

    return space.suggest(choose)
