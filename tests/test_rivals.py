"""The benchmark against rivals: its landscapes, its rules, and that it can miss a goal."""

import sys
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent / "benchmarks"))

from landscapes import held_out, published, simulated
from rival_games import GameFile, Task
from rival_players import PLAYERS, Game, Played, Record
from rival_report import Row, missed, search_seconds, sheet

TABLE = published.twinflow()


def test_the_published_table_is_a_staircase_in_memory_and_time():
    whole = TABLE.space.complete({"sub_groups": 16})
    steps = [TABLE.truth({**whole, "resident_sixteenths": resident}) for resident in range(16)]
    speeds, shares = [one.samples_per_s for one in steps], [one.device_share for one in steps]
    assert speeds == sorted(speeds)
    assert shares == sorted(shares)
    # 7.28 s and 14.6 GiB at nothing resident, as published.
    assert 4 / speeds[0] == pytest.approx(7.28, rel=0.03)
    assert shares[0] * 40e9 == pytest.approx(14.6 * 2**30, rel=0.2)


def test_offtune_finds_the_edge_of_the_published_table_and_a_repeat_costs_nothing():
    game = Game(landscape=TABLE, trials=10, draw=Random(0))
    PLAYERS["offtune"](game, 0)
    assert max(one.true_speed for one in game.played[:5]) == pytest.approx(TABLE.best)
    again = Game(landscape=TABLE, trials=10, draw=Random(0))
    point = TABLE.baselines[0]
    assert again.measure(point) == again.measure(point)
    assert len(again.played) == 1


def test_the_simulated_machine_is_not_the_predicted_one(monkeypatch):
    monkeypatch.setattr("landscapes.landscape.Landscape.__post_init__", lambda self: None)
    card = simulated.card24()
    off = [
        card.truth(point).samples_per_s / guess.samples_per_s
        for point in card.baselines
        if (guess := card.guess(point)) is not None and guess.samples_per_s
    ]
    assert max(off) / min(off) > 1.2
    point = card.baselines[1]
    readings = {card.measure(point, Random(seed)).samples_per_s for seed in range(5)}
    assert len(readings) == 5


def played(*speeds: float) -> Record:
    trials = tuple(Played(true_speed=s, feasible=s > 0, baseline=False, seconds=10.0) for s in speeds)
    return Record(trials=40, played=trials, stopped=None)


def test_the_row_counts_trials_to_the_goal_and_a_missed_goal_is_named():
    best = TABLE.best
    ours = Row.of(TABLE, "offtune", [played(0.5 * best, 0.0, 0.96 * best, best)], 20.0)
    assert ours.in_time == pytest.approx(0.5)
    assert (ours.to_5[0], ours.to_2[0], ours.seconds_to_5) == (3, 4, 30.0)
    assert ours.wasted == 0.25
    tpe = replace(ours, rival="TPE", to_5=(8, 9))
    text = " ".join(missed([ours, tpe]))
    assert "25 % of its own choices" in text
    assert "plain TPE needs 8 trials" in text
    good = replace(ours, wasted=0.05)
    assert missed([good, replace(tpe, to_5=(9, 9)), replace(tpe, rival="random", to_5=(9, 9))]) == []
    assert "random needs only" in missed([good, replace(tpe, rival="random", to_5=(2, 2))])[0]
    assert "| offtune | 3 / 3 | 4 / 4 | 30 s |" in sheet([good], [TABLE], 1)


def test_a_search_takes_the_time_of_its_trials_until_it_stops():
    games = [replace(played(1.0, 2.0, 3.0), stopped=stopped) for stopped in (2, None)]
    assert search_seconds(games) == 25.0
    assert search_seconds([]) is None


def test_games_are_kept_and_one_that_was_cut_off_is_played_again(tmp_path):
    file = GameFile(tmp_path / "games.jsonl")
    assert file.read() == {}
    tasks = [Task(landscape="table", rival="random", seed=seed) for seed in range(2)]
    for task in tasks:
        file.add(task, played(1.0, 0.0))
    assert file.read() == dict.fromkeys(tasks, played(1.0, 0.0))
    text = (tmp_path / "games.jsonl").read_text()
    (tmp_path / "games.jsonl").write_text(text[:-20])
    assert list(file.read()) == tasks[:1]


@pytest.mark.parametrize(
    ("make", "budget_bytes"),
    [(held_out.h100_pair, 30e9), (held_out.l4_quartet, 21e9), (held_out.small_card, 12e9)],
)
def test_a_machine_held_out_obeys_other_laws_and_says_that_it_was_not_tuned_on(
    monkeypatch, make, budget_bytes
):
    monkeypatch.setattr("landscapes.landscape.Landscape.__post_init__", lambda self: None)
    machine = make()
    assert "never tuned on" in machine.note
    shares = [machine.truth(point).device_share for point in machine.baselines]
    segments = [share * budget_bytes / 0.5e9 for share in shares]
    assert segments == pytest.approx([round(segment) for segment in segments])
    point = machine.baselines[-1]
    assert machine.measure(point, Random(0)).device_share >= machine.truth(point).device_share
