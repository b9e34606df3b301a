"""Hardware profiles: the rates and sizes of a machine that cost models need, each with its source.

Covered: packaged profiles, a person's own YAML file, profiles that build on another one. Not covered:
measuring a machine, and what the numbers mean for a training step (`time_model`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any

import yaml

from offtune.errors import UsageError
from offtune.trial import DeviceKind, Precision

_SUFFIXES = (".yaml", ".yml")
_FILE_KEYS = (
    "about",
    "like",
    "device",
    "gpus_per_node",
    "collectives_over_link",
    "numbers",
    "matrix_flops_per_s",
)
# How the source of a number begins that is not the machine's own.
_BORROWED = ("assumed", "as ")
_EXAMPLE = "Write it as {value: 2.5e+10, source: where it comes from}; see a packaged profile."


@dataclass(frozen=True, kw_only=True)
class HardwareProfile:
    """One kind of node. Rates are what a training loop reaches, not what a data sheet promises.

    `matrix_flops_per_s` is the peak by precision and `matrix_efficiency` the share of it that long matrix
    products reach, `attention_efficiency` that of attention kernels which keep no scores. `layer_launch_s` is
    host time to issue one layer's forward under ZeRO-3. Link rates are per GPU and direction, pinned unless
    named pageable; `duplex_share` is what both directions reach together of what each does alone;
    `shared_link_bytes_per_s` is what all GPUs of a node have per direction, infinite where nothing is shared.
    `collective_bytes_per_s` is the bus rate of one rank inside a node, `fabric_bytes_per_s` a node's to the
    others. `adam_elements_per_s` is the node's, all cores, ranks bound to their own. `host_copy_bytes_per_s`
    is one rank writing to memory. NVMe rates are the node's. Zero means "not there"; `sources` says whence.
    """

    name: str
    about: str
    device: DeviceKind
    gpus_per_node: int
    collectives_over_link: bool
    matrix_flops_per_s: Mapping[Precision, float]
    matrix_efficiency: float
    attention_efficiency: float
    layer_launch_s: float
    device_memory_bytes: float
    device_bytes_per_s: float
    context_bytes: float
    h2d_bytes_per_s: float
    d2h_bytes_per_s: float
    pageable_h2d_bytes_per_s: float
    pageable_d2h_bytes_per_s: float
    duplex_share: float
    shared_link_bytes_per_s: float
    collective_bytes_per_s: float
    fabric_bytes_per_s: float
    host_memory_bytes: float
    host_bytes_per_s: float
    host_copy_bytes_per_s: float
    adam_elements_per_s: float
    nvme_read_bytes_per_s: float
    nvme_write_bytes_per_s: float
    sources: Mapping[str, str] = field(default_factory=dict)

    def is_own(self, number: str) -> bool:
        """Whether `number` was found for this machine, neither assumed nor taken over from another."""
        return not self.sources.get(number, "").startswith(_BORROWED)


NUMBERS = tuple(
    item.name
    for item in fields(HardwareProfile)
    if item.name not in {"name", "sources", *_FILE_KEYS}
)  # fmt: skip


def names() -> list[str]:
    """Names of the packaged profiles."""
    return sorted(path.stem for path in _folder().glob("*.yaml"))


def load(name_or_path: str) -> HardwareProfile:
    """The profile of that name or file. Raises UsageError naming file, key and remedy."""
    path = _find(name_or_path, Path())
    return _profile(path, _document(path, ()))


def dumps(document: Mapping[str, Any]) -> str:
    """The text of a profile's file."""
    # One number a line, as in the packaged files, however long its source.
    return yaml.safe_dump(dict(document), sort_keys=False, default_flow_style=None, width=1000)


def _folder() -> Path:
    """Where the packaged profiles are: inside the wheel, or at the top of the source tree."""
    packaged = Path(__file__).parent / "hardware_profiles"
    return packaged if packaged.is_dir() else Path(__file__).parent.parent / "hardware_profiles"


def _find(name_or_path: str, beside: Path) -> Path:
    packaged = _packaged(name_or_path)
    if packaged is not None:
        return packaged
    own = beside / Path(name_or_path).expanduser()
    if own.is_file() and own.suffix in _SUFFIXES:
        return own
    near = get_close_matches(name_or_path.lower(), names(), n=2, cutoff=0.4)
    guess = f"Did you mean {' or '.join(near)}? " if near else ""
    raise UsageError(
        f"There is no hardware profile '{name_or_path}', neither by that name nor as a YAML file.",
        f"{guess}Packaged profiles are: {', '.join(names())}. Your own is named by its path.",
    )


def _packaged(text: str) -> Path | None:
    """The packaged file meant by "RTX 4090", "rtx-4090" or "H100": all that begin like that, if it is one."""
    wanted = _squeezed(text)
    meant = [name for name in names() if len(wanted) > 1 and _squeezed(name).startswith(wanted)]
    exact = [name for name in meant if _squeezed(name) == wanted]
    found = exact or meant
    return _folder() / f"{found[0]}.yaml" if len(found) == 1 else None


def _squeezed(name: str) -> str:
    return name.lower().translate(str.maketrans("", "", " -_"))


def _document(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """One file over the one it is like; `above` are the files that led here."""
    content = _read(path)
    if "like" not in content:
        return content
    base_path = _find(str(content.pop("like")), path.parent)
    if base_path.resolve() in {*(item.resolve() for item in above), path.resolve()}:
        raise UsageError(f"{path}: it is like itself.", "Remove the key 'like' from one of the files.")
    base = _document(base_path, (*above, path))
    merged = {**base, **content}
    for key in ("numbers", "matrix_flops_per_s"):
        taken = {name: _of_another(entry, base_path.stem) for name, entry in base.get(key, {}).items()}
        merged[key] = {**taken, **content.get(key, {})}
    return merged


def _of_another(entry: object, name: str) -> object:
    """A number taken over: its source says from which machine it is, the first one if there are several."""
    if not isinstance(entry, dict) or str(entry.get("source", "")).startswith(_BORROWED):
        return entry
    return {**entry, "source": f"as {name}: {entry.get('source', '')}"}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}.", "Check the file, or name another.") from error
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise UsageError(f"{path}{line}: this is not YAML.", "Correct the file there.") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path}: not a hardware profile.", "It has the keys about and numbers.")
    for key in content:
        _require(path, str(key), _FILE_KEYS)
    for key in ("numbers", "matrix_flops_per_s"):
        if not isinstance(content.get(key, {}), dict):
            raise UsageError(f"{path}: '{key}' is not a mapping.", _EXAMPLE)
    return content


def _require(path: Path, key: str, known: tuple[str, ...]) -> None:
    if key not in known:
        near = get_close_matches(key, known, n=1)
        hint = f"Did you mean '{near[0]}'?" if near else f"Known are: {', '.join(known)}."
        raise UsageError(f"{path}: unknown key '{key}'.", hint)


def _profile(path: Path, content: Mapping[str, Any]) -> HardwareProfile:
    sources: dict[str, str] = {}
    numbers: dict[str, float] = {}
    for key, entry in content.get("numbers", {}).items():
        _require(path, str(key), NUMBERS)
        numbers[key], sources[key] = _number(path, key, entry)
    missing = [key for key in NUMBERS if key not in numbers]
    if missing:
        raise UsageError(
            f"{path}: no {', '.join(missing)} under 'numbers'.",
            "Write them, or start with 'like:' and the name of a packaged profile.",
        )
    matrix: dict[Any, float] = {}
    for precision, entry in content.get("matrix_flops_per_s", {}).items():
        _require(path, str(precision), ("bf16", "fp16", "fp32"))
        matrix[precision], sources[f"matrix_{precision}"] = _number(path, precision, entry)
    return HardwareProfile(
        name=path.stem,
        about=str(content.get("about", "")),
        device=_device(path, content.get("device", "cuda")),
        gpus_per_node=int(_positive(path, "gpus_per_node", content.get("gpus_per_node", 8))),
        collectives_over_link=content.get("collectives_over_link") is True,
        matrix_flops_per_s=matrix,
        sources=sources,
        **numbers,
    )


def _device(path: Path, value: object) -> DeviceKind:
    if value == "cuda":
        return "cuda"
    if value == "cpu":
        return "cpu"
    raise UsageError(f"{path}: device '{value}' is not known.", "Write cuda or cpu.")


def _number(path: Path, key: str, entry: object) -> tuple[float, str]:
    if not isinstance(entry, dict) or set(entry) != {"value", "source"} or not str(entry["source"]).strip():
        raise UsageError(f"{path}: '{key}' does not say both value and source.", _EXAMPLE)
    return _positive(path, key, entry["value"]), " ".join(str(entry["source"]).split())


def _positive(path: Path, key: str, value: object) -> float:
    """Zero or more; YAML 1.1 reads 2e10, without a point and a sign, as text."""
    try:
        number = float(str(value))
    except ValueError:
        number = -1.0
    if isinstance(value, bool) or not number >= 0:
        raise UsageError(f"{path}: '{key}' is {value}, which is no amount.", _EXAMPLE)
    return number
