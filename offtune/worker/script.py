"""A person's Python script in a process forked from the warm server, as a fresh interpreter would run it.

Covered: arguments, path, environment, directory, random state, offtune's hook, every way to end. What differs
from a fresh start is that torch, DeepSpeed and transformers are loaded already: what a script changes in its
environment for them comes too late. That is noticed before training starts (`EARLY`), and the script is
started again in an interpreter of its own. Not covered: launchers (`offtune/warm_command.py`).
"""

from __future__ import annotations

import atexit
import io
import os
import random
import runpy
import sys
import threading
from collections.abc import Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType, TracebackType
from typing import NoReturn

import torch

from offtune.script_start import REFUSAL_FILE, Program, ScriptStart
from offtune.trial import TrialSpec

# Read when a library is loaded; set by a script afterwards they have no effect.
EARLY = (
    "OMP_",
    "MKL_",
    "KMP_",
    "GOMP_",
    "OPENBLAS_",
    "PYTORCH_",
    "TORCH_LOGS",
    "DS_",
    "HF_",
    "TRANSFORMERS_",
)


def be(spec: TrialSpec, start: ScriptStart) -> NoReturn:
    """Be the script: run it to its end and end the process as the interpreter would."""
    seen = Path(spec.trial_dir) / "seen"
    if late := _differing(dict(os.environ), start.environment):
        refuse(seen, f"Its environment has another {', '.join(late)} than the loaded process.")
    os.environ.clear()
    os.environ.update(start.environment)
    os.chdir(start.cwd)
    _seed(spec.workload.seed)
    _hook(spec, seen, start)
    end(_exit_code(start.program))


def _differing(loaded: Mapping[str, str], wanted: Mapping[str, str]) -> list[str]:
    """The variables read while libraries are loaded that are not the same in both."""
    early = {name for name in (*loaded, *wanted) if name.startswith(EARLY)}
    return sorted(name for name in early if loaded.get(name) != wanted.get(name))


def _seed(seed: int) -> None:
    """Python's and NumPy's random numbers as in a new process; torch's from the study's seed.

    A new process would start torch from chance: a script that seeds nothing would train other weights in each
    trial, and no two losses of a study could be compared.
    """
    random.seed()
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed()
    torch.manual_seed(seed)


def _hook(spec: TrialSpec, seen: Path, start: ScriptStart) -> None:
    """What `inject/sitecustomize.py` does in a fresh interpreter, for libraries that are loaded already."""
    from offtune.worker import hook, level

    (seen / f"loaded-{os.getpid()}").touch()
    if spec.device == "cuda" and torch.cuda._is_in_bad_fork():
        refuse(seen, "The warm server had touched the GPU before forking.")
    level.watch_level()
    hook.attach(before_initialize=lambda: _refuse_late_settings(seen, start.environment))


def _refuse_late_settings(seen: Path, given: Mapping[str, str]) -> None:
    if changed := _differing(os.environ, given):
        refuse(seen, f"It sets {', '.join(changed)} before it imports the libraries that read them.")


def refuse(seen: Path, reason: str) -> NoReturn:
    """Leave word that this script cannot be run warm, and end."""
    (seen / REFUSAL_FILE).write_text(reason)
    os._exit(1)


def _exit_code(program: Program) -> int:
    """Run the program; the exit code of whatever ended it."""
    try:
        _run(program)
    except SystemExit as ended:
        return _code_of(ended)
    except BaseException as error:  # noqa: BLE001 what the interpreter does with an exception nobody caught
        error.__traceback__ = _its_part(error.__traceback__)
        sys.excepthook(type(error), error, error.__traceback__)
        return 1
    return 0


def _run(program: Program) -> None:
    sys.argv = [program.name, *program.arguments]
    if program.kind == "module":
        sys.path[0] = str(Path.cwd())
        runpy.run_module(program.name, run_name="__main__", alter_sys=True)
        return
    path = str(Path(program.name).absolute())
    sys.path[0] = str(Path(path).resolve().parent)
    main = ModuleType("__main__")
    loader = SourceFileLoader("__main__", path)
    main.__dict__.update(__file__=path, __loader__=loader, __builtins__=__builtins__, __cached__=None)
    sys.modules["__main__"] = main
    with io.open_code(path) as file:
        code = compile(file.read(), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)


def _its_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback from the script's own first line on."""
    while trace is not None and trace.tb_frame.f_code.co_filename in (
        __file__,
        runpy.__file__,
        "<frozen runpy>",
    ):
        trace = trace.tb_next
    return trace


def _code_of(ended: SystemExit) -> int:
    """As the interpreter reads it: None is 0, a text is written to stderr and 1."""
    if ended.code is None or isinstance(ended.code, int):
        return ended.code or 0
    sys.stderr.write(f"{ended.code}\n")
    return 1


def end(code: int) -> NoReturn:
    """End as the interpreter does: wait for threads, run exit handlers, write what is buffered."""
    for thread in threading.enumerate():
        if thread is not threading.current_thread() and not thread.daemon:
            thread.join()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)
