"""A report on a study that really trained: written by the commands, looked at in a real Chromium."""

from __future__ import annotations

import html
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import chromium
import pytest

from offtune.report.difference import key_changes

pytestmark = pytest.mark.train

SEARCH = ("search", "--budget", "2GB", "--trials", "8", "--space", "ladder", "--steps", "2", "--no-finals")


def offtune(folder: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "offtune", *arguments]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=1200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the studies.db of a finished search and its report."""
    place = tmp_path_factory.mktemp("real")
    offtune(place, *SEARCH)
    offtune(place, "report", "-o", "report.html")
    return place


@pytest.fixture(scope="module")
def page(folder: Path) -> str:
    """The page's text; its signs are as they were before they were written for HTML."""
    return html.unescape((folder / "report.html").read_text())


@pytest.fixture(scope="module")
def shown(folder: Path) -> dict[str, Any]:
    document: dict[str, Any] = json.loads(offtune(folder, "show", "--json"))
    return document


def test_a_real_study_has_its_figures_and_the_caveats_of_the_cpu_accelerator(page: str) -> None:
    for words in ("8 of 8 trials", "It proves the machinery, not the gain.", "stage 3 + both"):
        assert words in page, words


def test_the_page_tells_who_won_and_against_whom_whichever_that_is(page: str, shown: dict[str, Any]) -> None:
    """So near each other are these configurations that the winner is another on every machine."""
    usable = [each for each in shown["baselines"] if each["gain_percent"] is not None]
    fastest = max(usable, key=lambda each: each["samples_per_s"])
    verdict = page.partition('<p class="verdict">')[2].partition("</p>")[0]
    assert f"'{fastest['label']}'" in verdict
    same = fastest["trial"] == shown["best"]["trial"]
    assert verdict.startswith("Nothing found is faster than the baseline") == same
    assert f"Winner: trial {shown['best']['trial']}" in page
    assert f"Baseline: trial {shown['compared_with']}" in page


def test_the_page_tells_every_key_in_which_the_two_exported_files_differ(
    folder: Path, page: str, shown: dict[str, Any]
) -> None:
    winner, other = shown["best"]["trial"], shown["compared_with"]
    label = next(trial["label"] for trial in shown["trials"] if trial["number"] == other)
    change = page.partition('<section id="change"')[2].partition("</section>")[0]
    assert f"From '{label}' to the winner" in change
    before, after = (json.loads(offtune(folder, "export", *which)) for which in (("--trial", str(other)), ()))
    differing = {(one.key, one.before, one.after) for one in key_changes(before, after)}
    told = {(one["key"], one["before"], one["after"]) for one in shown["change"]}
    assert winner != other and differing
    assert differing <= told
    for key, was, now in told:
        for cell in (key, f"- {was}" if was else "", f"+ {now}" if now else ""):
            assert f">{cell}</td>" in change, cell


@pytest.mark.skipif(chromium.why_not() is not None, reason=str(chromium.why_not()))
@pytest.mark.parametrize("width", [360, 1280])
def test_a_real_study_draws_without_complaint_and_fits(folder: Path, tmp_path: Path, width: int) -> None:
    with chromium.browser(tmp_path / "profile") as browser:
        browser.open(folder / "report.html", width=width)
        assert browser.complaints() == []
        assert browser.ask("document.documentElement.scrollWidth") == width
        assert int(browser.ask("document.documentElement.dataset.drawn")) >= 3
        assert browser.pdf().startswith(b"%PDF")
