"""The commands that only look: `list`, `show` and `doctor`. `cli.py` registers them.

Covered: arguments, one call each. Heavy imports happen inside.
"""

from __future__ import annotations

import atexit
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from offtune.cli_options import DEFAULT_STORAGE, AsJson, Storage, StudyName
from offtune.cli_output import print_json, print_page
from offtune.errors import EXIT_FAILED


@contextmanager
def _uncollected() -> Iterator[None]:
    """Without Python's garbage collector: ten thousand records hold no cycles, and looking takes a while."""
    atexit.register(gc.freeze)  # nor when Python ends, and would look through all of them once more
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


@_uncollected()
def list_studies(storage: Storage = DEFAULT_STORAGE, as_json: AsJson = False) -> None:
    """List the studies of a database.

    Example: offtune list --storage studies.db
    """
    from offtune.report.overview import overviews
    from offtune.store import Store

    with Store.open(storage, write=False) as store:
        studies = overviews(store)
    if as_json:  # each way loads only what it needs, since loading is most of the time
        from offtune.report.document import list_document

        print_json(list_document(studies))
    else:
        from offtune.report.study_page import list_page

        print_page(list_page(studies))


@_uncollected()
def show(
    study: StudyName = None,
    trial: Annotated[int | None, typer.Option(help="One trial in full.")] = None,
    storage: Storage = DEFAULT_STORAGE,
    as_json: AsJson = False,
) -> None:
    """Show a study: ranking, baselines, failures, front, phases, knobs; or one trial in full.

    Example: offtune show study-1 --trial 7
    """
    if trial is not None:
        _show_trial(storage, study, trial, as_json)
        return
    from offtune.report.insight_page import insight_blocks, insight_document
    from offtune.report.study_report import read_report

    found = read_report(storage, study)
    if as_json:
        from offtune.report.document import document

        print_json({**document(found.summary), **insight_document(found)})
    else:
        from offtune.report.study_page import study_page

        print_page(study_page(found.summary, insight_blocks(found)))


def _show_trial(storage: str, study: str | None, trial: int, as_json: bool) -> None:
    from offtune.report.document import trial_document
    from offtune.report.trial_page import trial_page
    from offtune.store import Store

    with Store.open(storage, write=False) as store:
        record = store.study(study)
        run = store.run(record.name, trial)
        again = [each for each in store.repeats.of(record.name) if each.run == trial]
    print_json(trial_document(run, again)) if as_json else print_page(trial_page(record, run, again))


def doctor(
    nvme_path: Annotated[
        str | None, typer.Option(help="The folder for NVMe offload, to be checked too.")
    ] = None,
    storage: Storage = DEFAULT_STORAGE,
    quick: Annotated[bool, typer.Option("--quick", help="Skip what needs torch to be loaded.")] = False,
    as_json: AsJson = False,
) -> None:
    """Check what would make a search fail on this machine, each with its remedy.

    Example: offtune doctor --nvme-path /mnt/nvme
    """
    from offtune.doctor import checks, worst
    from offtune.report.setup_page import doctor_document, doctor_page

    found = checks(nvme_path=nvme_path, storage=storage, quick=quick)
    if as_json:
        print_json(doctor_document(found))
    else:
        print_page(doctor_page(found))
    if worst(found) == "failed":
        raise typer.Exit(EXIT_FAILED)
