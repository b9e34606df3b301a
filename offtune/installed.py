"""Installed packages, asked without importing them: torch alone would cost seconds and a CUDA context.

Covered: versions, and for which accelerator torch was built. Not covered: whether they work (`doctor.py`).
"""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchBuild:
    """torch as installed; `cuda` and `hip` are the toolkits it was built with, None when without."""

    version: str
    cuda: str | None
    hip: str | None


def version(package: str) -> str | None:
    """The installed version of a distribution; None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def versions(*packages: str) -> dict[str, str]:
    """Versions of those packages that are installed."""
    found = {package: version(package) for package in packages}
    return {package: known for package, known in found.items() if known is not None}


def folder(module: str) -> Path | None:
    """Where a top-level package lies; None if it is not installed. The package is found, not imported."""
    spec = importlib.util.find_spec(module)
    return Path(spec.origin).parent if spec is not None and spec.origin else None


def torch_build() -> TorchBuild | None:
    """What torch was built for, read from the text of torch/version.py; None without torch."""
    home = folder("torch")
    if home is None:
        return None
    facts = _assignments((home / "version.py").read_text(encoding="utf-8"))
    return TorchBuild(version=str(facts.get("__version__")), cuda=facts.get("cuda"), hip=facts.get("hip"))


def _assignments(source: str) -> dict[str, str | None]:
    """Names set to a string or None at the top of a module, such as `cuda: Optional[str] = '12.6'`."""
    found: dict[str, str | None] = {}
    for node in ast.parse(source).body:
        value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
        if isinstance(value, ast.Constant) and (value.value is None or isinstance(value.value, str)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]  # type: ignore[attr-defined]
            found.update({target.id: value.value for target in targets if isinstance(target, ast.Name)})
    return found
