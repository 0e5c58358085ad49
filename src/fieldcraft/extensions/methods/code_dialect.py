"""Base class of the dialects of code agents: one tool, `python`, and fenced programs."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fieldcraft.dialects.base import OBSERVATION_PLACEHOLDER
from fieldcraft.extensions.methods.tag_dialect import TagDialect
from fieldcraft.types import Answer, MalformedCall, ToolCall, UserError

PYTHON_TOOL = "python"
# A turn starts at the start of the text or after an observation.
LINE_START_REGEX = rf"(?:^|(?<={OBSERVATION_PLACEHOLDER}))"
BODY_REGEX = r"(?:(?!^```)[\s\S])*+"  # lines that do not start with a fence


def make_fence_regex(language: str) -> str:
    """Return a regular expression (for re.MULTILINE) of a fenced block, whose group is the content.
    Both fences are on separate lines."""
    return rf"{LINE_START_REGEX}```{language}[ \t]*\n({BODY_REGEX})^```[ \t]*$"


def render_fenced_block(language: str, text: str) -> str:
    """Return a fenced block, from its first fence to its last."""
    return f"```{language}\n{text}\n```"


def get_fence_content(body: str) -> str:
    """Return the text in a fenced block. The line feed before the last fence belongs to the
    fence."""
    return body.removesuffix("\n")


def make_python_call(code: str) -> ToolCall | MalformedCall:
    """Return the call that runs `code`."""
    if not code.strip():
        reason = "The program is empty: write Python that prints what you want to know."
        return MalformedCall(reason, PYTHON_TOOL)
    return ToolCall(PYTHON_TOOL, {"code": code})


@dataclass(frozen=True)
class CodeDialect(TagDialect):
    """A dialect with the tool `python(code)`. Only programs of the policy are executed: a program
    in an observation is text."""

    allowed_arguments: ClassVar[frozenset[str]] = frozenset({"code"})  # allowed arguments of a call

    @abstractmethod
    def render_program_call(self, action: ToolCall) -> str:
        """Render a call with the arguments that the dialect supports."""

    def render_call(self, call: ToolCall) -> str:
        """Render a call. Raises UserError for another tool, and for a program that the dialect
        could not parse back, such as one with a closing tag in a string."""
        given = call.arguments
        if call.tool == PYTHON_TOOL and {"code"} <= given.keys() <= self.allowed_arguments:
            text = self.render_program_call(call)
            if self.parse([text]) == (call,):
                return text
        raise UserError(
            f"The dialect {self.name} can only write "
            f"python({', '.join(sorted(self.allowed_arguments))})"
            f" with a program that is not empty and holds none of {', '.join(self.tags)} or a line"
            f" with a fence, not {call}; change the program or use the dialect hermes."
        )

    def matches_grammar(self, joined_turns: str) -> bool:
        *calls, final = joined_turns.split(OBSERVATION_PLACEHOLDER)
        return (
            super().matches_grammar(joined_turns)
            and all(self._is_call_turn(turn) for turn in calls)
            and isinstance(self.parse([final]), Answer)
        )

    def _is_call_turn(self, turn: str) -> bool:
        parsed: Sequence[object] | Answer | None = self.parse([turn])
        return isinstance(parsed, tuple) and all(isinstance(call, ToolCall) for call in parsed)
