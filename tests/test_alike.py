"""A script that crashes whatever its configuration ends the search early, with its own words."""

from dataclasses import replace

import pytest
from test_search import imagined, make_search  # noqa: F401  (a fixture)

from offtune.alike import Alike
from offtune.errors import NothingTrains
from offtune.records import Run
from offtune.trial import Status, TrialResult

MISSING = "train.py failed before deepspeed.initialize: FileNotFoundError: /data/{} (rank 0)"


def crash(number, stage=2, reason="boom", status=Status.CRASHED):
    config = {"zero_optimization": {"stage": stage}}
    result = TrialResult(status=status, reason=reason)
    return Run(study="s", number=number, origin="search", label="", point={}, ds_config=config,
               fingerprint=str(number), status=status, result=result)  # fmt: skip


def seen(*runs):
    alike = Alike()
    for run in runs:
        alike.see(run)
    return alike


def test_two_crashes_are_enough_where_they_share_no_stage():
    found = seen(crash(0, 2, "pid 17 died in /tmp/a"), crash(1, 3, "pid 18 died in /tmp/b"))
    assert found.reason == "pid 18 died in /tmp/b"
    assert (found.count, found.last) == (2, 1)


def test_of_one_stage_it_takes_a_whole_ladder():
    assert seen(*(crash(n) for n in range(4))).reason is None
    assert seen(*(crash(n) for n in range(5))).reason == "boom"


@pytest.mark.parametrize(
    "other",
    [
        crash(2, 3, "another reason"),
        replace(crash(2, 3), status=Status.OK, result=TrialResult(status=Status.OK, samples_per_s=1.0)),
    ],
)
def test_another_reason_or_a_trial_that_trains_says_that_it_can_be_mended(other):
    assert seen(crash(0, 2), other).reason is None
    assert seen(crash(0, 2), crash(1, 2), other, crash(3, 3)).reason is None


def test_out_of_memory_is_no_crash():
    assert seen(*(crash(n, n % 4, status=Status.OOM_GPU) for n in range(9))).reason is None


def test_a_search_that_only_crashes_stops_and_a_resume_goes_on(make_search):  # noqa: F811
    def broken(spec):
        return TrialResult(status=Status.CRASHED, reason=MISSING.format(spec.number))

    search = make_search(broken, trials=40)
    with pytest.raises(NothingTrains) as caught:
        search.run()
    assert "crashed alike" in caught.value.message
    assert "FileNotFoundError" in caught.value.message
    assert "offtune resume s" in caught.value.hint
    assert caught.value.exit_code == 1
    count = search.study.measured_count()
    assert 2 <= count <= 5
    assert "Nothing trains" in search.store.notes("s")["ended"]["text"]
    again = make_search(imagined, trials=12)
    assert "12 trials" in again.run().text
    assert again.study.best() is not None


def test_crashes_after_a_resume_of_a_study_that_trained_stop_nothing(make_search):  # noqa: F811
    make_search(imagined, trials=3).run()

    def broken(spec):
        return TrialResult(status=Status.CRASHED, reason="boom")

    assert "12 trials" in make_search(broken, trials=12).run().text
