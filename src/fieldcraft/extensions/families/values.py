"""Values of arguments in the syntax of Python, and in that of Gemma's templates."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

MAX_DEPTH = 64  # nested lists and objects
WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_WORD_REGEX = re.compile(r"[A-Za-z]+")
_NUMBER_REGEX = re.compile(r"-?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_STRING_REGEX = re.compile(
    r"\"([^\"\\]*+(?:\\.[^\"\\]*+)*)\"|'([^'\\]*+(?:\\.[^'\\]*+)*)'", re.DOTALL
)
_ESCAPE_REGEX = re.compile(
    r"\\(u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|.)", re.DOTALL
)
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "\n": "", "0": "\0"}
_ESCAPES |= {char: char for char in "\\'\"/"}
_KEY_REGEX = re.compile(r"[^\s:=,(){}\[\]<>\"'|]+")
_SPACE_REGEX = re.compile(r"\s*")


class ValueSyntaxError(ValueError):
    """Text that is no value in the syntax, or is nested too deeply."""


@dataclass
class ValueReader:
    """Reader of values, from a position of a text on.

    Attributes:
        text: text with values.
        position: position of the next character.
        quote: mark before and after a string without escapes; "" for strings of Python.
    """

    text: str
    position: int
    quote: str = ""

    def skip_space(self) -> None:
        found = _SPACE_REGEX.match(self.text, self.position)
        assert found is not None
        self.position = found.end()

    def take(self, mark: str) -> bool:
        """Skip white space and a mark, if it follows; return whether it did."""
        self.skip_space()
        if not self.text.startswith(mark, self.position):
            return False
        self.position += len(mark)
        return True

    def expect(self, mark: str) -> None:
        """Skip a mark. Raises ValueSyntaxError if anything else follows."""
        if not self.take(mark):
            raise ValueSyntaxError(f"{mark!r} is missing")

    def read_pairs(self, assignment: str, closing: str, depth: int = 0) -> dict[str, Any]:
        """Read keys and values, separated by commas, up to the closing mark. Raises
        ValueSyntaxError."""
        pairs: dict[str, Any] = {}

        def read_pair() -> None:
            key = self._read_key()
            if key in pairs:
                raise ValueSyntaxError(f"{key!r} is given twice")
            self.expect(assignment)
            pairs[key] = self.read_value(depth)

        self._read_items(closing, read_pair)
        return pairs

    def read_value(self, depth: int = 0) -> Any:
        """Read a value. Raises ValueSyntaxError."""
        if depth > MAX_DEPTH:
            raise ValueSyntaxError("the value is nested too deeply")
        if self.take("["):
            items: list[Any] = []
            self._read_items("]", lambda: items.append(self.read_value(depth + 1)))
            return items
        if self.take("{"):
            return self.read_pairs(":", "}", depth + 1)
        if (text := self._read_string()) is not None:
            return text
        return self._read_plain()

    def _read_items(self, closing: str, read_item: Callable[[], None]) -> None:
        if self.take(closing):
            return
        read_item()
        while self.take(","):
            if self.take(closing):  # after a last comma
                return
            read_item()
        self.expect(closing)

    def _read_key(self) -> str:
        self.skip_space()
        if (text := self._read_string()) is not None:
            return text
        found = _KEY_REGEX.match(self.text, self.position)
        if found is None:
            raise ValueSyntaxError("the name of a value is missing")
        self.position = found.end()
        return found[0]

    def _read_string(self) -> str | None:
        if self.quote:
            if not self.take(self.quote):
                return None
            content, ended, _ = self.text[self.position :].partition(self.quote)
            if not ended:
                raise ValueSyntaxError("a string does not end")
            self.position += len(content) + len(ended)
            return content
        found = _STRING_REGEX.match(self.text, self.position)
        if found is None:
            return None
        self.position = found.end()
        return _unescape(found[1] if found[1] is not None else found[2])

    def _read_plain(self) -> Any:
        if found := _WORD_REGEX.match(self.text, self.position):
            if found[0] not in WORDS:
                raise ValueSyntaxError(f"{found[0]!r} is no value")
            self.position = found.end()
            return WORDS[found[0]]
        found = _NUMBER_REGEX.match(self.text, self.position)
        if found is None:
            raise ValueSyntaxError("a value is missing")
        self.position = found.end()
        is_integer = found[0].lstrip("-").isdigit()
        try:
            value = int(found[0]) if is_integer else float(found[0])
            json.dumps(value, allow_nan=False)
        except ValueError as error:  # too many digits, or infinite
            raise ValueSyntaxError(f"{found[0][:20]!r} is too large") from error
        return value


def _unescape(text: str) -> str:
    def replace(found: re.Match[str]) -> str:
        code = found[1]
        if len(code) > 1:
            return chr(int(code[1:], 16))
        return _ESCAPES.get(code, found[0])  # an unknown escape is text, as in Python

    unescaped = _ESCAPE_REGEX.sub(replace, text)
    return unescaped.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def render_python_value(value: Any, json_words: bool) -> str:
    """Render a JSON value in the syntax of Python, with the words of JSON or of Python."""
    match value:
        case None | bool():
            return json.dumps(value) if json_words else str(value)
        case list() | tuple():
            return f"[{', '.join(render_python_value(item, json_words) for item in value)}]"
        case dict():
            pairs = (
                f"{json.dumps(str(key), ensure_ascii=False)}: "
                f"{render_python_value(item, json_words)}"
                for key, item in value.items()
            )
            return f"{{{', '.join(pairs)}}}"
    return json.dumps(value, ensure_ascii=False)


def render_quoted_value(value: Any, quote: str) -> str:
    """Render a JSON value as Gemma's templates do: strings between marks, keys without, sorted."""
    match value:
        case str():
            return f"{quote}{value}{quote}"
        case list() | tuple():
            return f"[{','.join(render_quoted_value(item, quote) for item in value)}]"
        case dict():
            return f"{{{render_quoted_pairs(value, quote)}}}"
    return json.dumps(value)


def render_quoted_pairs(pairs: dict[str, Any], quote: str) -> str:
    """Render the pairs of an object, sorted like jinja's `dictsort`."""
    ordered = sorted(pairs.items(), key=lambda pair: str(pair[0]).lower())
    return ",".join(f"{key}:{render_quoted_value(value, quote)}" for key, value in ordered)
