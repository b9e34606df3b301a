"""The report in a real Chromium: no complaints, every plot drawn, nothing too wide; phone, screen, paper."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import chromium
import pytest
from profile_fakes import make_profiled
from report_fakes import make_study, rich_study
from timeline_fakes import make_timeline
from web_fakes import with_predictions, write_study

from offtune.report.html import render
from offtune.report.profile_html import profile_report
from offtune.report.study_report import read_report, study_report
from offtune.report.study_sections import study_web_report
from offtune.report.summary import summarise
from offtune.report.trace_sections import trace_report

pytestmark = pytest.mark.skipif(chromium.why_not() is not None, reason=str(chromium.why_not()))

WIDTHS = (360, 768, 1280)
# Everything that reaches beyond the window and is not inside a box that scrolls.
TOO_WIDE = """[...document.querySelectorAll('body *')]
    .filter(e => !e.closest('.scroll, pre, .plot, .skip'))
    .filter(e => e.getBoundingClientRect().right > innerWidth + 0.5)
    .map(e => e.tagName + '.' + e.className)"""
DRAWN = """[...document.querySelectorAll('.plot')].map(e => ({
    name: e.id, marks: e.querySelectorAll('path.point, .point path, path.js-line, .fills path').length,
    width: e.querySelector('svg')?.getBoundingClientRect().width ?? 0, room: e.clientWidth}))"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    cpu = study_report(summarise(make_study("cpu"), rich_study()), ())
    reports = {
        "study": study_web_report(with_predictions(read_report(write_study(folder), None))),
        "cpu": study_web_report(cpu),
        "empty": study_web_report(study_report(summarise(make_study(), []), ())),
        "trace": trace_report("somebody", [make_timeline(steps=6)]),
        "profile": profile_report(make_profiled()),
    }
    for name, report in reports.items():
        (folder / f"{name}.html").write_text(render(report))
    return {name: folder / f"{name}.html" for name in reports}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    with chromium.browser(tmp_path_factory.mktemp("profile")) as found:
        yield found


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["study", "cpu", "empty", "trace", "profile"])
def test_a_page_draws_without_complaint_and_fits(
    browser: chromium.Browser, pages: dict[str, Path], name: str, width: int
) -> None:
    browser.open(pages[name], width=width)
    assert browser.complaints() == []
    assert browser.ask("document.documentElement.scrollWidth") == width
    assert browser.ask(TOO_WIDE) == []
    plots = browser.ask(DRAWN)
    assert browser.ask("document.documentElement.dataset.drawn") == str(len(plots))
    assert all(plot["marks"] > 0 for plot in plots), plots
    assert all(0 < plot["width"] <= plot["room"] for plot in plots), plots
    assert len(plots) == {"study": 9, "cpu": 3, "empty": 0, "trace": 1, "profile": 2}[name]


def test_a_page_with_something_wrong_is_noticed(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    broken = pages["cpu"].with_name("broken.html")
    wrong = (
        '<img src="https://example.invalid/x.png"><script>nothing()</script>'
        '<div class="broad" style="width: 2000px">too wide</div>'
    )
    broken.write_text(pages["cpu"].read_text().replace("</main>", wrong + "</main>"))
    browser.open(broken)
    complaints = " ".join(browser.complaints())
    assert "Content Security Policy" in complaints
    assert "nothing is not defined" in complaints
    assert browser.ask(TOO_WIDE) == ["DIV.broad"]


def test_the_page_loads_nothing(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["study"])
    assert browser.ask("performance.getEntriesByType('resource').length") == 0


def test_dark_and_light_follow_the_system_also_on_an_open_page(
    browser: chromium.Browser, pages: dict[str, Path]
) -> None:
    colours = (
        "[getComputedStyle(document.body).backgroundColor, document.querySelector('.xtick text').style.fill]"
    )
    browser.open(pages["study"], dark=False)
    light = browser.ask(colours)
    browser.scheme(dark=True)
    dark = _until(
        lambda: browser.ask(colours), lambda now: all(a != b for a, b in zip(light, now, strict=True))
    )
    assert [_brightness(text) > 128 for text in (*light, *dark)] == [True, False, False, True]


def test_a_narrower_window_gets_narrower_plots(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["study"], width=1280)
    wide = browser.ask(DRAWN)[0]["width"]
    browser.driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": 600, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    narrow = _until(lambda: browser.ask(DRAWN)[0]["width"], lambda now: now < 600)
    assert narrow < 600 < wide


def test_text_can_be_read_against_its_ground(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    """WCAG AA: 4.5 to 1 for text, in both schemes."""
    for dark in (False, True):
        browser.open(pages["study"], dark=dark)
        style = "getComputedStyle(document.documentElement).getPropertyValue('--{}').trim()"
        for text in ("ink", "dim", "accent", "added", "removed"):
            for ground in ("ground", "card"):
                ratio = _contrast(browser.ask(style.format(text)), browser.ask(style.format(ground)))
                assert ratio >= 4.5, (text, ground, dark, ratio)


def test_everything_can_be_reached_by_keyboard(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    browser.open(pages["study"])
    reached = []
    for _ in range(80):
        ActionChains(browser.driver).send_keys(Keys.TAB).perform()
        what = browser.ask("document.activeElement.tagName + ' ' + (document.activeElement.className || '')")
        if what.startswith("BODY"):
            break
        reached.append(what.strip())
    assert reached[0] == "A skip"
    wanted = {"A": "nav a, .skip", "SUMMARY": "summary", "DIV scroll": "main > section > .scroll"}
    for name, selector in wanted.items():
        count = browser.ask(f"document.querySelectorAll('{selector}').length")
        assert sum(one.startswith(name) for one in reached) >= count > 0, (name, reached)


def test_a_table_opens_by_keyboard(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    from selenium.webdriver.common.by import By
    from selenium.webdriver.common.keys import Keys

    browser.open(pages["study"], width=360)
    summary = browser.driver.find_element(By.CSS_SELECTOR, "#memory summary")
    summary.send_keys(Keys.ENTER)
    assert browser.ask("document.querySelector('#memory details').open")
    assert browser.ask("document.documentElement.scrollWidth") == 360


def test_the_page_prints_in_light_colours_and_draws_again_afterwards(
    browser: chromium.Browser, pages: dict[str, Path]
) -> None:
    browser.open(pages["study"], dark=True)
    script = """window.seen = []; addEventListener('beforeprint', () => seen.push(
        getComputedStyle(document.documentElement).getPropertyValue('--ink').trim()))"""
    browser.driver.execute_script(script)
    printed = browser.pdf()
    assert printed.startswith(b"%PDF")
    assert 3 <= len(re.findall(rb"/Type\s*/Page\b", printed)) <= 20
    assert browser.ask("window.seen") == ["#22262b"]
    assert browser.ask("document.documentElement.classList.contains('printing')") is False
    plots = browser.ask(DRAWN)
    assert all(0 < plot["width"] <= plot["room"] for plot in plots)


def _channels(colour: str) -> list[int]:
    if colour.startswith("#"):
        return [int(colour[k : k + 2], 16) for k in (1, 3, 5)]
    return [int(text) for text in re.findall(r"\d+", colour)[:3]]


def _brightness(colour: str) -> float:
    return sum(_channels(colour)) / 3


def _contrast(first: str, second: str) -> float:
    def luminance(colour: str) -> float:
        shares = [channel / 255 for channel in _channels(colour)]
        linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in shares]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    high, low = sorted((luminance(first), luminance(second)), reverse=True)
    return (high + 0.05) / (low + 0.05)


def _until(look: Callable[[], Any], is_so: Callable[[Any], bool]) -> Any:
    """What is seen once it is so: a page draws again some frames after it was asked to."""
    give_up = time.monotonic() + 120
    while not is_so(seen := look()):
        assert time.monotonic() < give_up, seen
        time.sleep(0.05)
    return seen
