"""The web report without a browser: what it holds, that it loads nothing, that no study can break it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from report_fakes import make_run, make_study, rich_study
from timeline_fakes import make_timeline
from typer.testing import CliRunner
from web_fakes import write_study

from offtune.cli import app
from offtune.report.difference import KeyChange, key_changes
from offtune.report.html import plots_of, render
from offtune.report.study_plots import progress_plot
from offtune.report.study_report import make_side, read_report, study_report
from offtune.report.study_sections import study_web_report
from offtune.report.summary import summarise
from offtune.report.trace_sections import trace_report
from offtune.store import Store
from offtune.trial import Status

PLOTS = {"frontier", "curve-3", "curve-1", "phases", "components", "importance", "progress"}


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory) -> str:
    return write_study(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def page(storage: str) -> str:
    return render(study_web_report(read_report(storage, None)))


def own(page: str) -> str:
    """The page without plotly.js, which is not ours to check."""
    scripts = re.findall(r"<script>.*?</script>", page, re.DOTALL)
    return page.replace(max(scripts, key=len), "")


def specs(page: str) -> list[dict[str, Any]]:
    found = re.search(r'<script type="application/json" id="plots">(.*?)</script>', page, re.DOTALL)
    assert found is not None
    return json.loads(found[1])  # type: ignore[no-any-return]


class Outline(HTMLParser):
    """Ids, links, scripts and the labels of plots."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.loaded: list[str] = []
        self.labels: dict[str, str] = {}
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value or "" for name, value in attrs}
        if "id" in found:
            self.ids.append(found["id"])
        if tag == "a":
            self.targets.append(found["href"])
        self.loaded += [found[name] for name in ("src", "srcset") if name in found]
        if tag == "link":
            self.loaded.append(found["href"])
        if found.get("role") == "img":
            self.labels[found["id"]] = found["aria-label"]


def test_the_page_has_every_plot_with_words_and_a_table_for_it(page: str) -> None:
    assert {spec["name"] for spec in specs(page)} == PLOTS
    outline = Outline(own(page))
    assert {f"plot-{name}" for name in PLOTS} == set(outline.labels)
    assert all(len(label) > 20 for label in outline.labels.values())
    assert own(page).count("The figures of this plot as a table") == len(PLOTS)


def test_the_page_loads_nothing_and_holds_plotly_once(page: str) -> None:
    assert Outline(own(page)).loaded == ["data:,"]
    assert "default-src 'none'" in page
    assert page.count("plotly.js v") == 1
    assert not re.findall(r"url\(|@import|https?://", own(page))


def test_links_lead_somewhere_and_ids_are_unique(page: str) -> None:
    outline = Outline(own(page))
    assert len(outline.ids) == len(set(outline.ids))
    assert {target.removeprefix("#") for target in outline.targets} <= set(outline.ids)


def test_plotly_accepts_every_plot(page: str) -> None:
    from plotly.graph_objects import Figure

    for spec in specs(page):
        text = re.sub(r'"@[a-z-]+"', '"#123456"', json.dumps(spec))
        plain = json.loads(text)
        assert len(Figure(data=plain["data"], layout=plain["layout"]).data) > 0


def test_a_figure_never_parts_from_its_unit_where_a_cell_folds(page: str) -> None:
    assert "+32.9\u00a0% (noise 1.4\u00a0%)</td>" in page and ">36.8\u00a0GB</td>" in page


@pytest.mark.parametrize(
    ("count", "tick"), [(1, 1), (12, 2), (40, 5), (100, 10), (101, 20), (336, 50), (1000, 100)]
)
def test_trials_are_counted_in_round_numbers(count: int, tick: int) -> None:
    summary = summarise(make_study(), [make_run(n, samples_per_s=9, used_gb=10) for n in range(count)])
    plot = progress_plot(summary)
    assert plot is not None and plot.layout["xaxis"]["dtick"] == tick
    low, high = plot.layout["xaxis"]["range"]
    assert -1 < low < 0 and count - 1 < high


def test_every_colour_of_a_plot_is_in_the_style_sheet(page: str) -> None:
    used = set(re.findall(r'"@([a-z-]+)"', json.dumps(specs(page)))) | set(
        re.findall(r"var\(--([a-z-]+)\)", own(page))
    )
    assert used <= set(re.findall(r"--([a-z-]+):", own(page)))


def test_the_page_says_what_bounds_it_what_failed_what_changed_and_on_what_it_ran(page: str) -> None:
    for text in (
        "32.9 % faster than the best baseline that fits",
        "CPU optimizer",
        "D2H 48 % (12.0 GB/s of 25.0 GB/s)",
        "out of host memory (1): trial 8",
        "zero_optimization.overlap_comm",
        "faster when larger",
        "NVIDIA H200",
        "2.13.0",  # torch by the study's settings, DeepSpeed by the winner itself
        "offtune export calm-otter -o ds_config.json",
    ):
        assert text in own(page), text


def test_words_of_a_study_are_text_and_cannot_end_a_script() -> None:
    evil = "</script><script>alert(1)</script><img src=x>"
    runs = [
        *rich_study(),
        make_run(30, Status.CRASHED, reason=evil),
        make_run(31, samples_per_s=9, used_gb=20, origin="baseline", label=evil),
    ]
    study = replace(make_study(notes=[evil]), name=evil, model=evil)
    text = own(render(study_web_report(study_report(summarise(study, runs), ()))))
    assert evil not in text
    assert "<img" not in text
    assert text.count("<script") == text.count("</script>") == 2


def test_a_study_of_the_cpu_accelerator_carries_its_caveats_and_why_there_is_no_curve() -> None:
    runs = rich_study()
    sides = (make_side("Winner", runs[3], []), make_side("Baseline", runs[1], []))
    text = own(render(study_web_report(study_report(summarise(make_study("cpu"), runs), sides))))
    assert "It proves the machinery, not the gain." in text
    assert "There is no curve over time" in text
    assert "Memory by component is not known here" in text
    assert "what bounds it is not known" in text


@pytest.mark.parametrize(
    "runs",
    [
        [],
        [make_run(0, None)],
        [make_run(0, Status.OVER_BUDGET, samples_per_s=9, used_gb=39)],
        [make_run(0, Status.CRASHED)],
        [make_run(0, samples_per_s=9, used_gb=10)],
    ],
    ids=["empty", "running", "nothing fits", "crashed", "one"],
)
def test_a_poor_study_has_a_page_too(runs: list[Any]) -> None:
    text = own(render(study_web_report(study_report(summarise(make_study(), runs), ()))))
    assert "calm-otter" in text
    assert "None" not in re.sub(r"<script.*?</script>|<style.*?</style>", "", text, flags=re.DOTALL)


def test_a_trace_has_a_page_of_its_own() -> None:
    report = trace_report("somebody", [make_timeline(steps=6), make_timeline(steps=6, rank=1)])
    assert [plot.name for section in report.sections for plot in plots_of(section.blocks)] == ["curve"]
    assert "2 devices, means over iterations 3 to 4" in own(render(report))


def test_the_change_is_told_key_by_key() -> None:
    before = {"a": 1, "zero": {"stage": 2, "offload": {"device": "cpu"}, "on": True}}
    after = {"a": 1, "zero": {"stage": 3, "on": 1, "new": {}}}
    assert key_changes(before, after) == (
        KeyChange(key="zero.new", kind="added", before="", after="{}"),
        KeyChange(key="zero.offload.device", kind="removed", before='"cpu"', after=""),
        KeyChange(key="zero.on", kind="changed", before="true", after="1"),
        KeyChange(key="zero.stage", kind="changed", before="2", after="3"),
    )


def test_the_persons_own_file_is_what_the_winner_is_compared_with(tmp_path: Path) -> None:
    location = str(tmp_path / "s.db")
    mine = make_run(0, samples_per_s=5.0, used_gb=20, origin="baseline", label="your file")
    other = make_run(1, samples_per_s=7.0, used_gb=20, origin="baseline", label="stage 2")
    with Store.open(location, write=True) as store:
        store.add_study(make_study())
        for run in (mine, other, make_run(2, samples_per_s=9.0, used_gb=20)):
            store.add_run(run)
    found = read_report(location, None)
    assert found.baseline is not None
    assert found.baseline.label == "your file"


def test_the_command_writes_the_page_and_never_over_a_file(storage: str, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    arguments = ["report", "calm-otter", "-o", str(target), "--storage", storage]
    done = CliRunner().invoke(app, arguments)
    assert (done.exit_code, done.stdout) == (0, "")
    assert "Wrote" in done.stderr
    assert target.read_text().startswith("<!doctype html>")
    again = CliRunner().invoke(app, arguments)
    assert again.exit_code == 2
    assert "exists already" in again.stderr
    assert CliRunner().invoke(app, [*arguments, "--force"]).exit_code == 0


def test_an_unknown_study_leaves_no_file(storage: str, tmp_path: Path) -> None:
    target = tmp_path / "report.html"
    done = CliRunner().invoke(app, ["report", "calm-ottar", "-o", str(target), "--storage", storage])
    assert done.exit_code == 2
    assert "Did you mean calm-otter?" in done.stderr
    assert list(tmp_path.glob("*report*")) == []


def test_a_trace_needs_its_phases(tmp_path: Path) -> None:
    target = str(tmp_path / "report.html")
    alone = CliRunner().invoke(app, ["report", "--trace", "t.csv", "-o", target])
    assert (alone.exit_code, "--phases" in alone.stderr) == (2, True)
    reverse = CliRunner().invoke(app, ["report", "--phases", "p.csv", "-o", target])
    assert (reverse.exit_code, "--trace" in reverse.stderr) == (2, True)


def test_show_tells_phases_bounds_knobs_and_the_change_as_page_and_as_json(storage: str) -> None:
    shown = CliRunner().invoke(app, ["show", "--storage", storage]).stdout
    for text in ("Time of a step", "What bounds trial 3", "Which knobs matter", "From 'stage 2 + optimizer"):
        assert text in shown, text
    found = json.loads(CliRunner().invoke(app, ["show", "--json", "--storage", storage]).stdout)
    assert found["compared_with"] == 1
    assert found["knobs"][0]["name"] == "micro_batch"
    assert found["bounds"]["winner"]["phases"][2]["resource"] == "CPU optimizer"
    assert {change["key"] for change in found["change"]} >= {"zero_optimization.overlap_comm"}
