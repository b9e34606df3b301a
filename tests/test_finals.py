"""The finals over a runner that needs no machine: turns, ties, confirmation, interruption, going on."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_fakes import make_run
from search_fakes import MACHINE, fitted_space, made_up, open_search
from typer.testing import CliRunner

from offtune.cli import app
from offtune.config import Options, resolve
from offtune.crew import Alone
from offtune.errors import Interrupted
from offtune.finals import Finals
from offtune.finals_notes import keep, kept
from offtune.lock import Owner, current_owner
from offtune.records import Limits
from offtune.repeats import Outcome, Repeat
from offtune.report.document import document
from offtune.report.finals_text import ratio_text
from offtune.report.result_page import verdict_blocks
from offtune.report.summary import summarise
from offtune.trial import Status, StopRule, TrialResult, TrialSpec
from offtune.trial_length import CONFIRMATION_STEPS, confirmation_rule, repeat_rule, rule_for

LIMITS = Limits(device_bytes=10**9)


def bench(speed_of: Callable[[dict[str, Any]], float], noise: float = 0.002, seed: int = 1):
    """A runner of that truth; every repeat scatters by `noise`."""
    draw = random.Random(seed)
    return lambda spec: made_up(speed_of(spec.ds_config) * draw.gauss(1, noise))


def by_micro(config: dict[str, Any]) -> float:
    """Larger micro-batches are faster, but the last doubling gives nothing."""
    return 10.0 + min(4, config["train_micro_batch_size_per_gpu"]) - config["zero_optimization"]["stage"]


@pytest.fixture
def hold(tmp_path):
    """Search, then hold the finals; returns them and their outcome. May be called again, as a resume."""
    opened = []

    def run(runner: Callable[[TrialSpec], TrialResult], **options: Any) -> tuple[Finals, Outcome | None]:
        finals = prepare(runner, **options)
        finals.search.run()
        return finals, finals.run()

    def prepare(runner: Callable[[TrialSpec], TrialResult], **options: Any) -> Finals:
        search = open_search(tmp_path, runner, **{"seed": 3, **options})
        opened.append(search.store)
        space = fitted_space(options.get("space", "ladder"))
        return Finals(search=search, space=space, limits=LIMITS, own_label="your file")

    run.prepare = prepare
    yield run
    for store in opened:
        store.close()


def repeats(finals: Finals) -> list[Repeat]:
    return finals.search.store.repeats.of("s")


def text_of(finals: Finals, outcome: Outcome | None) -> str:
    store = finals.search.store
    summary = summarise(store.study("s"), store.runs("s"), outcome=outcome)
    return "\n".join(block.text for block in verdict_blocks(summary))  # type: ignore[union-attr]


def test_the_best_and_the_best_baseline_take_turns_and_the_ratio_is_told(hold) -> None:
    finals, outcome = hold(bench(by_micro), baselines=["stage 3"], trials=12)
    assert outcome is not None and outcome.winner is not None
    rounds = (
        [each.run for each in repeats(finals) if each.round == 1],
        [each.run for each in repeats(finals) if each.round == 2],
    )
    assert sorted(rounds[0]) == sorted(rounds[1]) and rounds[0] != rounds[1]
    ratio = outcome.over(outcome.plan.baseline)
    runs = {run.number: run for run in finals.search.store.runs("s")}
    best, base = (runs[number] for number in (outcome.winner, outcome.plan.baseline))
    truth = by_micro(best.ds_config) / by_micro(base.ds_config)
    assert ratio is not None and ratio.low <= truth <= ratio.high
    assert ratio.is_clear
    assert ratio_text(ratio.value, ratio.low, ratio.high) in text_of(finals, outcome)
    assert "times as fast as 'stage 3' (95 %" in text_of(finals, outcome)
    assert f"Confirmed over {len(best.result.step_s)} steps" in text_of(finals, outcome)
    assert kept(finals.search.store, "s", Outcome) == outcome


def test_a_tie_with_a_baseline_is_said_plainly(hold) -> None:
    finals, outcome = hold(bench(lambda config: 10.0), trials=6)
    assert outcome is not None
    text = text_of(finals, outcome)
    winner = finals.search.store.run("s", outcome.winner)
    if outcome.winner == outcome.plan.baseline:
        assert f"No measurable difference to '{winner.label}'" in text
    else:
        assert "No clear winner" in text
    document(summarise(finals.search.store.study("s"), finals.search.store.runs("s"), outcome=outcome))


def test_what_makes_no_difference_goes_back_to_its_default(hold) -> None:
    finals, outcome = hold(bench(by_micro), space="buckets", trials=9, baselines=["stage 2"])
    assert outcome is not None and outcome.plan.simplified is not None
    store = finals.search.store
    simplified = store.run("s", outcome.plan.simplified)
    defaults = {knob.name: knob.default for knob in finals.space.knobs}
    kept_knobs = {"placement", "micro_batch"}
    assert all(v == defaults[k] for k, v in simplified.point.items() if k not in kept_knobs)
    assert outcome.winner == outcome.plan.simplified
    assert f"It is trial {outcome.plan.simple_of} (" in text_of(finals, outcome)
    assert finals.search.study.measured_count() == outcome.plan.measured


def test_a_winner_that_does_not_hold_gives_way_and_that_is_said(hold) -> None:
    first: list[int] = []

    machine = bench(by_micro)

    def runner(spec: TrialSpec) -> TrialResult:
        came = machine(spec)
        if spec.steps == CONFIRMATION_STEPS and (not first or first[0] == spec.number):
            first.append(spec.number)
            return replace(came, status=Status.OVER_BUDGET, reason="Used 2 GB.")
        return came

    finals, outcome = hold(runner, trials=10)
    assert outcome is not None and outcome.winner not in (None, first[0])
    assert [each.run for each in outcome.rejected] == [first[0]]
    said = f"Trial {first[0]} did not hold: over budget in a longer run. Used 2 GB."
    assert said in text_of(finals, outcome)
    shown = summarise(finals.search.store.study("s"), finals.search.store.runs("s"), outcome=outcome)
    assert shown.best is not None and shown.best.number == outcome.winner


def test_the_next_best_that_holds_is_the_winner_where_no_contender_does(hold) -> None:
    failed: list[int] = []
    machine = bench(by_micro)

    def runner(spec: TrialSpec) -> TrialResult:
        came = machine(spec)
        if spec.steps == CONFIRMATION_STEPS and len(failed) < 2:
            failed.append(spec.number)
            return replace(came, status=Status.OVER_BUDGET, reason="Used 2 GB.")
        return came

    finals, outcome = hold(runner, trials=10, baselines=[])
    runs = {run.number: run for run in finals.search.store.runs("s")}
    assert outcome is not None and outcome.winner not in (None, *failed)
    assert outcome.confirmed_steps == len(runs[outcome.winner].result.step_s)
    assert {each.run for each in outcome.rejected} == set(failed)
    assert outcome.winner in outcome.plan.contenders
    assert len(outcome.used_bytes) == sum(each.run == outcome.winner for each in repeats(finals)) > 0
    assert finals.run() == outcome


def test_the_fastest_is_trained_longer_first_where_it_leaves_little_room(hold) -> None:
    def runner(spec: TrialSpec) -> TrialResult:
        fast = spec.ds_config["train_micro_batch_size_per_gpu"] >= 4
        used = LIMITS.device_bytes * (99 if fast else 50) // 100
        if fast and spec.steps == CONFIRMATION_STEPS:
            return made_up(1.0, used=used + 10**8, status=Status.OVER_BUDGET)
        return made_up(by_micro(spec.ds_config), used=used)

    finals, outcome = hold(runner, trials=12)
    assert outcome is not None and outcome.winner is not None and outcome.rejected
    assert repeats(finals)[0].kind == "confirmation" and repeats(finals)[0].status is Status.OVER_BUDGET
    rejected = {each.run for each in outcome.rejected}
    assert not any(each.run in rejected for each in repeats(finals) if each.kind == "repeat")


def test_where_none_holds_there_is_an_end(hold) -> None:
    def runner(spec: TrialSpec) -> TrialResult:
        if spec.steps == CONFIRMATION_STEPS:
            return TrialResult(status=Status.CRASHED, reason="Boom.")
        return bench(by_micro)(spec)

    _, outcome = hold(runner, trials=8)
    assert outcome is not None and outcome.winner is None
    assert {each.run for each in outcome.rejected} == set(outcome.plan.contenders)
    assert len(outcome.rejected) <= 3 + 3  # contenders at first, and those that took their place


def test_an_interruption_keeps_the_repeats_and_a_resume_goes_on_with_them(hold) -> None:
    machine = bench(by_micro)

    def runner(spec: TrialSpec) -> TrialResult:
        if len(repeats(finals)) == 3:  # the third is under way
            raise KeyboardInterrupt
        return machine(spec)

    finals = hold.prepare(runner, trials=10)
    finals.search.run()
    with pytest.raises(Interrupted) as caught:
        finals.run()
    assert "offtune resume s" in caught.value.hint
    before = [each for each in repeats(finals) if each.status is Status.OK]
    assert before and any(each.status is Status.INTERRUPTED for each in repeats(finals))
    assert not any(Path(each.trial_dir).exists() for each in repeats(finals))
    finals.search.store.close()
    again, outcome = hold(bench(by_micro), trials=10)
    assert outcome is not None and outcome.winner is not None
    assert repeats(again)[: len(before)] == before
    assert len({(each.round, each.run) for each in repeats(again) if each.status is Status.OK}) == sum(
        each.status is Status.OK for each in repeats(again)
    )
    assert outcome.plan.finals == 1


def test_what_a_killed_process_left_under_way_is_removed_and_made_again(hold, tmp_path) -> None:
    finals = hold.prepare(bench(by_micro), trials=8)
    finals.search.run()
    left = tmp_path / "left"
    left.mkdir()
    finals.search.store.repeats.add(
        Repeat(study="s", number=0, finals=1, round=1, run=0, trial_dir=str(left), token="1")
    )
    outcome = finals.run()
    assert outcome is not None and outcome.winner is not None
    assert not left.exists()
    assert repeats(finals)[0].status is Status.INTERRUPTED


def test_finals_that_were_held_are_not_held_again_but_after_more_trials(hold) -> None:
    finals, outcome = hold(bench(by_micro), trials=6)
    made = len(repeats(finals))
    assert finals.run() == outcome
    assert len(repeats(finals)) == made
    finals.search.config = replace(finals.search.config, trials=finals.search.study.measured_count() + 2)
    finals.search.run()
    later = finals.run()
    assert later is not None and later.plan.finals == 2


def test_finals_can_be_left_out_and_wait_for_nobody_when_the_time_is_up(hold) -> None:
    finals, outcome = hold(bench(by_micro), trials=5, finals=False)
    assert outcome is None and repeats(finals) == []
    late = hold.prepare(bench(by_micro), trials=5, time="1h")
    late.search.started -= 3601
    outcome = late.run()
    assert repeats(late) == []
    assert outcome is not None and outcome.ratios == () and outcome.confirmed_steps is None
    assert "time was up" in text_of(late, outcome)


def test_nothing_that_fits_needs_no_finals(hold) -> None:
    _, outcome = hold(lambda spec: TrialResult(status=Status.OOM_GPU), trials=3)
    assert outcome is None


def test_the_search_leaves_a_part_of_the_time_to_the_finals(hold) -> None:
    finals = hold.prepare(bench(by_micro), trials=1000, time="1h")
    finals.search.started -= 0.9 * 3600
    assert "time is up" in finals.search.run().text
    without = hold.prepare(bench(by_micro), trials=2, time="1h", finals=False)
    without.search.started -= 0.9 * 3600
    assert "as asked" in without.search.run().text


def test_how_long_a_trial_measures_is_said_once() -> None:
    asked = CliRunner().invoke(app, ["search", "--budget", "1GB", "--steps", "3", "--accuracy", "2%"])
    assert asked.exit_code == 2 and "Give one of them" in asked.stderr
    wrong = CliRunner().invoke(app, ["search", "--budget", "1GB", "--accuracy", "2"])
    assert wrong.exit_code == 2 and "Write it like 2%" in wrong.stderr
    assert resolve(Options(budget="1GB", steps=3), MACHINE).accuracy_share is None
    assert resolve(Options(budget="1GB", accuracy="5%"), MACHINE).accuracy_share == 0.05


def test_what_is_over_the_budget_is_measured_briefly_but_while_nothing_fits() -> None:
    rule = StopRule(accuracy_share=0.02)
    run = make_run(0, samples_per_s=8.0)
    best = replace(run, result=replace(run.result, step_interval_s=(0.9, 1.1)))
    first = rule_for(rule, 8, is_baseline=True, best=None)
    later = rule_for(rule, 8, is_baseline=True, best=best)
    assert (first.least_steps, first.over_steps, first.best_step_s) == (5, 5, None)
    assert (later.least_steps, later.over_steps, later.best_step_s) == (3, 2, 1.1)
    assert rule_for(rule, 8, is_baseline=False, best=best).over_steps == 2
    assert repeat_rule(later, 3).over_steps == confirmation_rule(3).over_steps == 1


def test_trials_are_told_how_much_steps_scattered_in_those_before() -> None:
    rule, before = StopRule(accuracy_share=0.02), [(1.0, 1.02), (1.0, 1.01, 0.99), (2.0, 2.02)]
    known = rule_for(rule, 8, is_baseline=False, best=None, steps_s=before)
    assert 0.005 < known.scatter_share < 0.03
    assert repeat_rule(known, 3).scatter_share == known.scatter_share
    assert repeat_rule(known, 3).least_steps == 2
    assert rule_for(rule, 8, is_baseline=False, best=None, steps_s=before[:2]).scatter_share is None


class OneOther(Alone):
    """A crew with another worker, who lives for the first few times it is asked."""

    shared = True

    def __init__(self, other: Owner, asked: int) -> None:
        super().__init__()
        self.other, self.left = other, asked

    def is_alive(self, owner: Owner) -> bool:
        self.left -= 1
        return owner == self.other and self.left >= 0


def test_another_workers_last_trial_is_waited_for_and_its_finals_are_its_own(hold) -> None:
    finals = hold.prepare(bench(by_micro), trials=5)
    search = finals.search
    search.run()
    other = replace(current_owner(), pid=1)
    running = replace(search.store.runs("s")[0], number=99, status=None, result=None, owner=other)
    search.store.add_run(running)
    search.crew = OneOther(other, asked=2)
    assert finals.run() is not None
    assert search.crew.left < 0
    keep(search.store, "s", other)
    search.crew = OneOther(other, asked=99)
    assert finals.run() is None
    assert search.watcher.texts[-1] == "Another worker holds the finals."
