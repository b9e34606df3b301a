"""A study longer than a usual search: what is kept, what is read once, and that it decides the same."""

import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import optuna
import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from scale_copies import copy_up_to
from scale_study import NAME, make_search, open_study

from offtune import guesses
from offtune.basis import MOST
from offtune.beliefs import Guess
from offtune.guesses import Guesses
from offtune.sampling_strategy import seeding
from offtune.store import Store
from offtune.trial import Point


def searched(path: Path, sampler: str, more: int) -> list[Point]:
    """The points of some further trials, each of which trained."""
    with Store.open(str(path), write=True) as store:
        search = make_search(store, sampler)
        search.config = replace(search.config, trials=search.study.measured_count() + more)
        search.run()
        return [run.point for run in store.runs(NAME) if run.ran and run.reuse_of is None][-more:]


@pytest.fixture(scope="module")
def long_study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of 30 simulated trials, copied to more than beliefs rest on."""
    path = tmp_path_factory.mktemp("long") / "studies.db"
    with Store.open(str(path), write=True) as store:
        open_study(store)
    searched(path, "random", 30)
    copy_up_to(path, NAME, MOST + 40)
    return path


def test_a_copied_study_is_one_for_us_and_for_optuna(long_study: Path) -> None:
    trials = optuna.load_study(study_name=NAME, storage=f"sqlite:///{long_study}").trials
    with Store.open(str(long_study), write=False) as store:
        runs = store.runs(NAME)
        assert store.measured_count(NAME) >= MOST + 40
    assert [run.number for run in runs] == list(range(len(runs))) == [trial.number for trial in trials]
    assert len({run.fingerprint for run in runs if run.reuse_of is None}) == sum(
        run.reuse_of is None for run in runs
    )


def test_a_long_study_that_was_interrupted_decides_as_if_it_had_not_been(
    long_study: Path, tmp_path: Path
) -> None:
    whole, parts = (Path(shutil.copy(long_study, tmp_path / name)) for name in ("whole.db", "parts.db"))
    together = searched(whole, "offtune", 2)
    assert together == [*searched(parts, "offtune", 1), *searched(parts, "offtune", 1)]


def test_every_draw_of_a_usual_search_has_a_seed_of_its_own_and_those_of_a_long_one_share_some() -> None:
    assert [seeding(index) for index in range(MOST)] == list(range(MOST))
    assert {seeding(index) for index in range(MOST, MOST + 40)} == {MOST, MOST + 20}


def test_points_that_are_asked_about_again_are_worked_out_once_however_many_others_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Point] = []

    def worked_out(self: Guesses, point: Point) -> Guess:
        asked.append(point)
        return Guess(key=repr(point))

    monkeypatch.setattr(guesses, "_MOST_KEPT", 10)
    monkeypatch.setattr(Guesses, "_guess", worked_out)
    guess = Guesses(base={}, facts=None, nvme_path=None)  # type: ignore[arg-type]
    told = [{"micro_batch": number} for number in range(4)]
    for other in range(100):
        guess({"sub_groups": other})
        assert [found.key for point in told if (found := guess(point))] == [repr(point) for point in told]
        assert guess({"micro_batch": 0}) is guess(told[0])
    assert len(asked) == len(told) + 100


def test_numpy_is_loaded_with_one_thread_and_trials_inherit_nothing_of_it() -> None:
    script = (
        "import os; os.environ['OMP_NUM_THREADS'] = '5'; before = dict(os.environ)\n"
        "from offtune.one_thread import load_numpy; load_numpy()\n"
        "import sys; assert 'numpy' in sys.modules; assert dict(os.environ) == before\n"
        "import numpy; matrix = numpy.ones((400, 400)); matrix @ matrix\n"
        "print(len(os.listdir('/proc/self/task')))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
