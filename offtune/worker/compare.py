"""Where the ds_config that reached DeepSpeed departs from the one offtune gave the script.

Covered: every key of ours, recursively. Not covered: keys a runtime adds (accelerate's
`zero_allow_untested_optimizer`, a scheduler), and those that only steer logging.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from offtune.trial import DsConfig

_LOGGING = ("steps_per_print", "wall_clock_breakdown")
_ABSENT = object()


def given_config(arguments: tuple[Any, ...], named: dict[str, Any]) -> DsConfig | None:
    """The ds_config among the arguments of `deepspeed.initialize`, read where it is a file; None without."""
    args = named.get("args", arguments[0] if arguments else None)
    # Tenth positional parameter of deepspeed.initialize (deepspeed/__init__.py, 0.19.8).
    positional = arguments[10] if len(arguments) > 10 else None
    config = named.get("config") or named.get("config_params") or positional
    config = config or getattr(args, "deepspeed_config", None)
    if isinstance(config, dict):
        return config
    try:
        content = json.loads(Path(config).read_text()) if config else None
    except (OSError, ValueError, TypeError):
        return None
    return content if isinstance(content, dict) else None


def differences(ours: DsConfig, theirs: DsConfig) -> tuple[str, ...]:
    """Each key of ours that arrived with another value: 'zero_optimization.stage 2 (offtune: 3)'."""
    kept = {key: value for key, value in ours.items() if key not in _LOGGING}
    return tuple(_walk(kept, theirs, ""))


def without_auto(value: Any) -> Any:
    """The ds_config as if what a runtime was to fill in had not been said."""
    if isinstance(value, dict):
        return {key: without_auto(item) for key, item in value.items() if item != "auto"}
    return value


def _walk(ours: Any, theirs: Any, where: str) -> Iterator[str]:
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key, value in ours.items():
            yield from _walk(value, theirs.get(key, _ABSENT), f"{where}.{key}" if where else key)
    elif ours == {"enabled": False} and theirs is _ABSENT:
        return
    elif ours != theirs:
        found = "missing" if theirs is _ABSENT else json.dumps(theirs, default=str)
        yield f"{where} {found} (offtune: {json.dumps(ours)})"
