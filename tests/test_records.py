"""Which runs count, which fit, which one is best."""

from __future__ import annotations

from study_samples import LIMITS, result, run

from offtune.records import Limits, Run, best_run, fits, is_measured, utc_now
from offtune.trial import MemoryPeaks, Status


def ended(
    number: int, speed: float | None, used: int | None, status: Status = Status.OK, **more: object
) -> Run:
    came = result(speed=speed, used=used, status=status)
    return run(number, status=status, result=came, **more)


def test_the_fastest_run_that_fits_is_best() -> None:
    runs = [ended(0, 5, 500), ended(1, 9, 900), ended(2, 7, 700)]
    assert best_run(runs, LIMITS) is runs[1]


def test_another_budget_has_another_best_run() -> None:
    runs = [ended(0, 5, 500), ended(1, 9, 900), ended(2, 12, 1500, Status.OVER_BUDGET)]
    assert best_run(runs, Limits(device_bytes=600)) is runs[0]
    assert best_run(runs, Limits(device_bytes=2000)) is runs[2]
    assert best_run(runs, Limits(device_bytes=100)) is None


def test_exactly_the_limit_fits() -> None:
    assert fits(MemoryPeaks(used_device_bytes=1000, used_host_bytes=5000), LIMITS)
    assert not fits(MemoryPeaks(used_device_bytes=1001, used_host_bytes=5000), LIMITS)
    assert not fits(MemoryPeaks(used_device_bytes=1000, used_host_bytes=5001), LIMITS)


def test_unknown_device_memory_never_fits_and_unknown_host_memory_does() -> None:
    assert not fits(MemoryPeaks(used_host_bytes=1), LIMITS)
    assert fits(MemoryPeaks(used_device_bytes=1), LIMITS)


def test_the_earlier_of_two_equals_is_best() -> None:
    runs = [ended(3, 9, 900), ended(1, 9, 900)]
    assert best_run(runs, LIMITS) is runs[1]


def test_what_was_not_measured_is_never_best() -> None:
    runs = [
        run(0),
        ended(1, 9, 900, reuse_of=7),
        ended(2, 9, 900, ran=False),
        ended(3, 9, 900, Status.INTERRUPTED),
        ended(4, 9, 900, Status.OOM_GPU),
        ended(5, None, 900),
    ]
    assert best_run(runs, LIMITS) is None
    assert [each.number for each in runs if is_measured(each)] == [4, 5]


def test_times_in_text_order_are_in_time_order() -> None:
    times = [utc_now() for _ in range(50)]
    assert times == sorted(times)
    assert times[0].endswith("+00:00")
