"""`offtune profile`: what is shown of a run, JSON and page, and what is refused before anything runs."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cost_cases import P
from profile_fakes import GB, make_profiled
from timeline_fakes import with_cores
from typer.testing import CliRunner

from offtune.cli import app
from offtune.phase_analysis import Figure, analyse
from offtune.profile import Expected
from offtune.report.html import render
from offtune.report.page import Table
from offtune.report.profile_document import profile_document
from offtune.report.profile_html import expected_course, profile_report
from offtune.report.profile_page import copy_blocks, profile_page, traffic_blocks
from offtune.report.profile_tables import checklist, parts_table
from offtune.report.terminal import draw, make_console
from offtune.trial import Status, TrialResult

GIB = 2**30


def offtune(*arguments: str):
    return CliRunner().invoke(app, ["profile", *arguments])


def cells(table: Table) -> dict[str, tuple[str, ...]]:
    return {row[0]: row[1:] for row in table.rows}


def page_text(found, capsys) -> str:
    draw(make_console(), profile_page(found))
    return capsys.readouterr().out


def test_the_checklist_has_the_units_of_published_studies():
    found = make_profiled()
    rows = cells(checklist(found, found.result.analysis))
    assert rows["time, s"] == ("0.400", "2.000", "1.500", "0.100")
    assert rows["of the step, %"] == ("10.0", "50.0", "37.5", "2.5")
    assert rows["memory by driver, peak GiB"][1] == f"{31e9 / GIB:.2f}"
    assert rows["left of the budget, GiB"][1] == f"{(40e9 - 31e9) / GIB:.2f}"
    assert rows["below the step's peak, GiB"][1:3] == ("0.00", f"{(31e9 - 24e9) / GIB:.2f}")
    assert rows["D2H, mean GiB/s"][1] == f"{12e9 / GIB:.2f}"
    assert rows["D2H, bytes per parameter"][1] == f"{12e9 * 2.0 / P:.2f}"
    assert rows["GPU busy, %"] == ("90", "55", "10", "0")


def test_groups_of_cores_have_lines_in_terminal_json_and_page(capsys):
    found = make_profiled()
    timeline = with_cores(found.timelines[0], **{"node0": (16, 0.75), "node1-others": (8, 0.125)})
    analysis = analyse(timeline)
    found = replace(found, timelines=(timeline,), result=replace(found.result, analysis=analysis))
    rows = cells(checklist(found, analysis))
    assert rows["cores of node0 (16) busy, %"] == ("75",) * 4
    assert "cores of node1-others (8) busy" in page_text(found, capsys)
    document = profile_document(found)
    assert document["analysis"]["core_groups"] == {"node0": 16, "node1-others": 8}
    update = document["analysis"]["phases"][2]["figures"]["core_group_busy_share.node0"]
    assert update["mean"] == pytest.approx(0.75)
    page = render(profile_report(found))
    assert "cores of node0 (16) busy" in page and '"name":"cores of node0"' in page


def test_what_was_not_recorded_is_left_out_of_the_checklist():
    found = make_profiled(has_budget=False)
    rows = cells(checklist(found, found.result.analysis))
    assert not [name for name in rows if "NVMe" in name or "reserved" in name or "budget" in name]


def test_machine_and_versions_are_told_as_far_as_they_are_known(capsys):
    found = make_profiled()
    assert "versions" not in page_text(found, capsys)
    config = replace(found.config, machine={"processor": "AMD EPYC", "cores": "2"})
    result = replace(found.result, versions={"torch": "2.13.0", "cuda": ""})
    text = page_text(replace(found, config=config, result=result), capsys)
    assert "processor AMD EPYC, cores 2" in text and "torch 2.13.0" in text and "cuda" not in text


def test_what_lies_on_nvme_is_a_line_of_its_own():
    found = make_profiled()
    analysis = found.result.analysis
    figures = {"nvme_footprint_bytes": Figure(mean=2.0 * GIB, peak=3.0 * GIB, samples=9)}
    update = replace(analysis.phases[2], figures=figures)
    rows = cells(checklist(found, replace(analysis, phases=(*analysis.phases[:2], update))))
    assert rows["NVMe footprint, peak GiB"] == ("-", "-", "3.00")


def test_a_rank_computes_what_published_studies_count(capsys):
    found = make_profiled()
    per_sample = 6 * P * 2048  # a forward and a backward, without attention and recomputation
    assert found.flops_per_s == pytest.approx(2.0 * per_sample * 4 / 3, rel=0.1)
    assert "TFLOP/s per rank" in page_text(found, capsys)
    unknown = replace(found, expected=Expected(reason="the layers are not known"))
    assert profile_document(unknown)["flops_per_s"] is None
    assert "TFLOP/s" not in page_text(unknown, capsys)


def test_parts_inside_the_update_have_their_time_share_and_rates():
    found = make_profiled()
    table = parts_table(found.result.analysis)
    assert table is not None
    (row,) = table.rows
    assert row[:3] == ("update.cpu_optimizer", "1.20 s", "80")
    assert f"{4e9 / GIB:.2f}" in row


def test_the_page_tells_the_run_its_bounds_its_copies_and_what_was_predicted(capsys):
    text = page_text(make_profiled(), capsys)
    for words in ("Profile of ds_config.json", "2.00 samples/s", "What bounds it", "GPU compute",
                  "pinned", "pageable", "counter / copies", "predicted / measured",
                  "not measured here"):  # fmt: skip
        assert words in text, words


def test_a_run_without_a_look_or_a_prediction_says_so(capsys):
    text = page_text(make_profiled(looks=(), expected=Expected(reason="the layers are not known")), capsys)
    assert "No step ran under torch's profiler" in text
    assert text.count("the layers are not known") == 2


def test_a_close_look_that_failed_is_null_with_its_reason_and_the_rest_stands(capsys):
    found = make_profiled(looks=(), look_error="rank 0: MemoryError: no room")
    document = profile_document(found)
    assert document["close_looks"] is None and document["close_looks_reason"] == found.look_error
    assert document["result"]["samples_per_s"] and document["analysis"] and document["bounds"]
    text = " ".join(page_text(found, capsys).split())
    assert "failed (rank 0: MemoryError: no room)" in text and "What bounds it" in text


def test_a_failed_run_shows_its_reason_and_the_end_of_its_log(capsys):
    result = TrialResult(status=Status.CRASHED, reason="RuntimeError: no.", log_tail="Traceback\nboom")
    text = page_text(make_profiled(result=result, timelines=(), looks=()), capsys)
    assert "crashed: RuntimeError: no." in text and "boom" in text


def test_the_document_is_strict_json_in_base_units():
    found = make_profiled()
    document = json.loads(json.dumps(profile_document(found), allow_nan=False))
    assert document["schema"] == "offtune.profile/1"
    assert [phase["name"] for phase in document["analysis"]["phases"]] == [
        "forward", "backward", "update", "other",
    ]  # fmt: skip
    assert document["budget_bytes"] == 40 * GB
    backward = document["bytes_per_local_param"]["backward"]
    assert backward["d2h_bytes"] == pytest.approx(12e9 * 2.0 / P)
    assert "not measured here" in document["peaks"]["source"]
    assert "events" not in document["close_looks"][0]
    checks = {(one["phase"], one["path"]): one for one in document["traffic_checks"]}
    assert checks["update", "H2D"]["difference_share"] == pytest.approx(3e6 / (2 * P) - 1)


def test_a_document_without_a_run_has_nulls():
    result = TrialResult(status=Status.TIMEOUT, reason="too long")
    document = profile_document(make_profiled(result=result, timelines=(), looks=()))
    assert document["analysis"] is None and document["bounds"] is None
    assert document["result"]["status"] == "timeout" and document["close_looks"] == []


def test_the_predicted_step_is_labelled_and_ends_when_the_prediction_does():
    found = make_profiled()
    course = expected_course(found)
    assert course is not None and "not measured" in course.source
    assert found.expected.prediction is not None
    assert course.steps()[0].length_s == pytest.approx(found.expected.prediction.time.step_s)


def test_the_page_for_the_web_has_both_courses_and_says_which_is_predicted():
    text = render(profile_report(make_profiled()))
    assert "Predicted, not measured" in text and "Measured: step" in text
    with pytest.raises(ValueError, match="without analysis"):
        profile_report(make_profiled(result=TrialResult(status=Status.CRASHED)))


def test_copies_that_are_unknown_or_absent_are_told_apart():
    found = make_profiled()
    assert any(isinstance(block, Table) for block in copy_blocks(found))
    assert any(isinstance(block, Table) for block in traffic_blocks(found, found.result.analysis))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def ran(here, monkeypatch):
    """The command as if the run had ended with this result; its files are page.html and trace.json."""
    (here / "ds.json").write_text("{}")

    def command(**result):
        found = make_profiled()
        found = replace(found, result=replace(found.result, **result))
        monkeypatch.setattr("offtune.profile.profile", lambda *_: found)
        return offtune("ds.json", "--html", "page.html", "--trace", "trace.json", "--json")

    return command


def test_a_run_that_ended_well_leaves_page_trace_and_document(ran, here):
    done = ran()
    assert done.exit_code == 0 and done.stderr.splitlines() == ["Wrote page.html.", "Wrote trace.json."]
    assert json.loads(done.stdout)["result"]["status"] == "ok"
    assert json.loads((here / "trace.json").read_text())["traceEvents"]
    assert "Predicted, not measured" in (here / "page.html").read_text()


def test_a_run_over_the_budget_has_all_figures_and_an_exit_code_of_its_own(ran, here):
    done = ran(status=Status.OVER_BUDGET, reason="Used 41.0 GB, 1.00 GB over the budget.")
    assert done.exit_code == 3 and "1.00 GB over the budget" in done.stderr
    assert (here / "page.html").exists() and (here / "trace.json").exists()


def test_a_run_without_figures_writes_no_files(ran, here):
    done = ran(status=Status.CRASHED, reason="RuntimeError: no.", analysis=None)
    assert done.exit_code == 1 and "RuntimeError: no." in done.stderr
    assert json.loads(done.stdout)["analysis"] is None
    assert [path.name for path in here.iterdir()] == ["ds.json"]


def test_a_run_that_diverged_fails_although_it_has_figures(ran):
    done = ran(status=Status.DIVERGED, reason="The loss is not finite.")
    assert done.exit_code == 1 and "not finite" in done.stderr


def test_a_missing_file_is_one_clear_line(here):
    done = offtune("nowhere.json", "--device", "cpu")
    assert done.exit_code == 2
    assert "nowhere.json" in done.stderr and "Traceback" not in done.stderr and done.stdout == ""


def test_a_refused_file_tells_every_reason(here):
    (here / "ds.json").write_text('{"zero_optimization": {"stage": 7, "offload": "cpu"}, "fp16": {"on": 1}}')
    done = offtune("ds.json", "--device", "cpu")
    assert done.exit_code == 2
    assert "ds.json cannot be profiled" in done.stderr and "there is no stage 7" in done.stderr


def test_files_to_write_are_checked_before_the_run(here):
    (here / "ds.json").write_text("{}")
    (here / "page.html").write_text("mine")
    done = offtune("ds.json", "--device", "cpu", "--html", "page.html")
    assert done.exit_code == 2 and "exists already" in done.stderr
    assert (here / "page.html").read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--close-steps", "-1"), "--close-steps -1"),
        (("--steps", "0"), "--steps 0"),
        (("--nvme-path", "nowhere"), "no folder 'nowhere'"),
        (("--precision", "int3"), "int3"),
    ],
)
def test_bad_options_are_refused_in_the_first_second(here, arguments, words):
    (here / "ds.json").write_text("{}")
    done = offtune("ds.json", "--device", "cpu", *arguments)
    assert done.exit_code == 2 and words in done.stderr
    assert list(here.iterdir()) == [here / "ds.json"]
