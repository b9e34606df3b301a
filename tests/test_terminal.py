"""Pages and progress as they come out: widths, streams, colours, and what they say."""

from __future__ import annotations

import io
from dataclasses import dataclass, replace
from typing import Any

import pytest
from conftest import workload
from report_fakes import GB, make_run, make_study, rich_study
from rich.console import Console

from offtune.config import RunConfig
from offtune.phase_analysis import Figure, PhaseFigures, StepAnalysis
from offtune.records import Limits
from offtune.report.page import Facts, Page
from offtune.report.result_page import result_page
from offtune.report.setup_page import doctor_page, dry_run_page, start_page
from offtune.report.study_page import list_page, study_page
from offtune.report.summary import summarise
from offtune.report.terminal import Progress, draw, make_console
from offtune.report.trial_page import trial_page
from offtune.report.words import STATUS_WORDS
from offtune.space import load_space
from offtune.trial import Status

CUDA, CPU = make_study(), make_study("cpu")
LIMITS = Limits(device_bytes=38 * GB, host_bytes=200 * GB)


@dataclass
class Check:
    name: str
    state: str
    detail: str
    remedy: str = ""


CHECKS = [
    Check("compiler", "ok", "g++ 12.2"),
    Check(
        "libaio",
        "warn",
        "its headers are missing",
        "Debian and Ubuntu: apt install libaio-dev, then try again " * 2,
    ),
]
CONFIG = RunConfig(
    workload=workload(),
    device="cpu",
    gpus=(),
    threads_per_rank=2,
    budget_bytes=2 * GB,
    limit_bytes=2 * GB,
    host_limit_bytes=9 * GB,
    nvme_path=None,
    space="default",
    trials=12,
    time_s=None,
    trial_timeout_s=600.0,
    warmup_steps=2,
    steps=5,
    seed=0,
    sampler="tpe",
    machine={},
)
PAGES: dict[str, Page] = {
    "start": start_page(
        CPU, LIMITS, notes=["NVMe offload is left out. Give --nvme-path FOLDER to include it."]
    ),
    "result": result_page(summarise(CUDA, rich_study())),
    "nothing fits": result_page(
        summarise(CUDA, rich_study(), Limits(device_bytes=9 * GB, host_bytes=50 * GB))
    ),
    "no memory failure": result_page(summarise(CUDA, [make_run(0, Status.CRASHED, reason="It broke.")])),
    "study": study_page(summarise(CPU, rich_study())),
    "empty study": study_page(summarise(CUDA, [])),
    "list": list_page([summarise(CUDA, rich_study()), summarise(CPU, [])]),
    "trial": trial_page(CPU, make_run(5, samples_per_s=9.4, used_gb=33.0)),
    "running trial": trial_page(CUDA, make_run(5, None)),
    "doctor": doctor_page(CHECKS),
    "dry run": dry_run_page(CONFIG, load_space("default")),
}


@pytest.fixture(autouse=True)
def _plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rich reads from the environment must not decide these tests."""
    monkeypatch.setenv("TERM", "xterm")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)


def console_of(width: int = 80, *, terminal: bool = False, color: Any = None) -> tuple[Console, io.StringIO]:
    stream = io.StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=terminal,
        color_system=color,
        highlight=False,
        markup=False,
        emoji=False,
    )
    return console, stream


def drawn(page: Page, width: int = 80, *, terminal: bool = True) -> str:
    console, stream = console_of(width, terminal=terminal)
    draw(console, page)
    return stream.getvalue()


def joined(text: str) -> str:
    """The text with every run of white space as one space, to look for sentences over line ends."""
    return " ".join(text.split())


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [80, 120])
def test_no_page_is_wider_than_the_terminal(name: str, width: int) -> None:
    lines = drawn(PAGES[name], width).splitlines()
    assert lines
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("name", PAGES)
def test_a_file_gets_no_escape_codes_and_no_word_is_lost(name: str) -> None:
    plain = drawn(PAGES[name], terminal=False)
    assert "\x1b" not in plain
    assert len("".join(plain.split())) == len("".join(drawn(PAGES[name], 120).split()))


def test_the_result_says_the_gain_over_the_baselines_and_the_next_command() -> None:
    text = joined(drawn(PAGES["result"]))
    assert (
        "32.9 % faster than the best baseline that fits, 'stage 2 + optimizer offload' (noise 1.4 %)" in text
    )
    assert "+78.7 % (noise 1.4 %)" in text
    assert "offtune export calm-otter -o ds_config.json" in text


def test_a_gain_within_the_noise_is_no_winner() -> None:
    runs = [
        make_run(0, samples_per_s=9.0, used_gb=1, spread=0.05, origin="baseline", label="stage 2"),
        make_run(1, samples_per_s=9.1, used_gb=1, spread=0.05),
    ]
    text = joined(drawn(result_page(summarise(CUDA, runs))))
    assert "No clear winner: +1.1 % over the best baseline, 'stage 2', is within the noise of 7.1 %." in text


def test_a_winning_baseline_is_said_to_be_one() -> None:
    run = make_run(0, samples_per_s=9.0, used_gb=1, origin="baseline", label="stage 2")
    assert "Nothing found is faster than the baseline 'stage 2'." in joined(
        drawn(result_page(summarise(CUDA, [run])))
    )


def test_without_a_fitting_baseline_no_gain_is_claimed() -> None:
    text = joined(drawn(result_page(summarise(CUDA, [make_run(0, samples_per_s=9.0, used_gb=1)]))))
    assert "nothing to compare" in text
    assert "faster" not in text


def test_nothing_fits_says_by_how_many_bytes_and_what_would_help() -> None:
    miss = make_run(0, Status.OVER_BUDGET, samples_per_s=9.0, used_gb=38.4)
    text = joined(drawn(result_page(summarise(CUDA, [miss]))))
    assert "Nothing fits 38.0 GB per rank" in text
    assert "400 MB (400,000,000 bytes) too much device memory" in text
    assert "--activation-checkpointing" in text
    assert "--budget 40.5GB" in text


def test_nothing_fits_names_the_host_where_the_host_is_in_the_way() -> None:
    text = joined(drawn(result_page(summarise(CUDA, [make_run(0, Status.OOM_HOST, host_gb=230)]))))
    assert "Nothing fits 200 GB of host memory" in text
    assert "30.0 GB (30,000,000,000 bytes) too much host memory" in text


def test_nothing_fits_without_a_memory_failure_does_not_blame_the_budget() -> None:
    text = joined(drawn(PAGES["no memory failure"]))
    assert "the budget is not the reason" in text
    assert "It broke." in text


def test_the_study_page_groups_failures_and_says_the_remedy() -> None:
    text = joined(drawn(PAGES["study"]))
    assert "crashed (1): trial 6" in text
    assert "offtune show calm-otter --trial 6" in text
    assert "exit -11 (SIGSEGV)" in text
    assert "offtune resume calm-otter" in text


@pytest.mark.parametrize("name", ["start", "study", "trial", "dry run"])
def test_figures_of_the_cpu_accelerator_come_with_their_caveats(name: str) -> None:
    text = joined(drawn(PAGES[name]))
    for caveat in (
        "proves the machinery, not the gain",
        "above its level before the model was built",
        "one memory",
    ):
        assert caveat in text


def test_figures_of_a_gpu_come_without_them() -> None:
    assert "CPU accelerator" not in drawn(study_page(summarise(CUDA, rich_study())))


def test_a_trial_shows_every_figure_and_why_one_is_missing() -> None:
    text = joined(drawn(PAGES["trial"]))
    assert "851 ms (median of 5" in text
    assert "PCIe H2D - (no PCIe counter on this device)" in text
    assert '"reduce_bucket_size": 4194304' in text


def test_a_recorded_trial_shows_the_parts_of_its_phases_the_longest_first() -> None:
    parts = (
        PhaseFigures(name="update.flush", seconds=0.1, share=0.1),
        PhaseFigures(name="update.cpu_optimizer", seconds=0.2, share=0.2),
    )
    memory = {"allocated_bytes": Figure(mean=1e9, peak=2e9, samples=5)}
    update = PhaseFigures(name="update", seconds=0.4, share=0.4, figures=memory)
    analysis = StepAnalysis(steps=3, step_s=1.0, phases=(update,), parts=parts)
    run = make_run(5)
    assert run.result is not None
    text = joined(drawn(trial_page(CUDA, replace(run, result=replace(run.result, analysis=analysis)))))
    assert "allocated, peak 2.00 GB" in text
    assert text.index("update: cpu optimizer 200 ms 20 %") < text.index("update: flush 100 ms 10 %")


def test_a_failed_trial_shows_its_reason_exit_code_and_log() -> None:
    run = make_run(6, Status.CRASHED, reason="Rank 0: exit -9 (SIGKILL): killed from outside.")
    assert run.result is not None
    run = make_run(
        6,
        Status.CRASHED,
        result=type(run.result)(status=Status.CRASHED, exit_codes=(-9,), log_tail="the end"),
    )
    text = joined(drawn(trial_page(CUDA, run)))
    assert "rank 0: -9" in text
    assert "End of its log the end" in text


def test_doctor_shows_the_remedy_under_what_is_not_well() -> None:
    ok, warn, *remedy = drawn(PAGES["doctor"]).splitlines()
    assert ok == "ok    compiler: g++ 12.2"
    assert warn.startswith("warn  libaio")
    assert all(line.startswith("      ") for line in remedy)


def test_a_dry_run_says_what_every_knob_trades() -> None:
    text = joined(drawn(PAGES["dry run"]))
    for knob in load_space("default").knobs:
        assert f"{knob.name} {knob.domain} {knob.about}" in text


def test_every_status_has_words() -> None:
    assert set(STATUS_WORDS) == set(Status)


def run_search(console: Console) -> None:
    """A whole search on `console`."""
    with Progress(console) as progress:
        progress.start(CUDA, LIMITS)
        progress.note("Building DeepSpeed's CPU Adam ...")
        best = None
        for run in rich_study()[:-1]:
            progress.begin(run)
            best = run if run.number in (1, 3) else best
            progress.trial(run, best)
        progress.finish(summarise(CUDA, rich_study()))


def test_in_a_file_every_trial_is_one_whole_line_and_nothing_is_live() -> None:
    console, stream = console_of()
    run_search(console)
    lines = stream.getvalue().splitlines()
    assert sum(line[:5].strip(" *").isdigit() for line in lines) == 11
    assert (
        "  3* ok               10.9   36.8 GB  97%   41 s  zero3 opt=cpu, micro 8, bucket 2^22, resident/16 9"
        in lines
    )
    assert "trials  about" not in stream.getvalue()
    assert "\x1b" not in stream.getvalue()


def test_on_a_terminal_there_is_a_live_line_and_it_goes_away() -> None:
    console, stream = console_of(terminal=True)
    run_search(console)
    text = stream.getvalue()
    assert "best #3: 10.9 samples/s, 36.8 GB" in text
    assert text.count("\x1b[?25l") == text.count("\x1b[?25h") == 1  # the cursor comes back


def test_the_live_line_goes_away_when_the_search_breaks_off() -> None:
    def break_off() -> None:
        with Progress(console) as progress:
            progress.start(CUDA, LIMITS)
            raise KeyboardInterrupt

    console, stream = console_of(terminal=True)
    with pytest.raises(KeyboardInterrupt):
        break_off()
    assert stream.getvalue().count("\x1b[?25h") == 1


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    def codes() -> str:
        console, stream = console_of(terminal=True, color="standard")
        draw(console, PAGES["study"])
        return stream.getvalue()

    assert "\x1b[32m" in codes()
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[32m" not in codes()


def test_the_names_of_facts_are_dim_and_their_values_are_not() -> None:
    console, stream = console_of(terminal=True, color="standard")
    draw(console, (Facts(rows=(("model", "llama-1b"),)),))
    assert stream.getvalue() == "\x1b[2m  model        \x1b[0mllama-1b\n"


def test_the_console_leaves_brackets_in_text_alone() -> None:
    console = make_console()
    with console.capture() as capture:
        console.print("[bold] 12 :smile:")
    assert capture.get() == "[bold] 12 :smile:\n"
