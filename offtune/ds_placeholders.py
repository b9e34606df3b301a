"""Placeholders of templates that nobody has filled in, as they are met in ds_config files.

Covered: shell, Jinja, Python format, sed templates, angle brackets, OmegaConf's "???". Not covered: words
that only look like one in a place where text is expected.
"""

from __future__ import annotations

import re

_NAME = r"[A-Za-z_][\w.\- ]*"
_FORMS = (
    r"\{\{[^{}\n]*\}\}+",  # Jinja, mustache; with a third brace from f-string templates
    r"\{%[^\n]*?%\}",
    r"\$\{[^}\n]*\}",
    r"\$\([^)\n]*\)",
    r"\$[A-Za-z_]\w*",
    r"<[^<>\n\"]+>",
    r"%\(\w+\)[sdfi]",
    r"%[A-Z_][A-Z0-9_]*%",
    r"@@?\w+@@?",
    r"\[\[[^\[\]\n]*\]\]",
    rf"\{{\s*{_NAME}\s*\}}",
    r"\?\?\?",
    r"\.\.\.",
)
# Words in capitals with an underscore (CONFIG_MBSIZE, LOG_INTERVAL, __LR__) and the usual reminders.
_CAPITALS = r"(?:_{0,2}[A-Z][A-Z0-9]*(?:_+[A-Z0-9]+)+_{0,2}|__\w+__|TODO|FIXME|TBD|XXX|FILL_?ME|CHANGE_?ME)"
_OPEN = re.compile("|".join(_FORMS))
_WORD = re.compile(rf"{_CAPITALS}(?![\w\-])")
# Inside a longer text only forms that no path or name has by accident.
_INSIDE = re.compile(r"\{\{[^{}\n]*\}\}|\{%[^\n]*?%\}|\$\{[^}\n]*\}|<[A-Za-z_][\w\- ]*>")
# A list of lists of plain numbers is no placeholder.
_NUMBERS = re.compile(r"\[\[[\d\s.,eE+\-]*\]\]")


def at(text: str, position: int) -> str:
    """The placeholder that begins at `position` of a file, outside quotes; empty where there is none."""
    match = _OPEN.match(text, position) or _WORD.match(text, position)
    if match is None or _NUMBERS.fullmatch(match[0]):
        return ""
    return match[0]


def inside(text: str) -> str:
    """The placeholder in a quoted text; empty where there is none."""
    whole = _OPEN.fullmatch(text.strip())
    match = whole or _INSIDE.search(text)
    return match[0] if match else ""


def is_word(text: str) -> bool:
    """Whether a text where a number or a switch is expected looks like a template's word."""
    return _WORD.fullmatch(text.strip()) is not None
