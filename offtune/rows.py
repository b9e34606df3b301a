"""A run and a study as table rows, both ways, and a result's figures laid out for SQL.

Covered: what goes into which column. `runs.result` holds the whole result; `measurements` and `series` repeat
its figures, each with its unit, for people who read the tables with SQL. Not covered: queries (`store.py`).
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from offtune.calibration import Calibration
from offtune.lock import Owner
from offtune.records import Run, StudyRecord, is_measured
from offtune.repeats import Repeat
from offtune.timeline import Timeline
from offtune.trial import Status, Traffic, TrialResult, as_dict, dump, load

SERIES_POINTS = 2_000  # a plot shows no more; design: time series are capped
_SERIES = ("step_s", "losses", "warmup_losses", "reference_losses")
_TIMELINE = "timeline of rank "
_PACKED = "JSON, zlib, base85"
# By the ending of the name, the longest first; what has none of these is a count or a ratio: "1".
_UNITS = {
    "_bytes_per_s": "B/s",
    "samples_per_s": "samples/s",
    "tokens_per_s": "tokens/s",
    "_bytes": "B",
    "seconds": "s",
    "_s": "s",
    "losses": "nat",
    "_nat": "nat",
}


def study_row(record: StudyRecord) -> dict[str, Any]:
    """The columns of `offtune_studies`."""
    return {**as_dict(record), "settings": json.dumps(record.settings)}


def study_from(row: Mapping[str, Any]) -> StudyRecord:
    """The record of one row of `offtune_studies`."""
    return StudyRecord(**{**row, "settings": json.loads(row["settings"])})


def run_row(run: Run) -> dict[str, Any]:
    """The columns of `runs`."""
    columns = {name: getattr(run, name) for name in Run.__dataclass_fields__}
    columns.update(
        point=json.dumps(run.point),
        ds_config=json.dumps(run.ds_config),
        status=run.status and str(run.status),
        result=run.result and dump(run.result),
        owner=run.owner and dump(run.owner),
    )
    return columns


def run_from(row: Mapping[str, Any]) -> Run:
    """The record of one row of `runs`."""
    columns = dict(row)
    columns.update(
        point=json.loads(row["point"]),
        ds_config=json.loads(row["ds_config"]),
        status=row["status"] and Status(row["status"]),
        result=row["result"] and load(TrialResult, row["result"]),
        owner=row["owner"] and load(Owner, row["owner"]),
        ran=bool(row["ran"]),
    )
    return Run(**columns)


def outcome_row(run: Run, result: TrialResult) -> dict[str, Any]:
    """The columns of `outcomes` for a run that ended with `result`."""
    speed = result.samples_per_s
    return {
        "study": run.study,
        "number": run.number,
        "measured": is_measured(replace(run, status=result.status)),
        "status": str(result.status),
        "samples_per_s": speed if speed is not None and math.isfinite(speed) else None,
        "used_device_bytes": result.memory.used_device_bytes,
        "used_host_bytes": result.memory.used_host_bytes,
        "unsafe": bool(result.unsafe),
        "brief": dump_brief(result),
    }


def brief(result: TrialResult) -> TrialResult:
    """The result without what only a close look at one trial needs."""
    check = result.loss_check
    return replace(
        result,
        losses=(),
        warmup_losses=(),
        traffic=Traffic(),
        analysis=None,
        versions={},
        log_tail="",
        loss_check=replace(check, reference_losses=()) if check else None,
    )


def dump_brief(result: TrialResult) -> str:
    """The result in brief as JSON, without what is as by default."""
    plain, short = as_dict(TrialResult(status=result.status)), as_dict(brief(result))
    kept = {key: value for key, value in short.items() if key == "status" or value != plain[key]}
    return json.dumps(kept)


def repeat_row(repeat: Repeat) -> dict[str, Any]:
    """The columns of `repeats`."""
    columns = {name: getattr(repeat, name) for name in Repeat.__dataclass_fields__}
    columns.update(
        status=repeat.status and str(repeat.status),
        result=repeat.result and dump(repeat.result),
        owner=repeat.owner and dump(repeat.owner),
    )
    return columns


def repeat_from(row: Mapping[str, Any]) -> Repeat:
    """The record of one row of `repeats`."""
    columns = dict(row)
    columns.update(
        status=row["status"] and Status(row["status"]),
        result=row["result"] and load(TrialResult, row["result"]),
        owner=row["owner"] and load(Owner, row["owner"]),
    )
    return Repeat(**columns)


def measurement_rows(study: str, number: int, result: TrialResult) -> list[dict[str, Any]]:
    """One row a scalar figure of the result; what could not be measured has no row.

    Predicted figures have rows of their own, "predicted_...", and are the only ones of what was not run.
    """
    forecast = as_dict(result)["forecast"] or {}
    figures = [] if forecast and result.start == "predicted" else list(_figures(result))
    figures += [(f"predicted_{key}", value) for key, value in _flat(forecast)]
    return [
        {"study": study, "number": number, "key": key, "value": float(value), "unit": unit_of(key)}
        for key, value in figures
        if isinstance(value, int | float) and math.isfinite(value)
    ]


def series_rows(study: str, number: int, result: TrialResult) -> list[dict[str, Any]]:
    """One row a time series that has points, at most SERIES_POINTS of them, evenly chosen."""
    return [
        {
            "study": study,
            "number": number,
            "key": key,
            "points": json.dumps(thin(points)),
            "unit": unit_of(key),
        }
        for key, points in _figures(result)
        if key in _SERIES and points
    ]


def timeline_row(study: str, number: int, timeline: Timeline) -> dict[str, Any]:
    """One row of `series` that holds the whole recording of a rank, bounded, as packed JSON."""
    key = f"{_TIMELINE}{timeline.rank}"
    text = dump(timeline.bounded(SERIES_POINTS))
    # A tenth of its length, which counts in a study of thousands.
    packed = base64.b85encode(zlib.compress(text.encode())).decode()
    return {"study": study, "number": number, "key": key, "points": packed, "unit": _PACKED}


def timelines_from(rows: Sequence[Mapping[str, Any]]) -> list[Timeline]:
    """The recordings among the rows of `series`, by rank."""
    found = [load(Timeline, _unpacked(row)) for row in rows if row["key"].startswith(_TIMELINE)]
    return sorted(found, key=lambda timeline: timeline.rank)


def _unpacked(row: Mapping[str, Any]) -> str | bytes:
    points: str = row["points"]
    return zlib.decompress(base64.b85decode(points)) if row["unit"] == _PACKED else points


# The row of a calibration that holds all of it; the others repeat its figures for people who read with SQL.
_WHOLE = "calibration"


def machine_key(fingerprint: Mapping[str, str]) -> str:
    """A fingerprint as a key of fixed length."""
    text = json.dumps(dict(fingerprint), sort_keys=True)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()[:32]}"


def calibration_rows(fingerprint: Mapping[str, str], calibration: Calibration) -> list[dict[str, Any]]:
    """The rows of `calibrations`: the whole, and one a figure, with a null where it could not be measured."""
    entries: list[tuple[str, float | None, str, str]] = [(_WHOLE, None, "1", dump(calibration))]
    entries += [(figure.key, figure.value, figure.unit, dump(figure)) for figure in calibration.figures]
    machine, moment = machine_key(fingerprint), calibration.measured_at
    return [
        {
            "machine": machine,
            "key": key,
            "value": value,
            "unit": unit,
            "detail": detail,
            "measured_at": moment,
        }
        for key, value, unit, detail in entries
    ]


def calibration_from(found: Sequence[Mapping[str, Any]]) -> Calibration | None:
    """The calibration in the rows of one machine."""
    return next((load(Calibration, row["detail"]) for row in found if row["key"] == _WHOLE), None)


def thin(points: Sequence[Any]) -> list[Any]:
    """At most SERIES_POINTS of the points, evenly spaced, the first one included."""
    if len(points) <= SERIES_POINTS:
        return list(points)
    return [points[index * len(points) // SERIES_POINTS] for index in range(SERIES_POINTS)]


def unit_of(key: str) -> str:
    """The unit a field name carries: 'used_device_bytes' is in 'B'."""
    return next((unit for ending, unit in _UNITS.items() if key.endswith(ending)), "1")


def _figures(result: TrialResult) -> Iterator[tuple[str, Any]]:
    """Names and values of a result, but for its analysis and forecast, which use some of them again."""
    values = as_dict(result)
    del values["analysis"], values["forecast"]
    return _flat(values)


def _flat(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Names and values, those of inner records included."""
    for key, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value)
        else:
            yield key, value
