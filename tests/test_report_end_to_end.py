"""A report on a study that really trained: written by the commands, looked at in a real Chromium."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import chromium
import pytest

pytestmark = pytest.mark.train

SEARCH = ("search", "--budget", "2GB", "--trials", "8", "--space", "ladder", "--steps", "2", "--no-finals")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the studies.db of a finished search and its report."""
    place = tmp_path_factory.mktemp("real")
    for arguments in (SEARCH, ("report", "-o", "report.html")):
        command = [sys.executable, "-m", "offtune", *arguments]
        done = subprocess.run(command, cwd=place, capture_output=True, text=True, timeout=600, check=False)
        assert done.returncode == 0, done.stderr
    return place


def test_a_real_study_has_its_figures_and_the_caveats_of_the_cpu_accelerator(folder: Path) -> None:
    text = (folder / "report.html").read_text()
    for words in (
        "8 of 8 trials",
        "It proves the machinery, not the gain.",
        "stage 3 + both",
        "zero_optimization",
    ):
        assert words in text, words


@pytest.mark.skipif(chromium.why_not() is not None, reason=str(chromium.why_not()))
@pytest.mark.parametrize("width", [360, 1280])
def test_a_real_study_draws_without_complaint_and_fits(folder: Path, tmp_path: Path, width: int) -> None:
    with chromium.browser(tmp_path / "profile") as browser:
        browser.open(folder / "report.html", width=width)
        assert browser.complaints() == []
        assert browser.ask("document.documentElement.scrollWidth") == width
        assert int(browser.ask("document.documentElement.dataset.drawn")) >= 3
        assert browser.pdf().startswith(b"%PDF")
