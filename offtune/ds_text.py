"""The text of a ds_config file, read as leniently as can be without guessing, with the line of every key.

Covered: JSON and HJSON (DeepSpeed's own format, by the same library), and what people and Python leave in
such files: comments, commas too many or too few, single quotes, True and None, 1_000, duplicate keys,
placeholders. Not covered: bytes (`ds_file`), what the keys mean (`ds_names`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hjson.decoder import HjsonDecoder, getNext, make_scanner, scanKeyName
from hjson.scanner import HjsonDecodeError

from offtune import ds_placeholders as placeholders
from offtune.ds_change import BaseRefused, Change, Draft, KeyPath, Kind, in_order, shown

_END = r"(?=[ \t]*(?:[,\]}\n#]|//|/\*|\Z))"
_LITERAL = re.compile(rf"(true|false|null){_END}")
_NUMBER = re.compile(rf"-?(?:0|[1-9]\d*)(\.\d+)?([eE][+-]?\d+)?{_END}")
_TOKEN = re.compile(rf"[^\s,{{}}\[\]:\"'#]+{_END}")
# A text without quotes goes to the end of its line in HJSON; a colon in it would be YAML, or a lost comma.
_LINE = re.compile(r"(?:[^\s\"{}\[\]:,]|:(?!\s|\Z)|[ \t](?!#|//))+(?=,?[ \t]*(?:\n|\Z|#|//))")
_PYTHON = {"True": True, "False": False, "None": None}
_NOT_FINITE = re.compile(r"[+-]?(nan|inf|infinity)", re.IGNORECASE)
# Lines listed in one entry of the log.
_MANY = 6
# Of the text where reading stopped.
_SHOWN_CHARS = 30
# Longer whole numbers are read as floats; Python refuses to read very long ones.
_DIGITS = 300
_COMMENTS = "comments, which strict JSON has no place for; they are not in the export"
# Stands where a placeholder was, so that reading can go on and find the others.
_UNFILLED = object()


def parse(text: str, name: str) -> Draft:
    """The content of a file called `name`. Raises BaseRefused with every placeholder or the first error."""
    reader = _Reader(text)
    if text.strip() and "{" not in text and "[" not in text:
        reader.refuse(
            0, "no block in braces: a ds_config is JSON. YAML, as accelerate has it, names one inside."
        )
        raise BaseRefused(name, tuple(reader.changes))
    try:
        content = reader.document()
    except HjsonDecodeError as error:
        reader.refuse(*_said(error, text))
        content = {}
    except IndexError:  # the library runs over the end of the text
        reader.refuse(max(text.rfind("/*"), text.rfind("'''"), 0), "this comment or text is never closed.")
        content = {}
    except RecursionError:
        reader.refuse(0, "blocks within blocks without end.")
        content = {}
    if not isinstance(content, dict):
        reader.refuse(0, "not a block of keys; a ds_config is one JSON object: {...}.")
    changes = [*reader.summary(), *reader.changes]
    if any(change.kind == "refused" for change in changes):
        raise BaseRefused(name, in_order(changes))
    return Draft(content=content, lines=reader.lines, changes=changes)


def _said(error: HjsonDecodeError, text: str) -> tuple[int, str]:
    """Where the library stopped, and its message with what stands there."""
    position, what = error.pos, str(error.msg).removesuffix(" at").rstrip(".")
    if what.startswith("Invalid control character"):
        # The library is past the line's end already.
        position, what = max(0, error.pos - 1), "This text has no closing quote in its line"
    found = text[position : position + _SHOWN_CHARS].split("\n")[0]
    what = what.removesuffix(" %r")
    return position, f"{what}; found {found!r}." if found.strip() else f"{what}."


class _Reader(HjsonDecoder):  # type: ignore[misc]
    """HJSON's decoder with its objects, arrays and words read by us: they know lines and what was lenient."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text
        self.path: list[str] = []
        self.lines: dict[KeyPath, int] = {}
        self.changes: list[Change] = []
        self.lenient: dict[str, list[int]] = {}
        self.parse_object = self._object
        self.parse_array = self._array
        self.parse_tfnns = self._word
        self.scan_once, self.scan_object_once = make_scanner(self)

    def document(self) -> Any:
        """The file's content; braces around the whole are optional in HJSON."""
        char, start = self._gap(0)
        if char in ("{", "["):
            content, end = self.scan_once(self.text, start)
        elif char:
            content, end = self.scan_object_once(self.text, start)
        else:
            raise HjsonDecodeError("The file is empty", self.text, 0)
        char, end = self._gap(end)
        if char:
            raise HjsonDecodeError("The file goes on after its end", self.text, end)
        return content

    def line(self, position: int) -> int:
        return self.text.count("\n", 0, position) + 1

    def refuse(self, position: int, text: str) -> None:
        self._note("refused", position, text)

    def summary(self) -> list[Change]:
        """What was read leniently, one entry a kind, with its lines."""
        return [_lenient(what, sorted(set(lines))) for what, lines in self.lenient.items()]

    def _note(self, kind: Kind, position: int, text: str) -> None:
        change = Change(kind=kind, line=self.line(position), path=".".join(self.path), text=text)
        self.changes.append(change)

    def _allow(self, what: str, position: int) -> None:
        self.lenient.setdefault(what, []).append(self.line(position))

    def _gap(self, position: int) -> tuple[str, int]:
        """The next character that is neither space nor comment, and where it is."""
        char, end = getNext(self.text, position)
        between = self.text[position:end]
        for offset, text in enumerate(between.split("\n") if between.strip() else ()):
            if text.strip():
                lines = self.lenient.setdefault(_COMMENTS, [])
                lines.append(self.line(position) + offset)
        return char, end

    def _object(
        self, state: tuple[str, int], encoding: Any, strict: bool, scan: Callable[..., Any],
        *_: Any, without_braces: bool = False,
    ) -> tuple[Any, int]:  # fmt: skip
        at = state[1]
        # The library says by position that the file has no outer braces.
        without_braces = without_braces or (len(_) > 3 and bool(_[3]))
        if not without_braces and self._placeholder(at - 1):
            return _UNFILLED, at - 1 + len(placeholders.at(self.text, at - 1))
        found: dict[str, Any] = {}
        close, opened = "" if without_braces else "}", at - 1
        while True:
            char, at = self._gap(at)
            if char == close:
                return found, at + len(close)
            if char == "":
                raise HjsonDecodeError("This block is never closed", self.text, opened)
            if char == ",":
                self._allow("commas too many", at)
                at += 1
            elif self._placeholder(at):
                at += len(placeholders.at(self.text, at))
            else:
                at = self._member(found, at, encoding, strict, scan, close)

    def _member(
        self,
        found: dict[str, Any],
        at: int,
        encoding: Any,
        strict: bool,
        scan: Callable[..., Any],
        close: str,
    ) -> int:
        key, after = scanKeyName(self.text, at, encoding, strict)
        if self.text[at] != '"':
            self._allow("keys without double quotes", at)
        char, after = self._gap(after)
        if char != ":":
            raise HjsonDecodeError(f"No colon after the key '{key}'", self.text, after)
        self.path.append(key)
        before = self.lines.get(tuple(self.path))
        _, after = self._gap(after + 1)
        value, end = scan(self.text, after)
        if before is not None:
            self._twice(key, before, at, found[key], value)
        found[key] = value
        self.lines[tuple(self.path)] = self.line(at)
        texts = (key, value) if isinstance(value, str) else (key,)
        if unfilled := next(filter(None, map(placeholders.inside, texts)), ""):
            self.refuse(at, f"{unfilled} is a placeholder that nobody has filled in.")
        self.path.pop()
        return self._comma(end, close)

    def _twice(self, key: str, before: int, at: int, first: Any, second: Any) -> None:
        path = tuple(self.path)
        if first != second:
            gone = f"{shown(first)} of line {before} is ignored and {shown(second)} counts"
        else:
            gone = "both say the same"
        self.lines[path] = self.line(at)
        self._note(
            "changed" if first != second else "understood", at,
            f"written twice, in lines {before} and {self.line(at)}: {gone}, as JSON readers have it; "
            "DeepSpeed refuses a file with duplicate keys.",
        )  # fmt: skip

    def _array(self, state: tuple[str, int], scan: Callable[..., Any]) -> tuple[Any, int]:
        at = state[1]
        if placeholders.at(self.text, at - 1):
            self._placeholder(at - 1)
            return _UNFILLED, at - 1 + len(placeholders.at(self.text, at - 1))
        opened = at - 1
        found: list[Any] = []
        while True:
            char, at = self._gap(at)
            if char == "]":
                return found, at + 1
            if char == "":
                raise HjsonDecodeError("This list is never closed", self.text, opened)
            if char == ",":
                self._allow("commas too many", at)
                at += 1
                continue
            self.path.append(str(len(found)))
            value, at = scan(self.text, at)
            self.path.pop()
            found.append(value)
            at = self._comma(at, "]")

    def _comma(self, at: int, close: str) -> int:
        """Past the comma after a member; one too many or too few is noted."""
        char, here = self._gap(at)
        if char != ",":
            if char not in (close, ""):
                self._allow("no comma between members, as HJSON allows", here)
            return here
        char, after = self._gap(here + 1)
        if char == close and close:
            self._allow("trailing commas", here)
        return after

    def _placeholder(self, at: int) -> bool:
        unfilled = placeholders.at(self.text, at)
        if unfilled:
            self.refuse(at, f"{unfilled} is a placeholder that nobody has filled in.")
        return bool(unfilled)

    def _word(self, _: Any, text: str, at: int) -> tuple[Any, int]:
        """A value without quotes: JSON's own, a Python literal, HJSON's text, or a placeholder."""
        if match := _LITERAL.match(text, at):
            return {"true": True, "false": False, "null": None}[match[1]], match.end()
        if match := _NUMBER.match(text, at):
            return self._number(match[0], at, whole=not (match[1] or match[2])), match.end()
        if self._placeholder(at):
            return _UNFILLED, at + len(placeholders.at(text, at))
        match = _TOKEN.match(text, at) or _LINE.match(text, at)
        if match is None:
            raise HjsonDecodeError("Not a value, or a comma or quote is missing", text, at)
        return self._unquoted(match[0].rstrip(), at), match.end()

    def _number(self, text: str, at: int, *, whole: bool) -> Any:
        value: int | float = int(text) if whole and len(text) < _DIGITS else float(text)
        if value in (float("inf"), float("-inf")):
            self.refuse(at, f"{text} is too large for a number.")
        return value

    def _unquoted(self, word: str, at: int) -> Any:
        if word in _PYTHON:
            self._allow("True, False or None as Python writes them", at)
            return _PYTHON[word]
        if _NOT_FINITE.fullmatch(word):
            return float(word)
        for read in (int, float, lambda digits: int(digits, 0)):
            try:
                value = read(word)
            except ValueError:
                continue
            self._note("understood", at, f"{word} is no JSON number; read as {value}.")
            return value
        self._note("understood", at, f"a word without quotes; read as the text {shown(word)}.")
        return word


def _lenient(what: str, lines: list[int]) -> Change:
    numbers = ", ".join(str(line) for line in lines[:_MANY]) + (", ..." if len(lines) > _MANY else "")
    where = f"lines {numbers}" if len(lines) > 1 else f"line {numbers}"
    return Change(kind="understood", line=lines[0], path="", text=f"{what} ({where}).")
