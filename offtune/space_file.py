"""Space files: find, read and check the YAML that a search space is written in.

Covered: packaged spaces and a person's own, inclusion, and errors that name file, key and remedy. Not
covered: what a space means for a machine (`space_fit`) and drawing points from it (`space`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from offtune.errors import SpaceError
from offtune.knob_text import expand, read_knob, require_known, require_mapping, require_sentence
from offtune.knobs import CHANGES_RESULT, Knob

_SUFFIXES = (".yaml", ".yml")
_FILE_KEYS = ("about", "changes_result", "include", "only", "knobs")


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceFile:
    """What one file says, inclusions resolved."""

    name: str
    about: str
    changes_result: bool
    knobs: tuple[Knob, ...]


def space_folder() -> Path:
    """Where the packaged spaces are: inside the wheel, or at the top of the source tree."""
    packaged = Path(__file__).parent / "search_spaces"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "search_spaces"


def space_names() -> list[str]:
    """Names of the packaged spaces."""
    return sorted(path.stem for path in space_folder().glob("*.yaml"))


def read_space(name_or_path: str) -> SpaceFile:
    """The space of that name or path. Raises SpaceError naming file, key and remedy."""
    path = _find(name_or_path, Path())
    found = _read(path, ())
    return replace(found, knobs=_narrowed(path, _document(path), found.knobs))


def _find(name_or_path: str, beside: Path) -> Path:
    packaged = space_folder() / f"{name_or_path}.yaml"
    if packaged.is_file() and not name_or_path.endswith(_SUFFIXES) and "/" not in name_or_path:
        return packaged
    own = beside / Path(name_or_path).expanduser()
    if own.is_file():
        return own
    near = get_close_matches(name_or_path, space_names(), n=1)
    guess = f"Did you mean '{near[0]}'? " if near else ""
    raise SpaceError(
        f"There is no space '{name_or_path}', neither by that name nor as a file.",
        f"{guess}Packaged spaces are: {', '.join(space_names())}. Your own is named by its path.",
    )


class _Loader(yaml.SafeLoader):
    """YAML that refuses a key written twice instead of forgetting the first."""


def _unique_mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    keys = [loader.construct_object(key, deep=True) for key, _ in node.value]
    for index, key in enumerate(keys):
        if key in keys[:index]:
            mark = node.value[index][0].start_mark
            raise yaml.constructor.ConstructorError(None, None, f"'{key}' is written twice", mark)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _unique_mapping)


def _document(path: Path) -> dict[str, Any]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (OSError, UnicodeDecodeError) as error:
        raise SpaceError(
            f"{path} cannot be read: {error}.", "Check the file, or name another space."
        ) from error
    except yaml.YAMLError as error:
        raise SpaceError(f"{path}{_line(error)}: {_problem(error)}.", "Correct the YAML there.") from error
    if not isinstance(content, dict):
        raise SpaceError(
            f"{path}: not a space.", "A space file has the keys about and knobs; see ladder.yaml."
        )
    require_known(f"{path}", content, _FILE_KEYS, "key")
    return content


def _line(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return f", line {mark.line + 1}" if mark else ""


def _problem(error: yaml.YAMLError) -> str:
    return str(getattr(error, "problem", None) or error)


def _read(path: Path, above: tuple[Path, ...]) -> SpaceFile:
    """One file and what it includes; `above` are the files that led here."""
    document = _document(path)
    changes = _changes_result(path, document)
    knobs = _included(path, document.get("include", []), (*above, path), changes)
    for name, content in require_mapping(f"{path}: knobs", document.get("knobs") or {}).items():
        _require_new(path, name, knobs, changes)
        knobs[name] = read_knob(f"{path}: knobs.{name}", name, content, knobs)
    if not knobs:
        raise SpaceError(f"{path}: no knobs.", "Add at least one knob under `knobs`, or `include` a space.")
    about = require_sentence(f"{path}: about", document.get("about"))
    return SpaceFile(name=path.stem, about=about, changes_result=changes, knobs=tuple(knobs.values()))


def _changes_result(path: Path, document: Mapping[str, Any]) -> bool:
    changes = document.get("changes_result", False)
    if not isinstance(changes, bool):
        raise SpaceError(f"{path}: changes_result: {changes!r} is not true or false.", "Write true or false.")
    return changes


def _require_new(path: Path, name: str, knobs: Mapping[str, Knob], changes_result: bool) -> None:
    if name in knobs:
        raise SpaceError(f"{path}: knobs.{name} is in an included space already.", "Remove one of the two.")
    if name in CHANGES_RESULT and not changes_result:
        raise SpaceError(
            f"{path}: knobs.{name} changes the training result.", "Say so at the top: changes_result: true."
        )


def _included(path: Path, names: Any, above: tuple[Path, ...], changes_result: bool) -> dict[str, Knob]:
    where = f"{path}: include"
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise SpaceError(f"{where}: {names!r} is not a list of names.", "Write it like [ladder, partial].")
    knobs: dict[str, Knob] = {}
    for name in names:
        other = _find(name, path.parent)
        if other.resolve() in [file.resolve() for file in above]:
            raise SpaceError(f"{where}: '{name}' includes itself.", "Remove one inclusion of the circle.")
        space = _read(other, above)
        if space.changes_result and not changes_result:
            raise SpaceError(
                f"{where}: '{name}' changes the training result.", "Say so here too: changes_result: true."
            )
        knobs = _joined(f"{where}: '{name}'", knobs, space.knobs)
    return knobs


def _joined(where: str, knobs: dict[str, Knob], more: Sequence[Knob]) -> dict[str, Knob]:
    for knob in more:
        if knobs.get(knob.name, knob) != knob:
            raise SpaceError(f"{where} has another {knob.name}.", "Include only one of the two spaces.")
    return {**knobs, **{knob.name: knob for knob in more}}


def _narrowed(path: Path, document: Mapping[str, Any], knobs: tuple[Knob, ...]) -> tuple[Knob, ...]:
    """`knobs` under the file's `only`, which counts where the file itself was asked for."""
    only = require_mapping(f"{path}: only", document.get("only") or {})
    by_name = {knob.name: knob for knob in knobs}
    require_known(f"{path}: only", only, tuple(by_name), "knob")
    for name, wanted in only.items():
        if by_name[name].kind != "choices":
            raise SpaceError(f"{path}: only.{name} is a range.", "`only` narrows knobs with choices.")
        choices = expand(f"{path}: only.{name}", by_name[name], wanted)
        knob = replace(by_name[name], choices=choices)
        by_name[name] = replace(knob, default=knob.nearest(knob.default))
    return tuple(by_name.values())
