"""A file being written: refused early, whole or not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from offtune.draft import draft
from offtune.errors import OfftuneError, UsageError


def test_a_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    with draft(target, force=False) as file:
        file.write("hello")
        assert not target.exists()
    assert target.read_text() == "hello"
    assert list(tmp_path.iterdir()) == [target]


def test_what_is_there_is_kept_unless_forced_and_also_when_the_work_fails(tmp_path: Path) -> None:
    target = tmp_path / "page.html"
    target.write_text("mine")
    with pytest.raises(UsageError, match="exists already"), draft(target, force=False):
        raise AssertionError("the work must not start")
    with pytest.raises(ZeroDivisionError), draft(target, force=True) as file:
        file.write(f"half {1 / 0}")
    assert target.read_text() == "mine"
    assert list(tmp_path.iterdir()) == [target]


def test_a_place_that_cannot_be_written_is_found_before_the_work(tmp_path: Path) -> None:
    with (
        pytest.raises(OfftuneError, match="cannot be written"),
        draft(tmp_path / "no" / "page.html", force=False),
    ):
        raise AssertionError("the work must not start")
    with pytest.raises(UsageError, match="not a file"), draft(tmp_path, force=True):
        raise AssertionError("the work must not start")


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    real, link = tmp_path / "real.html", tmp_path / "link.html"
    real.write_text("old")
    link.symlink_to(real)
    with draft(link, force=True) as file:
        file.write("new")
    assert link.is_symlink()
    assert real.read_text() == "new"
