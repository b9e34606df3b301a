"""The loss check over made-up curves: who is the reference, what departs, what is left alone."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from report_fakes import make_run
from study_samples import LIMITS, result, run, small_space, study_record

from offtune import loss_check
from offtune.loss_check import TOLERANCE_NAT, checked, curve, make_judge, reference_of, tolerance_nat
from offtune.records import Run
from offtune.report.terminal import make_console
from offtune.report.trial_page import trial_page
from offtune.store import Store
from offtune.study import RESULT_FILE, Study
from offtune.trial import LossCheck, Status, TrialResult, dump, load

# llama-5m, bf16, as measured: two steps of warm-up, five measured.
WARMUP = (8.4073, 8.3059)
MEASURED = (8.2301, 8.1109, 8.0202, 8.0337, 7.9696)
ROUNDING_NAT = 2.5e-4
NO_UPDATES = (8.4073, 8.3925, 8.3737, 8.3997, 8.3646, 8.3882, 8.3985)


def trained(losses: tuple[float | None, ...] = WARMUP + MEASURED, **more: Any) -> TrialResult:
    return result(warmup_losses=losses[:2], losses=losses[2:], **more)


def reference() -> Run:
    first = run(0, origin="baseline", label="stage 2")
    return ended(first, checked(first, trained(), [], "bf16", "judge"))


def ended(run: Run, result: TrialResult) -> Run:
    return replace(run, status=result.status, result=result)


def judged(losses: tuple[float | None, ...], mode: loss_check.Mode = "judge", **more: Any) -> TrialResult:
    return checked(run(1), trained(losses, **more), [reference()], "bf16", mode)


def moved(by_nat: float, step: int) -> tuple[float, ...]:
    losses = list(WARMUP + MEASURED)
    losses[step] += by_nat
    return tuple(losses)


def test_the_first_baseline_that_trains_is_the_reference_and_stays_it() -> None:
    first = reference()
    assert first.result is not None and first.result.loss_check is not None
    assert first.result.loss_check.verdict == "reference"
    second = run(1, origin="baseline", label="stage 3")
    after = ended(second, checked(second, trained(), [first], "bf16", "judge"))
    assert reference_of([first, after]) == first
    assert after.result is not None and after.result.loss_check is not None
    assert after.result.loss_check.reference_trial == 0


@pytest.mark.parametrize(
    ("origin", "label", "verdict"),
    [("baseline", "stage 2", "reference"), ("retry", "stage 2", "reference"), ("retry", "", "skipped"),
     ("search", "", "skipped")],
)  # fmt: skip
def test_only_a_baseline_can_become_the_reference(origin: Any, label: str, verdict: str) -> None:
    check = checked(run(3, origin=origin, label=label), trained(), [], "bf16", "judge").loss_check
    assert check is not None
    assert check.verdict == verdict
    assert check.reason


def test_a_baseline_over_budget_can_be_the_reference_but_one_that_diverged_cannot() -> None:
    first = run(0, origin="baseline", label="stage 2")
    over = checked(first, trained(status=Status.OVER_BUDGET), [], "bf16", "judge")
    assert over.loss_check is not None and over.loss_check.verdict == "reference"
    lost = checked(first, trained(status=Status.DIVERGED), [], "bf16", "judge")
    assert lost.loss_check is not None and lost.loss_check.verdict == "skipped"


@given(st.lists(st.floats(-ROUNDING_NAT, ROUNDING_NAT), min_size=7, max_size=7))
def test_rounding_never_makes_a_trial_diverge(noise: list[float]) -> None:
    noisy = tuple(loss + error for loss, error in zip(WARMUP + MEASURED, noise, strict=True))
    after = judged(noisy)
    assert after.status is Status.OK
    assert after.loss_check is not None and after.loss_check.verdict == "agrees"


@pytest.mark.parametrize("step", range(7))
@pytest.mark.parametrize("by_nat", [0.02, -0.02])
def test_a_departure_at_any_step_up_or_down_is_diverged_and_says_where(step: int, by_nat: float) -> None:
    after = judged(moved(by_nat, step))
    assert after.status is Status.DIVERGED
    assert f"step {step + 1} " in after.reason
    assert f"0.0200 {'above' if by_nat > 0 else 'below'} that of trial 0" in after.reason
    check = after.loss_check
    assert check is not None
    assert (check.verdict, check.departure_step, check.reference_trial) == ("departs", step + 1, 0)
    assert check.departure_nat == pytest.approx(by_nat)
    assert check.reference_losses == WARMUP + MEASURED
    assert curve(after) == moved(by_nat, step)


def test_a_training_that_updates_nothing_is_caught_at_its_second_step() -> None:
    after = judged(NO_UPDATES)
    assert after.status is Status.DIVERGED
    assert after.loss_check is not None and after.loss_check.departure_step == 2


def test_losses_of_zero_are_caught() -> None:
    assert judged((0.0,) * 7).status is Status.DIVERGED


def test_a_loss_that_is_not_finite_keeps_its_status_and_gets_both_curves() -> None:
    after = judged((*WARMUP, None, None, None, None, None), status=Status.DIVERGED, reason="Not finite.")
    assert after.reason == "Not finite."
    assert after.loss_check is not None
    assert (after.loss_check.verdict, after.loss_check.departure_step) == ("departs", 3)
    assert after.loss_check.departure_nat is None
    assert after.loss_check.reference_losses == WARMUP + MEASURED


def test_a_trial_over_budget_is_judged_too_since_it_may_be_exported_for_another_budget() -> None:
    assert judged(NO_UPDATES, status=Status.OVER_BUDGET).status is Status.DIVERGED


@pytest.mark.parametrize("status", [Status.OOM_GPU, Status.TIMEOUT, Status.CRASHED, Status.INVALID])
def test_a_trial_that_failed_for_another_reason_is_left_as_it_is(status: Status) -> None:
    failed = result(status=status, speed=None)
    assert checked(run(1), failed, [reference()], "bf16", "judge") is failed


@pytest.mark.parametrize(("mode", "verdict"), [("note", "noted"), ("off", "skipped")])
def test_without_judgement_a_departure_stays_ok_with_the_reason_visible(mode: Any, verdict: str) -> None:
    after = judged(NO_UPDATES, mode)
    assert after.status is Status.OK
    assert after.loss_check is not None and after.loss_check.verdict == verdict
    assert after.loss_check.reason


def test_a_script_is_judged_by_what_comes_after_a_first_step_that_agrees() -> None:
    elsewhere = judged(moved(0.5, 0), "script")
    assert elsewhere.status is Status.OK
    assert elsewhere.loss_check is not None and elsewhere.loss_check.verdict == "skipped"
    assert "dropout" in elsewhere.loss_check.reason
    assert judged(NO_UPDATES, "script").status is Status.DIVERGED


def test_other_steps_skipped_by_loss_scaling_make_curves_incomparable() -> None:
    scaled = trained(NO_UPDATES, warmup_skipped_steps=1)
    after = checked(run(1), scaled, [reference()], "fp16", "judge")
    assert after.status is Status.OK
    assert after.loss_check is not None and after.loss_check.verdict == "skipped"
    assert "Loss scaling skipped 1 optimizer steps here and 0" in after.loss_check.reason


def test_skipping_every_step_is_no_excuse_nor_is_skipping_any_without_a_loss_scale() -> None:
    all_skipped = trained(NO_UPDATES, warmup_skipped_steps=2, skipped_steps=5)
    assert checked(run(1), all_skipped, [reference()], "fp16", "judge").status is Status.DIVERGED
    one_skipped = trained(NO_UPDATES, skipped_steps=1)
    assert checked(run(1), one_skipped, [reference()], "bf16", "judge").status is Status.DIVERGED


@pytest.mark.parametrize("losses", [(), (*WARMUP, None, None, None, None, None)])
def test_a_trial_whose_losses_are_not_known_is_not_judged_nor_a_reference(losses: Any) -> None:
    check = judged(losses).loss_check
    assert check is not None and (check.verdict, check.reason) == ("skipped", "Its losses are not known.")
    first = checked(run(0, origin="baseline", label="stage 2"), trained(losses), [], "bf16", "judge")
    assert first.loss_check is not None and first.loss_check.verdict == "skipped"


def test_the_tolerance_grows_with_what_the_reference_has_learned() -> None:
    assert tolerance_nat("bf16", (8.0, 6.0, 7.0), 0) == TOLERANCE_NAT["bf16"]
    assert tolerance_nat("bf16", (8.0, 6.0, 7.0), 2) == pytest.approx(TOLERANCE_NAT["bf16"] + 0.02)
    assert tolerance_nat("bf16", (None, 6.0), 1) == TOLERANCE_NAT["bf16"]


def test_a_check_survives_its_way_through_json() -> None:
    after = judged(NO_UPDATES)
    assert load(TrialResult, dump(after)) == after
    assert load(TrialResult, '{"status": "ok"}').loss_check is None


@pytest.fixture
def store(tmp_path: Path) -> Any:
    with Store.open(str(tmp_path / "studies.db"), write=True) as store:
        store.add_study(study_record())
        yield store


def test_both_curves_can_be_read_with_sql(store: Store, tmp_path: Path) -> None:
    store.add_run(run(1))
    store.finish_run("study-1", 1, judged(NO_UPDATES))
    with sqlite3.connect(tmp_path / "studies.db") as connection:
        rows = connection.execute("SELECT key, points, unit FROM series").fetchall()
        figures = dict(connection.execute("SELECT key, unit FROM measurements").fetchall())
    connection.close()
    series = {key: (json.loads(points), unit) for key, points, unit in rows}
    assert series["warmup_losses"] == (list(NO_UPDATES[:2]), "nat")
    assert series["losses"] == (list(NO_UPDATES[2:]), "nat")
    assert series["reference_losses"] == ([*WARMUP, *MEASURED], "nat")
    assert figures["departure_nat"] == figures["tolerance_nat"] == "nat"


def test_a_result_found_after_a_crash_is_judged_as_in_a_search(store: Store, tmp_path: Path) -> None:
    judge = make_judge(store.runs, "bf16", "judge")
    study = Study(store, "study-1", small_space(), limits=LIMITS, seed=0, sampler="random", judge=judge)
    first = reference()
    assert first.result is not None
    store.add_run(replace(run(100, origin="baseline", label="stage 2"), result=first.result))
    proposal = study.ask()
    (tmp_path / RESULT_FILE).write_text(dump(trained(NO_UPDATES)))
    store.add_run(replace(run(proposal.number, point=proposal.point), trial_dir=str(tmp_path)))
    (repair,) = study.reconcile()
    assert repair.action == "recovered"
    assert store.run("study-1", proposal.number).status is Status.DIVERGED
    best = study.best()
    assert best is not None and best.number == 100


@pytest.mark.parametrize(
    ("check", "text"),
    [
        (LossCheck(verdict="reference"), "the reference of this study"),
        (LossCheck(verdict="agrees", reference_trial=0, departure_step=3, departure_nat=-0.0002,
                   tolerance_nat=0.004, reference_losses=(8.4,)), "at most 0.0002 apart (step 3)"),
        (LossCheck(verdict="skipped", reason="Losses not known."), "skipped: Losses not known."),
        (None, "losses"),
    ],
)  # fmt: skip
def test_the_page_of_a_trial_says_what_the_check_gave(
    check: LossCheck | None, text: str, capsys: Any
) -> None:
    from offtune.report.terminal import draw

    fake = make_run(3, samples_per_s=10.0, used_gb=30)
    assert fake.result is not None
    page = trial_page(study_record(), replace(fake, result=replace(fake.result, loss_check=check)))
    draw(make_console(), page)
    assert text in " ".join(capsys.readouterr().out.split())
