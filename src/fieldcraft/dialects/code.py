"""Common parts of the dialects of code agents: one tool, `python`, and programs between fences."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from fieldcraft.dialects.base import OBSERVATION, OneToolDialect
from fieldcraft.types import Action, Answer, Malformed, UserError

TOOL = "python"  # the tool
# A turn begins where the text does, or where an observation ended.
LINE = rf"(?:^|(?<={OBSERVATION}))"
BODY = r"(?:(?!^```)[\s\S])*+"  # lines of which none begins with a fence


def fence(language: str) -> str:
    """Return a regular expression (to be used with re.MULTILINE) of a fenced block, whose group is
    what is inside. Both fences have lines of their own."""
    return rf"{LINE}```{language}[ \t]*\n({BODY})^```[ \t]*$"


def block(language: str, text: str) -> str:
    """Return a fenced block, from its first fence to its last."""
    return f"```{language}\n{text}\n```"


def inside(body: str) -> str:
    """Return the text in a fenced block. The line feed before the last fence is that of the
    fence."""
    return body.removesuffix("\n")


def program(code: str) -> Action | Malformed:
    """Return the call that runs `code`."""
    if not code.strip():
        reason = "The program is empty: write Python that prints what you want to know."
        return Malformed(reason, TOOL)
    return Action(TOOL, {"code": code})


@dataclass(frozen=True)
class CodeDialect(OneToolDialect):
    """A dialect with the tool `python(code)`. Only programs of the policy are called: one in an
    observation is text."""

    tool = TOOL
    arguments: ClassVar[frozenset[str]] = frozenset({"code"})  # those that a call may have
    grammar: ClassVar[re.Pattern[str]]

    @abstractmethod
    def write_call(self, action: Action) -> str:
        """Write a call with the arguments that the dialect knows."""

    def write_action(self, action: Action) -> str:
        """Write a call. Raises UserError for another tool, and for a program that the dialect could
        not read back, such as one with a closing tag in a string."""
        given = action.arguments
        if action.tool == self.tool and {"code"} <= given.keys() <= self.arguments:
            text = self.write_call(action)
            if self.parse([text]) == (action,):
                return text
        raise UserError(
            f"The dialect {self.name} can only write python({', '.join(sorted(self.arguments))})"
            f" with a program that is not empty and holds none of {', '.join(self.tags)} or a line"
            f" with a fence, not {action}; change the program or use the dialect hermes."
        )

    def obeys_grammar(self, turns: str) -> bool:
        *calls, final = turns.split(OBSERVATION)
        return (
            self.grammar.fullmatch(turns) is not None
            and all(self._calls(turn) for turn in calls)
            and isinstance(self.parse([final]), Answer)
        )

    def _calls(self, turn: str) -> bool:
        parsed: Sequence[object] | Answer | None = self.parse([turn])
        return isinstance(parsed, tuple) and all(isinstance(call, Action) for call in parsed)
