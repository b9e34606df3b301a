"""The recorded landscape: every point of `cpu.yaml` trained for real on DeepSpeed's CPU accelerator, once.

Covered: looking measurements up, so that rivals can be compared on real figures in seconds. Not covered:
recording it (the command is in `cpu.yaml`). Noise is as recorded: a point gives the same figures whenever it
is looked up, and "the best" is the best measurement.
"""

from __future__ import annotations

from pathlib import Path

from landscapes.landscape import Landscape, Truth

from offtune import hardware_profile
from offtune.errors import OfftuneError
from offtune.guesses import Guesses
from offtune.model_shape import shape_of
from offtune.predict import Bounds, Predictor
from offtune.records import Run, StudyRecord
from offtune.session import stored_config
from offtune.space import load_space
from offtune.spread import relative_spread
from offtune.store import Store
from offtune.trial import Facts, Point, Status

STUDY = "landscape"
SPACE = Path(__file__).parent / "cpu.yaml"
# What the recording machine had; the study keeps the ops of its trials only in their logs.
_OPS = frozenset({"cpu_adam", "fused_adam", "async_io"})


def cpu(studies: Path) -> Landscape:
    """The landscape in a database. Raises OfftuneError where it is not there or the space has changed."""
    with Store.open(str(studies), write=False) as store:
        record, runs = store.study(STUDY), store.runs(STUDY)
    facts = _facts(record)
    space = load_space(str(SPACE)).fit(facts)
    if space.digest() != record.settings["space_digest"]:
        raise OfftuneError(
            f"{SPACE} is not the space that was recorded.", "Record it again, or restore the file."
        )
    measured = {_key(run.point): _truth(run, record) for run in runs if run.result is not None and run.ran}
    predictor = Predictor(
        facts=facts, shape=shape_of(facts.workload.model_config), hardware=hardware_profile.load("cpu"),
        bounds=Bounds(device_bytes=record.settings["limit_bytes"]),
    )  # fmt: skip
    guesses = Guesses(base={}, facts=facts, nvme_path=facts.nvme_dir, predictor=lambda: predictor)
    return Landscape(
        name="CPU accelerator, 5M", note=f"recorded: {len(measured)} real trainings without a GPU",
        simulated=False, space=space, guess=lambda point: guesses(point) if _key(point) in measured else None,
        truth=lambda point: measured[_key(point)], measure=lambda point, draw: measured[_key(point)],
        baselines=tuple(point for _, point in space.baselines()),
    )  # fmt: skip


def _key(point: Point) -> str:
    return repr(sorted(point.items()))


def _truth(run: Run, record: StudyRecord) -> Truth:
    result = run.result
    assert result is not None
    used, host = result.memory.used_device_bytes, result.memory.used_host_bytes
    trained = run.status in (Status.OK, Status.OVER_BUDGET) and result.samples_per_s is not None
    return Truth(
        samples_per_s=result.samples_per_s or 0.0,
        device_share=(used or 0) / record.settings["limit_bytes"],
        host_share=(host or 0) / record.settings["host_limit_bytes"],
        seconds=result.seconds,
        out_of_memory=not trained,
        noise_share=relative_spread(result.step_s),
    )


def _facts(record: StudyRecord) -> Facts:
    config = stored_config(record)
    return Facts(
        workload=config.workload, device=config.device, nvme_dir=config.nvme_path, ops=_OPS,
        parameter_numels=shape_of(config.workload.model_config).parameter_numels,
        deepspeed_version=record.settings["versions"]["deepspeed"],
    )  # fmt: skip
