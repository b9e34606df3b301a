"""Calibrating: children that hang, die or babble; files and rows that come back; one that really measures."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest
from clock import Clock
from processes import is_running
from typer.testing import CliRunner

from offtune import calibrate, calibrated_profile, child_lines, hardware_profile, ops
from offtune.calibrate import Settings
from offtune.calibration import SECTIONS, Calibration, Figure
from offtune.cli import app
from offtune.errors import OfftuneError, UsageError
from offtune.ops import OpState
from offtune.plan_request import PlanOptions, resolve
from offtune.report.calibrate_page import calibrate_document, calibrate_page
from offtune.store import Store

CHILD = str(Path(__file__).parent / "fake_calibrate.py")


@pytest.fixture
def late_after(monkeypatch):
    """Let the time for measuring be up once a figure has come, however long that took."""

    def after(key: str) -> None:
        seen: list[str] = []
        read = calibrate._figure

        def reading(event):
            seen.append(event.get("key"))
            return read(event)

        monkeypatch.setattr(calibrate, "_figure", reading)
        monkeypatch.setattr(child_lines, "time", Clock(lambda: key in seen))

    return after


@pytest.fixture
def measure(monkeypatch):
    """Calibrates with the fake child in some mode; ops are there unless told otherwise."""

    def run(mode: str, states=None, **settings) -> Calibration:
        monkeypatch.setattr(ops, "prepare", lambda *_: states or {})
        chosen = Settings(device="cpu", **{"deadline_s": 300.0, **settings})
        return calibrate.calibrate(chosen, lambda _: None, (sys.executable, CHILD, mode))

    return run


def figure(key: str, value: float | None = 1e10, **changes) -> Figure:
    return Figure(
        key=key, **{"value": value, "unit": "B/s", "spread": 0.1, "count": 9, "detail": "d", **changes}
    )


def cuda_calibration(*figures: Figure, cards: str = "8 x NVIDIA H100 80GB HBM3, 85.9 GB") -> Calibration:
    return Calibration(
        measured_at="2026-08-01T10:00:00.000000+00:00", device="cuda", ranks=8, threads=7, load_per_core=0.1,
        seconds=60.0, fingerprint={"processor": "p", "GPUs": cards}, figures=figures,
    )  # fmt: skip


def test_what_the_child_reports_is_kept_and_what_it_does_not_is_null_with_a_reason(measure):
    found = measure("whole")
    assert found.figure("host.copy.threads_1").value == 5e9
    assert (
        found.figure("nvme.read").value is None and found.figure("nvme.read").detail == "no folder was named"
    )
    assert found.figure("matrix.fp32").value is None
    keys = [figure.key for figure in found.figures]
    assert all(any(key.startswith(p) for key in keys) for parts in SECTIONS.values() for p, _ in parts)
    assert len(keys) == len(set(keys))
    assert all(figure.value is not None or figure.detail for figure in found.figures)


def test_garbage_on_its_output_is_no_figure(measure):
    assert all(isinstance(figure.key, str) for figure in measure("whole").figures)


def test_a_child_that_hangs_is_ended_with_all_it_started_and_what_it_measured_is_kept(measure, late_after):
    late_after("helper")
    found = measure("hang")
    assert found.figure("host.copy.threads_1").value == 5e9
    assert "time for measuring was up" in found.figure("adam").detail
    assert "CPU Adam" in found.figure("adam").detail
    helper = int(found.figure("helper").value)
    assert not is_running(helper)


def test_a_child_that_babbles_without_end_is_ended_too(measure, late_after):
    late_after("host.copy.threads_1")
    assert "time for measuring was up" in measure("babble").figure("adam").detail


def test_a_child_that_dies_says_where_and_with_which_words(measure):
    reason = measure("die").figure("nvme.write").detail
    assert "signal 6" in reason and "aio: cannot lock memory" in reason and "storage" in reason


def test_a_section_that_fails_leaves_the_others(measure):
    found = measure("section")
    assert found.figure("adam").detail == "RuntimeError: no op"
    assert found.figure("host.copy.threads_1").value == 5e9


def test_when_nothing_is_measured_that_is_an_error_with_the_childs_words(measure):
    with pytest.raises(OfftuneError, match=r"code 3: no torch here") as caught:
        measure("nothing")
    assert "offtune doctor" in caught.value.hint


def test_an_op_that_is_not_to_be_had_leaves_its_section_out(measure):
    lost = OpState(op="cpu_adam", state="failed", error="no compiler", remedy="install g++")
    found = measure("whole", states={"cpu_adam": lost})
    assert found.figure("adam").detail == "without cpu_adam: no compiler"
    assert any("install g++" in note for note in found.notes)


def test_a_busy_machine_is_said(measure, monkeypatch):
    monkeypatch.setattr(calibrate.host, "load_per_core", lambda: 3.0)
    assert any("Others use this machine (load 3.0 per core)" in note for note in measure("whole").notes)
    monkeypatch.setattr(calibrate.host, "load_per_core", lambda: 0.1)
    assert measure("whole").notes == ()


def test_the_folder_on_nvme_is_left_as_it_was(measure, tmp_path):
    measure("die", nvme_path=str(tmp_path))
    assert not list(tmp_path.glob("offtune-calibrate-*"))


def test_the_written_file_loads_as_a_profile_with_its_sources(measure, tmp_path):
    found = measure("whole")
    calibrated_profile.write(found, tmp_path / "mine.yaml", force=False)
    profile = hardware_profile.load(str(tmp_path / "mine.yaml"))
    assert profile.device == "cpu" and profile.host_copy_bytes_per_s == 5e9
    assert profile.sources["host_copy_bytes_per_s"].startswith("measured by offtune calibrate on 20")
    assert profile.is_own("host_copy_bytes_per_s")
    assert calibrated_profile.profile(found).host_copy_bytes_per_s == profile.host_copy_bytes_per_s
    assert profile.matrix_flops_per_s == {"bf16": 1e11, "fp16": 0.0, "fp32": 0.0}
    assert profile.attention_efficiency == pytest.approx(0.4)
    for number in calibrated_profile.taken_over(found):
        assert not profile.sources[number].startswith("measured by offtune calibrate"), number


def test_a_card_takes_links_of_the_largest_copies_and_the_rest_from_its_kind(tmp_path):
    found = cuda_calibration(
        figure("h2d.pinned.1MiB", 1e10), figure("h2d.pinned.256MiB", 2e10), figure("link.duplex", 0.8),
        figure("collective.64MiB", 1e11), figure("adam.threads_1", 1e8), figure("adam.threads_56", 3e9),
    )  # fmt: skip
    calibrated_profile.write(found, tmp_path / "mine.yaml", force=False)
    profile, h100 = hardware_profile.load(str(tmp_path / "mine.yaml")), hardware_profile.load("h100-80gb")
    assert profile.device == "cuda" and profile.gpus_per_node == 8
    assert (profile.h2d_bytes_per_s, profile.duplex_share, profile.collective_bytes_per_s) == (
        2e10,
        0.8,
        1e11,
    )
    assert profile.adam_elements_per_s == 3e9
    assert profile.d2h_bytes_per_s == h100.d2h_bytes_per_s
    assert profile.sources["d2h_bytes_per_s"].startswith("as h100-80gb: ")


@pytest.mark.parametrize(
    ("cards", "name"),
    [
        ("1 x NVIDIA GH200 480GB, 102 GB", "gh200"),
        ("1 x NVIDIA H200, 151 GB", "h200"),
        ("1 x NVIDIA L4, 24.1 GB", "l4"),
        ("1 x NVIDIA L40S, 48.3 GB", "a100-40gb"),
        ("2 x Tesla V100-SXM2-16GB, 16.9 GB", "v100-32gb"),
        ("4 x NVIDIA A100-SXM4-80GB, 85.9 GB", "a100-80gb"),
        ("4 x NVIDIA A100-SXM4-40GB, 42.9 GB", "a100-40gb"),
    ],
)
def test_the_nearest_profile_goes_by_the_cards_name(cards, name):
    assert calibrated_profile.like(cuda_calibration(cards=cards)) == name


def test_a_calibration_comes_back_from_the_database_by_its_machine(tmp_path):
    first, second = cuda_calibration(figure("adam.threads_1")), cuda_calibration(figure("nvme.read", None))
    other = {**first.fingerprint, "cores": "3"}
    with Store.open(str(tmp_path / "s.db"), write=True) as store:
        assert store.calibration(first.fingerprint) is None
        store.add_calibration(first.fingerprint, first)
        assert store.calibration(first.fingerprint) == first
        store.add_calibration(first.fingerprint, second)
        assert store.calibration(first.fingerprint) == second
        assert store.calibration(other) is None


def test_a_plan_without_hardware_takes_what_was_calibrated_here(measure, tmp_path, monkeypatch):
    monkeypatch.setattr("offtune.hardware.cuda_gpus", lambda machine: ())
    storage, found = str(tmp_path / "s.db"), measure("whole")
    asked = PlanOptions(model="llama-5m", storage=storage)
    before = resolve(asked)
    assert before.hardware.host_copy_bytes_per_s == hardware_profile.load("cpu").host_copy_bytes_per_s
    assert "not measured here" in before.hardware.about
    with Store.open(storage, write=True) as store:
        store.add_calibration(found.fingerprint, found)
    for named in (None, "this"):
        here = resolve(dataclasses.replace(asked, hardware=named)).hardware
        assert here.host_copy_bytes_per_s == 5e9
        assert here.name == "this machine"
        assert here.about.startswith("measured by offtune calibrate")
    assert resolve(dataclasses.replace(asked, hardware="l4")).hardware.name == "l4"


def test_the_page_shows_spread_and_reasons_and_the_document_is_strict_json(measure):
    found = dataclasses.replace(measure("whole"), notes=("busy",))
    text = str(calibrate_page(found, Path("mine.yaml")))
    assert "5.00 GB/s" in text and "10 %" in text and "no folder was named" in text and "busy" in text
    document = json.loads(json.dumps(calibrate_document(found), allow_nan=False))
    assert document["schema"] == "offtune.calibration/1"
    values = {entry["key"]: entry["value"] for entry in document["figures"]}
    assert values["nvme.read"] is None and values["host.copy.threads_1"] == 5e9


def test_an_output_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path):
    there = tmp_path / "there.yaml"
    there.touch()
    for path, force in ((there, False), (tmp_path / "no" / "x.yaml", True), (tmp_path / "x.json", False)):
        with pytest.raises(UsageError) as caught:
            calibrate.check_output(path, force)
        assert caught.value.hint
    calibrate.check_output(there, True)


@pytest.mark.train
def test_this_machine_is_measured_for_real(tmp_path):
    path, storage = tmp_path / "this.yaml", str(tmp_path / "s.db")
    arguments = ["calibrate", "--quick", "--device", "cpu", "-o", str(path), "--storage", storage, "--json"]
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.stderr
    document = json.loads(done.stdout)
    values = {entry["key"]: entry["value"] for entry in document["figures"]}
    # A factor of a thousand either way would be a wrong unit; less may be a slow or a busy machine.
    assert 1e8 < values["matrix.bf16"] < 1e16 and 1e7 < values["host.copy.threads_1"] < 1e13
    assert 1e5 < values["adam.threads_1"] < 1e12
    assert 1e-8 < values["launch.operation"] < 1e-2
    assert values["h2d.pinned.256MiB"] is None and values["nvme.read"] is None
    assert hardware_profile.load(str(path)).adam_elements_per_s > 1e6
    with Store.open(storage, write=False) as store:
        assert store.calibration(document["fingerprint"]) is not None
