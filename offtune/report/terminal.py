"""Drawing on a terminal, or into a pipe: pages, and the progress of a search.

Covered: everything that needs rich. Colours go away with NO_COLOR, the live line where nobody watches. Not
covered: what is said (the pages beside this file, `report.words`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from rich.console import Console
from rich.live import Live
from rich.table import Table as Grid
from rich.text import Text

from offtune.records import Limits, Run, StudyRecord
from offtune.report.page import Block, Command, Facts, Heading, Line, Page, Table, Tone, Verbatim
from offtune.report.progress import TRIAL_HEADER, Tally
from offtune.report.result_page import result_page
from offtune.report.setup_page import start_page
from offtune.report.summary import Summary

_STYLES: dict[Tone, str] = {
    "plain": "",
    "strong": "bold",
    "dim": "dim",
    "good": "green",
    "warn": "yellow",
    "bad": "red",
}
_MINIMUM_FACT_WIDTH = 11  # keeps the values of the facts of one page in one column
_MINIMUM_FOLD_WIDTH = 20  # on a narrower screen the terminal folds by itself
_LIVE_REFRESHES_PER_S = 1  # the trial needs the cores more than the clock on screen does


class _Console(Console):
    """A console that leaves a closed pipe to the command line instead of ending the process with 1."""

    def on_broken_pipe(self) -> None:
        raise BrokenPipeError


def make_console(*, stderr: bool = False) -> Console:
    """A console that adds nothing of its own: no markup, no guessed highlights, no emoji."""
    return _Console(stderr=stderr, highlight=False, markup=False, emoji=False)


def draw(console: Console, page: Page) -> None:
    """Print a page."""
    for position, block in enumerate(page):
        if isinstance(block, Heading) and position:
            console.print()
        _draw_block(console, block)


def _draw_block(console: Console, block: Block) -> None:
    if isinstance(block, Heading):
        console.print(Text(block.text, style="bold"))
    elif isinstance(block, Line):
        _draw_line(console, block)
    elif isinstance(block, Command):
        console.print(Text(f"  {block.text}", style="cyan"), soft_wrap=True)
    elif isinstance(block, Facts):
        _draw_facts(console, block)
    elif isinstance(block, Table):
        console.print(_table_grid(block))
    else:
        _draw_verbatim(console, block)


def _draw_line(console: Console, line: Line) -> None:
    first, others = " " * line.indent, " " * (line.indent + 2 * line.text.startswith("- "))
    _draw_hanging(console, Text(first), others, Text(line.text, style=_STYLES[line.tone]))


def _draw_facts(console: Console, facts: Facts) -> None:
    width = max([_MINIMUM_FACT_WIDTH, *(len(name) for name, _ in facts.rows)])
    for name, value in facts.rows:
        _draw_hanging(console, Text(f"  {name:<{width}}  ", style="dim"), " " * (width + 4), Text(value))


def _draw_hanging(console: Console, first: Text, others: str, text: Text) -> None:
    """A paragraph: folded under its own beginning on a terminal, one whole line in a file."""
    room = max(_MINIMUM_FOLD_WIDTH, console.width - len(others))
    pieces = text.wrap(console, room) if console.is_terminal else [text]
    for position, piece in enumerate(pieces):
        piece.rstrip()
        # Assembled, not added: a sum takes the style of its first part for the whole line.
        console.print(Text.assemble(Text(others) if position else first, piece), soft_wrap=True)


def _draw_verbatim(console: Console, block: Verbatim) -> None:
    # Soft-wrapped, so that what is copied from the screen has no line breaks of ours.
    for line in block.text.splitlines():
        console.print(Text(f"  {line}", style="dim"), soft_wrap=True)


def _table_grid(table: Table) -> Grid:
    grid = Grid(box=None, padding=(0, 1), pad_edge=True, header_style="dim")
    for column in table.columns:
        grid.add_column(
            Text(column.title),
            justify="right" if column.right else "left",
            no_wrap=not column.stretch,
            overflow="fold",
        )
    for position, row in enumerate(table.rows):
        tone = table.tones[position] if position < len(table.tones) else "plain"
        grid.add_row(*(Text(cell) for cell in row), style=_STYLES[tone])
    return grid


class Progress:
    """What a person sees of a search: a lasting line per trial and, on a terminal, one live line.

    Use it as a context manager: the live line is taken away however the search ends.
    """

    def __init__(self, console: Console, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._console = console
        self._clock = clock
        self._live: Live | None = None
        self._tally = Tally(limit_bytes=1, clock=clock)

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(
        self,
        study: StudyRecord,
        limits: Limits,
        *,
        best: Run | None = None,
        done: int = 0,
        time_limit_s: float | None = None,
        notes: Iterable[str] = (),
    ) -> None:
        """Say what begins. `done` and `best` are what a resumed study brings along."""
        self._tally = Tally(
            limit_bytes=limits.device_bytes,
            target=study.target_trials,
            time_limit_s=time_limit_s,
            done=done,
            best=best,
            clock=self._clock,
        )
        draw(self._console, start_page(study, limits, done=done, notes=notes))
        self._console.print()
        self._print_cut(Line(text=TRIAL_HEADER, tone="dim"))
        if self._console.is_interactive:
            self._live = self._start_live()

    def begin(self, run: Run) -> None:
        """Say in the live line what is being tried now."""
        self._tally.begin(run)
        self._refresh()

    def trial(self, run: Run, best: Run | None, *, done: int | None = None) -> None:
        """Add the lasting line of a finished trial; `best` is the best so far, this one included.

        `done` counts the trials of all workers, where there are several.
        """
        first, *reasons = self._tally.end(run, best)
        if done is not None:
            self._tally.done = done
        self._print_cut(first)
        draw(self._console, tuple(reasons))
        self._refresh()

    def note(self, text: str) -> None:
        """Say something that is not a trial: a build, a warning."""
        draw(self._console, (Line(text=text, tone="dim"),))

    def finish(self, summary: Summary) -> None:
        """Take the live line away and say the result, or that nothing fits and what would help."""
        self.close()
        self._console.print()
        draw(self._console, result_page(summary))

    def close(self) -> None:
        """Take the live line away."""
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _start_live(self) -> Live:
        live = Live(
            console=self._console,
            get_renderable=self._live_line,
            refresh_per_second=_LIVE_REFRESHES_PER_S,
            transient=True,
            redirect_stdout=False,
        )
        live.start()
        return live

    def _live_line(self) -> Text:
        return Text(self._tally.live_text(), style="cyan", no_wrap=True, overflow="ellipsis")

    def _print_cut(self, line: Line) -> None:
        """One line of its own: cut at the edge of a terminal, whole in a file."""
        text = Text(line.text, style=_STYLES[line.tone])
        if self._console.is_terminal:
            self._console.print(text, no_wrap=True, overflow="ellipsis", crop=True)
        else:
            self._console.print(text, soft_wrap=True)

    def _refresh(self) -> None:
        if self._live is not None:
            self._live.refresh()
