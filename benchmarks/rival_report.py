"""What the rivals' games amount to: one row a rival and landscape, the sheet, the goals.

Covered: medians over seeds, the text of docs/rivals.md. Not covered: playing (`rivals`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate
from statistics import median

from landscapes.landscape import Landscape
from rival_players import Played, Record

OURS = "offtune"
PLAIN_TPE = ("TPE", "TPE + baselines")
# The goals of the project, on every landscape.
_MEDIAN_TRIALS, _P90_TRIALS, _TPE_FACTOR, _WASTED = 15, 40, 3.0, 0.10
# Trials over which the share of wasted ones is taken: a default search, or a quarter of a small space, of
# which little else may be left in the end.
_SEARCH = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One rival on one landscape: trials to within 5 and 2 % (median, 90th percentile), seconds to 5 %.

    `wasted` is the share of a rival's own choices that did not fit, `wasted_all` with its baselines;
    `stopped` are trials at the end where it ends by itself, `quality` what it had by then (or after 40), as
    a share of the best; `in_time` the same after as many seconds as a search of offtune takes.
    """

    landscape: str
    rival: str
    limit: int
    to_5: tuple[float, float]
    to_2: tuple[float, float]
    seconds_to_5: float
    wasted: float
    wasted_all: float
    quality: float
    stopped: float | None
    in_time: float | None

    @classmethod
    def of(cls, landscape: Landscape, rival: str, games: Sequence[Record], seconds: float | None) -> Row:
        """Of these games; `seconds` are those of a whole search of offtune, None where it did not play."""
        best = landscape.best
        fives, twos = ([_reached(game, share * best) for game in games] for share in (0.95, 0.98))
        stops = [game.stopped for game in games if game.stopped is not None]
        search = min(_SEARCH, landscape.space.size() // 4)
        played = [one for game in games for one in game.played[:search]]
        own = [one for one in played if not one.baseline]
        return cls(
            landscape=landscape.name, rival=rival, limit=max((game.trials for game in games), default=0),
            to_5=(median(fives), _p90(fives)), to_2=(median(twos), _p90(twos)),
            seconds_to_5=median(_seconds(game, 0.95 * best) for game in games),
            wasted=_share(own), wasted_all=_share(played),
            quality=median(_quality(game, best) for game in games),
            stopped=median(stops) if len(stops) == len(games) else None,
            in_time=None if seconds is None else median(_within(game, seconds) / best for game in games),
        )  # fmt: skip


def _reached(game: Record, speed: float) -> float:
    hits = (number for number, one in enumerate(game.played, 1) if one.feasible and one.true_speed >= speed)
    return next(hits, math.inf)


def _seconds(game: Record, speed: float) -> float:
    count = _reached(game, speed)
    return sum(one.seconds for one in game.played[: int(count)]) if math.isfinite(count) else math.inf


def _quality(game: Record, best: float) -> float:
    return max((one.true_speed for one in game.played[: game.stopped or _SEARCH]), default=0.0) / best


def search_seconds(games: Sequence[Record]) -> float | None:
    """How long searches that end by themselves take, a median; None without any."""
    return (
        median(sum(one.seconds for one in game.played[: game.stopped or _SEARCH]) for game in games)
        if games
        else None
    )


def _within(game: Record, seconds: float) -> float:
    """The best that fits, of the trials that had ended by then."""
    ends = accumulate(one.seconds for one in game.played)
    return max((one.true_speed for one, end in zip(game.played, ends, strict=True) if end <= seconds),
               default=0.0)  # fmt: skip


def _share(played: Sequence[Played]) -> float:
    return sum(not one.feasible for one in played) / len(played) if played else 0.0


def _p90(values: Sequence[float]) -> float:
    """The 90th percentile: the smallest value that nine of ten do not exceed."""
    return sorted(values)[math.ceil(0.9 * len(values)) - 1]


def missed(rows: Sequence[Row]) -> list[str]:
    """The goals that were not reached, in words."""
    found = []
    for name in dict.fromkeys(row.landscape for row in rows):
        here = {row.rival: row for row in rows if row.landscape == name}
        ours = here.get(OURS)
        if ours is not None:
            found += [f"{name}: {text}" for text in _missed(ours, here)]
    return found


def _missed(ours: Row, here: dict[str, Row]) -> list[str]:
    found = []
    if ours.to_5[0] > _MEDIAN_TRIALS:
        found.append(f"median of {ours.to_5[0]:g} trials to 5 %, goal {_MEDIAN_TRIALS}")
    if ours.to_5[1] >= _P90_TRIALS:
        found.append(f"90th percentile of {ours.to_5[1]:g} trials to 5 %, goal under {_P90_TRIALS}")
    if ours.wasted >= _WASTED:
        found.append(
            f"{100 * ours.wasted:.0f} % of its own choices do not fit, goal under {100 * _WASTED:.0f} %"
        )
    tpe = min((here[name].to_5[0] for name in PLAIN_TPE if name in here), default=math.inf)
    if tpe < _TPE_FACTOR * ours.to_5[0]:
        found.append(f"plain TPE needs {tpe:g} trials, less than {_TPE_FACTOR:g} x {ours.to_5[0]:g}")
    if "random" in here and here["random"].to_5[0] < ours.to_5[0]:
        found.append(f"random needs only {here['random'].to_5[0]:g} trials")
    return found


def sheet(rows: Sequence[Row], landscapes: Sequence[Landscape], seeds: int) -> str:
    """The dated result sheet, in Markdown."""
    parts = [_HEAD.format(today=date.today().isoformat(), seeds=seeds)]
    for landscape in landscapes:
        lines = [_line(row) for row in rows if row.landscape == landscape.name]
        parts.append(f"## {landscape.name}\n\n{_about(landscape)}\n\n{_COLUMNS}" + "\n".join(lines))
    goals = missed(rows)
    judged = any(row.rival == OURS for row in rows)
    none = "All reached." if judged else "Not judged: offtune did not play."
    parts.append("## Goals\n\n" + ("\n".join(f"- missed: {goal}" for goal in goals) or none))
    return "\n\n".join(parts) + "\n"


def _about(landscape: Landscape) -> str:
    size = f"{landscape.space.size():,} points, {len(landscape.baselines)} baselines"
    kind = " (simulated)" if landscape.simulated else ""
    return f"{landscape.note}; {size}; best known {landscape.best:.4g} samples/s{kind}."


def _line(row: Row) -> str:
    stopped = "-" if row.stopped is None else f"{row.stopped:g}"
    cells = [row.rival, _trials(row.to_5, row.limit), _trials(row.to_2, row.limit), _time(row.seconds_to_5),
             f"{100 * row.wasted:.0f} %", f"{100 * row.wasted_all:.0f} %", stopped,
             _percent(row.quality), _percent(row.in_time)]  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _trials(pair: tuple[float, float], limit: int) -> str:
    return " / ".join(f"{value:g}" if math.isfinite(value) else f">{limit}" for value in pair)


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def _time(seconds: float) -> str:
    return f"{seconds:.0f} s" if math.isfinite(seconds) else "-"


_COLUMNS = (
    "| rival | trials to 5 % | to 2 % | time to 5 % | wasted | with baselines | stops after | has then "
    "| in our time |\n|---|---|---|---|---|---|---|---|---|\n"
)
_HEAD = """# Rivals

Measured on {today} by `python benchmarks/rivals.py`, {seeds} seeds a rival and landscape.

**Trials to 5 %** (2 %): trainings until the first one that fits the budget and is truly within 5 % of the
best known, median / 90th percentile over seeds, baselines counted where a rival runs them. A configuration
that was measured before costs nothing, whoever proposes it. **Time to 5 %**: the wall time of those trials,
as recorded or simulated; not the rival's own thinking. **Wasted**: trials that did not fit, of the first 40
(or the first quarter of a smaller space); baselines are run because people want to see them, fitting or not,
and are counted in the second column. **Stops after**: where a search without `--trials` ends; **has then**:
the throughput it has by then (rivals that never end: after 40 trials), in per cent of the best known. **In
our time**: what it has after as many seconds as a search of offtune takes here until it stops, a median.

Nothing here was run on a GPU. The CPU accelerator's figures are real, but host and device are one memory
there; simulated machines are formulas with other constants and another form than offtune's predictions, and
2 or 4 % noise; DeepSpeed's tuners get a list of experiments, and no configuration of theirs counts as
refused. Constants of the strategy were chosen with the first four landscapes in view, not with the last."""
