"""Formats of calls with <invoke> and <parameter> tags in a block: MiniMax M2, DeepSeek V3.2, V4."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from fieldcraft.dialects.calls import parse_strict_json
from fieldcraft.dialects.untyped import UntypedText
from fieldcraft.extensions.families.markup_formats import EXAMPLE, MarkupFormat
from fieldcraft.types import MalformedCall, ToolCall, ToolCalls


@dataclass(frozen=True)
class InvokeFormat(MarkupFormat):
    """Block of invocations, each with its parameters.

    Class attributes:
        mark: text in all tags but that of the block.
        block: opening and closing tag of the block.
        lines: white space before the block, after the text of a turn.
        gap: white space after the tag of an invocation without parameters.
    """

    mark: ClassVar[str]
    block: ClassVar[tuple[str, str]]
    lines: ClassVar[str]
    gap: ClassVar[str] = ""

    @property
    def markers(self) -> tuple[str, ...]:
        names = ("invoke", "parameter")
        tags = (tag for n in names for tag in (f"<{self.mark}{n} name=", f"</{self.mark}{n}>"))
        return (*self.block, *tags)

    @property
    def opener(self) -> re.Pattern[str]:
        return re.compile("|".join(map(re.escape, self.block)))

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        invocations = "\n".join(map(self._render_call, calls))
        return f"{self.lines}{self.block[0]}\n{invocations}\n{self.block[1]}"

    def _render_call(self, call: ToolCall) -> str:
        lines = [f"{self._render_parameter(*pair)}\n" for pair in call.arguments.items()]
        content = "".join(lines) or self.gap
        return f'<{self.mark}invoke name="{call.tool}">\n{content}</{self.mark}invoke>'

    @abstractmethod
    def _render_parameter(self, name: str, value: Any) -> str:
        """Render a parameter with its tags."""

    @abstractmethod
    def _read_value(self, parameter: re.Match[str]) -> Any:
        """Return the value of a parameter. Raises ValueError and RecursionError for bad JSON."""

    @property
    @abstractmethod
    def _parameter_regex(self) -> re.Pattern[str]:
        """Regular expression of a parameter: its name is the first group."""

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        if mark[0] == self.block[1]:
            return (MalformedCall(f"Calls start with {self.block[0]}."),), mark.end()
        calls: list[ToolCall | MalformedCall] = []
        position = mark.end()
        while True:
            closing = re.compile(rf"\s*{re.escape(self.block[1])}").match(text, position)
            if closing is not None and calls:
                return tuple(calls), closing.end()
            call, position = self._parse_invocation(text, position)
            calls.append(call)
            if isinstance(call, MalformedCall):
                return tuple(calls), position

    def _parse_invocation(self, text: str, position: int) -> tuple[ToolCall | MalformedCall, int]:
        """Parse an invocation. A malformed one ends with the block or the text."""
        opening = re.compile(rf'\s*<{self.mark}invoke name="([^"<>\n]+)">\s*')
        found = opening.match(text, position)
        if found is None:
            return self._make_broken(text, position, "")
        position = found.end()
        arguments: dict[str, Any] = {}
        while parameter := self._parameter_regex.match(text, position):
            position = parameter.end()
            if parameter[1] in arguments:
                return self._make_broken(text, position, found[1])
            try:
                arguments[parameter[1]] = self._read_value(parameter)
            except (ValueError, RecursionError):
                return self._make_broken(text, position, found[1])
        ended = re.compile(rf"\s*</{self.mark}invoke>").match(text, position)
        if ended is None:
            return self._make_broken(text, position, found[1])
        return ToolCall(found[1], arguments), ended.end()

    def _make_broken(self, text: str, position: int, tool: str) -> tuple[MalformedCall, int]:
        closing = text.find(self.block[1], position)
        if closing < 0:
            return MalformedCall(f"Calls end with {self.block[1]}.", tool), len(text)
        reason = f"Calls must look like {self.render_calls([EXAMPLE]).strip()}"
        return MalformedCall(reason, tool), closing + len(self.block[1])


@dataclass(frozen=True)
class MiniMaxFormat(InvokeFormat):
    """Calls as MiniMax M2 writes them, whose values have no types.

    <minimax:tool_call>
    <invoke name="search">
    <parameter name="query">Oslo</parameter>
    </invoke>
    </minimax:tool_call>
    """

    name = "minimax"
    mark = ""
    block = ("<minimax:tool_call>", "</minimax:tool_call>")
    lines = "\n"

    def _render_parameter(self, name: str, value: Any) -> str:
        return f'<parameter name="{name}">{self._render_value(value)}</parameter>'

    def _read_value(self, parameter: re.Match[str]) -> Any:
        return UntypedText(parameter[2])

    @property
    def _parameter_regex(self) -> re.Pattern[str]:
        return _PARAMETER


_PARAMETER = re.compile(r'\s*<parameter name="([^"<>\n]+)">(.*?)</parameter>', re.DOTALL)


@dataclass(frozen=True)
class DsmlFormat(InvokeFormat):
    """Calls as DeepSeek V3.2 writes them: text as it is, all else as JSON, which is told apart.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="search">
    <｜DSML｜parameter name="query" string="true">Oslo</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>
    """

    name = "deepseek-v3.2"
    mark = "｜DSML｜"
    block = ("<｜DSML｜function_calls>", "</｜DSML｜function_calls>")
    lines = "\n\n"
    gap = "\n"

    def _render_parameter(self, name: str, value: Any) -> str:
        is_text = isinstance(value, str)
        text = value if is_text else self.dump_json(value)
        tag = f"{self.mark}parameter"
        return f'<{tag} name="{name}" string="{str(is_text).lower()}">{text}</{tag}>'

    def _read_value(self, parameter: re.Match[str]) -> Any:
        if parameter[2] == "true":
            return parameter[3]
        return parse_strict_json(parameter[3])

    @property
    def _parameter_regex(self) -> re.Pattern[str]:
        return _DSML_PARAMETER


_DSML_PARAMETER = re.compile(
    r'\s*<｜DSML｜parameter name="([^"<>\n]+)" string="(true|false)">(.*?)</｜DSML｜parameter>',
    re.DOTALL,
)


@dataclass(frozen=True)
class DsmlToolCallsFormat(DsmlFormat):
    """Calls as DeepSeek V4 writes them: as V3.2, in a block of another name."""

    name = "deepseek-v4"
    block = ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
