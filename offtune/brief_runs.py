"""Runs with their results in brief, of which only what is asked for is read.

Covered: a run as `store_standings.briefs` finds it. Of ten thousand runs a screen shows fifty; the others
only count by status, speed and memory, which stand in columns of their own, so that hardly any text of
theirs is taken apart. Not covered: what a brief leaves out (`rows.brief`), queries (`store_standings`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic_core import from_json

from offtune.lock import Owner
from offtune.records import Run
from offtune.trial import Forecast, LossCheck, MemoryPeaks, PhaseTimes, Status, TrialResult, load

Row = Mapping[str, Any]
_STATUS = {status.value: status for status in Status}  # an enum's own look-up takes ten times as long
_PLAIN = TrialResult(status=Status.OK)
# A frozen record's own constructor goes through every field; here most are left empty.
_new, _put = object.__new__, object.__setattr__


class _Late:
    """Fields of a record that are worked out when first asked for; equal to a whole record of the same."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        """The value of a slot that is still empty: Python asks here for no other."""
        if name not in self.__dataclass_fields__:
            raise AttributeError(name)
        value = self._worked_out(name)
        _put(self, name, value)
        return value

    def _worked_out(self, name: str) -> Any:
        raise NotImplementedError

    def __eq__(self, other: object) -> bool:
        names: Mapping[str, Any] = self.__dataclass_fields__
        if getattr(other, "__dataclass_fields__", {}).keys() != names.keys():
            return NotImplemented
        return all(getattr(self, name) == getattr(other, name) for name in names)

    __hash__ = None  # type: ignore[assignment]


class _BriefMemory(_Late, MemoryPeaks):
    __slots__ = ("_text",)
    _text: str

    def _worked_out(self, name: str) -> Any:
        return (from_json(self._text).get("memory") or {}).get(name, getattr(_PLAIN.memory, name))


class BriefResult(_Late, TrialResult):
    """A result in brief: its figures are there, its text is read for anything else."""

    __slots__ = ("_text", "_values")
    _text: str
    _values: dict[str, Any] | None  # what the text holds, once it was asked for: not what is as by default

    @classmethod
    def of(cls, row: Row) -> BriefResult:
        """The result in the columns of `outcomes`."""
        made, memory = _new(cls), _new(_BriefMemory)
        _put(memory, "_text", row["brief"])  # and not the result: that would be a circle
        _put(memory, "used_device_bytes", row["used_device_bytes"])
        _put(memory, "used_host_bytes", row["used_host_bytes"])
        _put(made, "_text", row["brief"])
        _put(made, "_values", None)
        _put(made, "status", _STATUS[row["status"]])
        _put(made, "samples_per_s", row["samples_per_s"])
        _put(made, "memory", memory)
        if row["unsafe"] is not None and not row["unsafe"]:  # else the text has the sentence, or it is old
            _put(made, "unsafe", "")
        return made

    def _worked_out(self, name: str) -> Any:
        values = self._values
        if values is None:
            values = from_json(self._text)
            _put(self, "_values", values)
        value = values.get(name)
        if value is None:
            return getattr(_PLAIN, name)
        return _READERS[name](value) if name in _READERS else value


def _loss_check(values: dict[str, Any]) -> LossCheck:
    # Schema 1 may have left the losses of the reference.
    return LossCheck(**{name: value for name, value in values.items() if name != "reference_losses"})


_READERS: dict[str, Callable[[Any], object]] = {
    "phases": lambda values: PhaseTimes(**values),
    "loss_check": _loss_check,
    "forecast": lambda values: Forecast(**values),
    "step_s": tuple,
    "step_interval_s": tuple,
    "exit_codes": tuple,
}


class BriefRun(_Late, Run):
    """A run with its result in brief, and without its ds_config and, when it has ended, its owner."""

    __slots__ = ("_row",)
    _row: Row

    @classmethod
    def of(cls, row: Row) -> BriefRun:
        """The run in the columns of `runs`, beside those of `outcomes` where it has a result."""
        made = _new(cls)
        _put(made, "_row", row)
        _put(made, "number", row["number"])
        _put(made, "origin", row["origin"])
        _put(made, "status", row["status"] and _STATUS[row["status"]])
        _put(made, "reuse_of", row["reuse_of"])
        _put(made, "ran", bool(row["ran"]))
        _put(made, "result", BriefResult.of(row) if row["brief"] else None)
        return made

    def _worked_out(self, name: str) -> Any:
        if name == "point":
            return from_json(self._row["point"])
        if name == "ds_config":
            return {}
        if name == "owner":
            running = self.status is None and self._row["owner"]
            return load(Owner, self._row["owner"]) if running else None
        return self._row[name]
