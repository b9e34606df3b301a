"""The published landscape: share of the optimizer on the GPU against step time, 20B on four H100.

Covered: the six published measurements (docs/accuracy.md; r is the offloaded share) and straight lines
through them, which fit within 0.12 s. Interpolated, and extended below r = 0.5, where nothing was published;
other knobs of the space have no effect here, except that a finer cut costs what was published for 7B. Memory
is the allocator's peak in backward. No noise: the table gives single runs.
"""

from __future__ import annotations

import csv
import statistics
from dataclasses import replace
from pathlib import Path

from landscapes.landscape import Landscape, Truth
from landscapes.simulated import facts_of

from offtune import hardware_profile
from offtune.guesses import Guesses
from offtune.model_shape import shape_of
from offtune.predict import Bounds, Predictor
from offtune.space import Space, load_space
from offtune.trial import Facts, Point

_DATA = Path(__file__).parent.parent / "data" / "published_runs.csv"
_RUN = "20B-scale-twinflow"
_BUDGET_BYTES = 40 * 10**9
_RANKS = 4
# The update by the cut into tiles, as published for 7B on one A100: 3 to 9 % slower than tiles of 1e9.
_CUT_COST = {1: 1.0, 16: 1.02, 32: 1.05, 64: 1.09}
# The shape of the published 15.3B model (40 layers of 5120), as a llama of the same size.
_CONFIG = {
    "model_type": "llama", "hidden_size": 5120, "num_hidden_layers": 40, "num_attention_heads": 64,
    "num_key_value_heads": 64, "intermediate_size": 17472, "vocab_size": 32000, "tie_word_embeddings": False,
}  # fmt: skip
# A trial is two warm-up steps and five measured ones after so long a start.
_START_S, _STEPS = 60.0, 7


def twinflow() -> Landscape:
    """The table as a landscape under 40 GB."""
    lines = _lines()
    shape = shape_of(_CONFIG)
    facts = facts_of("20B", _CONFIG, shape.parameter_numels, _RANKS, samples_per_rank=1, seq_len=2048)
    predictor = Predictor(facts=facts, shape=shape, hardware=hardware_profile.load("h100-80gb"),
                          bounds=Bounds(device_bytes=_BUDGET_BYTES))  # fmt: skip
    space = _space(facts)
    return Landscape(
        name="published 20B ratios", note="published single runs, interpolated by straight lines",
        simulated=True, space=space,
        guess=Guesses(base={}, facts=facts, nvme_path=None, predictor=lambda: predictor),
        truth=lambda point: _truth(point, lines), measure=lambda point, draw: _truth(point, lines),
        baselines=tuple(point for _, point in space.baselines()),
    )  # fmt: skip


def _space(facts: Facts) -> Space:
    """Partial offload alone: the knobs that the table turned, or that were held fixed in it."""
    fixed = {"placement": ["zero3 opt=cpu"], "micro_batch": [1], "pin_memory": [True]}
    whole = load_space("partial").fit(facts)
    knobs = (knob.limited_to(fixed.get(knob.name, knob.values)) for knob in whole.knobs)
    return replace(whole, knobs=tuple(knobs))


def _lines() -> dict[str, tuple[float, float]]:
    """Intercept and slope over the offloaded share: step and update in seconds, peak in bytes."""
    with _DATA.open() as file:
        rows = [row for row in csv.DictReader(file) if row["run"] == _RUN and row["system"] == "DeepSpeed"]
    plain = [row for row in rows if not row["gradient_copy"] and row["micro_batch"] == "1"]
    share = [float(row["ratio"]) for row in plain]
    found = {}
    for name in ("step_s", "update_s", "alloc_backward_bytes"):
        fit = statistics.linear_regression(share, [float(row[name]) for row in plain])
        found[name] = (fit.intercept, fit.slope)
    return found


def _truth(point: Point, lines: dict[str, tuple[float, float]]) -> Truth:
    offloaded = 1.0 - point.get("resident_sixteenths", 0) / 16
    step, update, peak = (start + slope * offloaded for start, slope in lines.values())
    step_s = step + update * (_CUT_COST[point["sub_groups"]] - 1.0)
    share = peak / _BUDGET_BYTES
    return Truth(samples_per_s=_RANKS / step_s, device_share=share, seconds=_START_S + _STEPS * step_s,
                 out_of_memory=share > 1.0)  # fmt: skip
