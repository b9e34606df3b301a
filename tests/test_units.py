"""Sizes and times are read exactly or refused with a way out."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offtune.errors import UsageError
from offtune.units import format_bytes, format_rate, format_seconds, parse_bytes, parse_seconds

FACTORS = {
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KiB": 2**10,
    "MiB": 2**20,
    "GiB": 2**30,
}


@given(st.integers(1, 10**6), st.sampled_from(sorted(FACTORS)))
def test_whole_sizes_are_exact(number, unit):
    assert parse_bytes(f"{number}{unit}") == number * FACTORS[unit]
    assert parse_bytes(f" {number} {unit.lower()} ") == number * FACTORS[unit]


@given(st.integers(0, 999), st.integers(0, 999_999))
def test_decimal_sizes_are_exact_to_the_byte(whole, fraction):
    expected = whole * 10**9 + fraction * 10**3
    if expected:
        assert parse_bytes(f"{whole}.{fraction:06d}GB") == expected


def test_gb_and_gib_differ():
    assert parse_bytes("40GB") == 40_000_000_000
    assert parse_bytes("40GiB") == 42_949_672_960


@pytest.mark.parametrize(
    "text", ["", "40", "4e9", "GB", "-1GB", "40 XB", "0GB", "1.2.3GB", "40GB!", "nan GB"]
)
def test_what_is_no_size_is_refused_naming_the_option(text):
    with pytest.raises(UsageError, match="--budget") as caught:
        parse_bytes(text, "--budget")
    assert caught.value.hint


def test_a_bare_number_gets_both_readings_as_a_hint():
    with pytest.raises(UsageError) as caught:
        parse_bytes("40")
    assert "40GB or 40GiB" in caught.value.hint


TIMES = {
    "90": 90,
    "90s": 90,
    "30m": 1800,
    "30min": 1800,
    "2h": 7200,
    "1h30m": 5400,
    "1.5h": 5400,
    "0.2s": 0.2,
}


@pytest.mark.parametrize(("text", "seconds"), TIMES.items())
def test_times_people_write(text, seconds):
    assert parse_seconds(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "abc", "0", "-5s", "5x", "1h30", "1 2", "s", "5s!"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(UsageError):
        parse_seconds(text, "--time")


@given(st.integers(0, 10**15))
def test_sizes_on_screen_are_within_a_per_cent_of_the_truth(size):
    text = format_bytes(size)
    number, unit = text.split()
    assert float(number) * FACTORS.get(unit, 1) == pytest.approx(size, rel=0.01)


def test_unknown_is_a_dash_never_zero():
    assert format_bytes(None) == format_seconds(None) == format_rate(None) == "-"


ON_SCREEN = {0.0123: "12 ms", 1.234: "1.23 s", 59.9: "59.9 s", 245: "4 min 05 s", 7800: "2 h 10 min"}


@pytest.mark.parametrize(("seconds", "text"), ON_SCREEN.items())
def test_seconds_on_screen(seconds, text):
    assert format_seconds(seconds) == text
