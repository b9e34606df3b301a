"""The person's own training command: its placeholders, its name, and the words it is started with.

Covered: reading what stands after `--`, filling in a trial's values. Not covered: starting it
(`command_ranks.py`) and finding out what it trains (`probe.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from offtune.errors import UsageError
from offtune.trial import Command, Precision, Workload

# What is replaced within the words of a command.
PLACEHOLDERS = {
    "ds_config": "the path of the trial's ds_config",
    "micro_batch": "its train_micro_batch_size_per_gpu",
    "grad_accum": "its gradient_accumulation_steps",
    "trial_dir": "a scratch directory of the trial, removed after it",
}
# {name} but not {{name}}; JSON such as {"a": 1} is no placeholder.
_PLACEHOLDER = re.compile(r"(?<!\{)\{([A-Za-z_]\w*)\}(?!\})")
_ESCAPED = re.compile(r"\{(\{[A-Za-z_]\w*\})\}")
# Packages whose modules, run by `python -m`, start ranks: torch.distributed.run, accelerate.commands.launch.
_LAUNCHERS = ("torch", "accelerate", "deepspeed")
_PYTHON = re.compile(r"python[\d.]*")


def parse_command(arguments: Sequence[str], cwd: str, trial_cwd: str) -> Command:
    """The command behind `--`. Raises UsageError for an empty one or an unknown placeholder."""
    if not arguments:
        raise UsageError(
            "Nothing follows `--`.", "Write: offtune search ... -- python train.py --deepspeed {ds_config}"
        )
    if trial_cwd not in ("here", "scratch"):
        raise UsageError(f"--trial-cwd: '{trial_cwd}' is neither here nor scratch.", "Leave it out for here.")
    for name in (name for word in arguments for name in _PLACEHOLDER.findall(word)):
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{known}}} ({what})" for known, what in PLACEHOLDERS.items())
            raise UsageError(
                f"{{{name}}} is no placeholder.", f"There are {known}; {{{{{name}}}}} stays as {{{name}}}."
            )
    return Command(
        arguments=tuple(arguments), cwd=cwd, trial_cwd="scratch" if trial_cwd == "scratch" else "here"
    )


def refuse_beside(options: Mapping[str, object]) -> None:
    """Raise UsageError for an option (by its name; None is not given) that says what the script says."""
    for option, given in options.items():
        if given is not None:
            raise UsageError(
                f"{option} has no meaning beside a command: the script decides that.", f"Leave {option} out."
            )


def command_workload(
    command: Command, *, global_batch: int, world_size: int, precision: Precision, optimizer: str, seed: int
) -> Workload:
    """The workload of a command, as far as it is known before the command has been looked at."""
    return Workload(
        model_name=command_name(command.arguments),
        model_config={},
        seq_len=None,
        global_batch=global_batch,
        world_size=world_size,
        precision=precision,
        optimizer=optimizer,
        activation_checkpointing=False,
        seed=seed,
        command=command,
    )


def fill(arguments: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """The words with each placeholder replaced by its value, and doubled braces made single."""

    def one(word: str) -> str:
        filled = _PLACEHOLDER.sub(lambda found: str(values[found.group(1)]), word)
        return _ESCAPED.sub(r"\1", filled)

    return [one(word) for word in arguments]


def command_name(arguments: Sequence[str]) -> str:
    """What a person would call the command: the script's name, else the module's, else the program's."""
    for word in arguments:
        if word.endswith(".py"):
            return Path(word).name
    if "-m" in arguments[:-1]:
        return arguments[arguments.index("-m") + 1]
    return Path(arguments[0]).name


def is_plain_python(arguments: Sequence[str]) -> bool:
    """Whether the command is an interpreter itself, not a launcher that starts ranks."""
    if _PYTHON.fullmatch(Path(arguments[0]).name) is None:
        return False
    module = arguments[2] if list(arguments[1:2]) == ["-m"] and len(arguments) > 2 else ""
    return module.partition(".")[0] not in _LAUNCHERS


def absolute_paths(words: Sequence[str], cwd: str) -> list[str]:
    """The words, those that name something in `cwd` made absolute: for a command that runs elsewhere."""
    program, *rest = words
    anchored = program if "/" not in program else str(Path(cwd) / program)
    return [
        anchored,
        *(str(Path(cwd) / word) if (Path(cwd) / word).exists() and word else word for word in rest),
    ]
