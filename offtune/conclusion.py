"""A search to a winner that holds: the search, its finals, and on with it where nothing it found has held.

Covered: the order of the two, and whether the search goes on. Not covered: either of them (`search`,
`finals`). A study that is taken up again after an interruption between the two goes straight to its finals.
"""

from __future__ import annotations

from offtune.ending import Ending, keep_ending
from offtune.finals import Finals
from offtune.repeats import Outcome

# Finals of one search: each has taken away what seemed best, so that the next search is more careful.
_MOST_FINALS = 3
_GOES_ON = "Nothing of that held when it was trained again: the search goes on."


def conclude(finals: Finals) -> None:
    """Search and hold the finals; raises what either does."""
    search = finals.search
    for number in range(1, _MOST_FINALS + 1):
        ending = search.run()
        with search.crew.turn():
            keep_ending(search.store, search.study.name, ending)
        search.watcher.note(ending.text)
        outcome = finals.run()
        if number == _MOST_FINALS or outcome is None or not _goes_on(ending, outcome):
            return
        search.watcher.note(_GOES_ON)
        with search.crew.turn():
            keep_ending(search.store, search.study.name, None)
            search.study.heed(search.store.repeats.of(search.study.name))
            search.study.look_anew()


def _goes_on(ending: Ending, outcome: Outcome) -> bool:
    """Whether nothing held, and the search had ended because it had something good."""
    return ending.kind == "converged" and outcome.winner is None and bool(outcome.rejected)
