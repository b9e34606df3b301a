"""The bytes of a ds_config file as text: encodings and line ends that editors and shells leave behind.

Covered: UTF-8 and UTF-16 with and without a byte order mark, CR LF, no-break spaces. Not covered: the text's
meaning (`ds_text`).
"""

from __future__ import annotations

import codecs
from pathlib import Path

from offtune.ds_change import BaseRefused, Change, Kind
from offtune.errors import ConfigError

# The largest file of the public ones we looked at has 2 kB; this is no ds_config.
_MAX_BYTES = 1_000_000
_BOMS = (
    (codecs.BOM_UTF8, "utf-8-sig", "UTF-8 with a byte order mark"),
    (codecs.BOM_UTF16_LE, "utf-16", "UTF-16"),
    (codecs.BOM_UTF16_BE, "utf-16", "UTF-16"),
)


def read_text(path: Path) -> tuple[str, list[Change]]:
    """The file's text with \\n line ends and what was done for that. Raises ConfigError, or BaseRefused."""
    try:
        if path.stat().st_size > _MAX_BYTES:
            raise ConfigError(
                f"{path} has more than {_MAX_BYTES:,} bytes.", "A ds_config is a small text file."
            )
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"{path} cannot be read: {error.strerror}.", "Name another file with --base."
        ) from error
    changes: list[Change] = []
    encoding = "utf-8"
    for mark, name, what in _BOMS:
        if raw.startswith(mark):
            encoding = name
            changes.append(_about_file("understood", f"{what}; read as text."))
    try:
        text = raw.decode(encoding)
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        refusal = Change(
            kind="refused", line=line, path="", text="a byte that is not UTF-8; save it as UTF-8."
        )
        raise BaseRefused(str(path), (refusal,)) from error
    return _plain_lines(text, changes), changes


def _plain_lines(text: str, changes: list[Change]) -> str:
    if "\r" in text:
        changes.append(_about_file("understood", "lines end in CR LF or CR; read as line ends."))
    if "\u00a0" in text:
        changes.append(_about_file("understood", "no-break spaces; read as spaces."))
    return text.replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ")


def _about_file(kind: Kind, text: str) -> Change:
    return Change(kind=kind, line=None, path="", text=text)
