"""Base classes of dialects whose calls and answers are texts between tags, as papers define them.

A subclass states its tags in a `TagSpec`; the rest follows from them, and can be overridden.
`CodeDialect` is for agents whose calls are fenced programs.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, ClassVar, NamedTuple

from fieldcraft.dialects.base import OBSERVATION_PLACEHOLDER, BaseDialect, make_untagged_regex
from fieldcraft.dialects.marked_answers import unwrap_boxed
from fieldcraft.dialects.thought_parser import strip_thoughts
from fieldcraft.types import (
    ONLY_OBSERVATION,
    Answer,
    MalformedCall,
    ObservationPosition,
    Thought,
    ThoughtRole,
    ToolCall,
    ToolCalls,
    UserError,
)


class CallTags(NamedTuple):
    """Tags around the text of a call, which is the only argument of its tool."""

    opening: str
    closing: str
    tool: str
    argument: str

    @property
    def name(self) -> str:
        """Name of the opening tag."""
        return self.opening[1:-1]


def make_call_tags(name: str, tool: str, argument: str) -> CallTags:
    """Return the tags <name> and </name> of a call."""
    return CallTags(f"<{name}>", f"</{name}>", tool, argument)


def make_tags(names: Sequence[str]) -> tuple[str, ...]:
    """Return the opening and the closing tag of every name."""
    return tuple(f"<{end}{name}>" for name in names for end in ("", "/"))


@dataclass(frozen=True)
class TagSpec:
    """Tags of a dialect.

    Args:
        calls: tags of each call.
        result: name of the tag around an observation, "" for none.
        roles: names of the tags around thoughts, empty for thoughts without tags.
        answer: name of the tag around an answer, "" for none.
    """

    calls: tuple[CallTags, ...]
    result: str = ""
    roles: tuple[str, ...] = ()
    answer: str = "answer"

    @property
    def tags(self) -> tuple[str, ...]:
        """All tags."""
        calls = tuple(tag for call in self.calls for tag in (call.opening, call.closing))
        others = make_tags([name for name in (self.result, self.answer) if name])
        return (*make_tags(self.roles), *calls, *others)

    @property
    def stop_strings(self) -> tuple[str, ...]:
        """Tags that end a turn."""
        answer = (f"</{self.answer}>",) if self.answer else ()
        return (*(call.closing for call in self.calls), *answer)

    @property
    def text_regex(self) -> str:
        """Regular expression of a text without tags."""
        return make_untagged_regex(self.tags)

    def make_grammar(self) -> re.Pattern[str]:
        """Return the grammar: rounds of a thought and a call, then a thought and the answer."""
        text, answer = self.text_regex, self.answer
        thought = rf"\s*<think>{text}</think>\s*" if ThoughtRole.THINK in self.roles else text
        calls = "|".join(
            rf"{re.escape(opening)}(?!\s*{re.escape(closing)}){text}{re.escape(closing)}"
            for opening, closing, _, _ in self.calls
        )
        return re.compile(
            rf"(?:{thought}(?:{calls})\s*{OBSERVATION_PLACEHOLDER})*"
            rf"{thought}<{answer}>(?!\s*</{answer}>){text}</{answer}>\s*"
        )


def render_blocks(thoughts: Sequence[Thought], tags: Sequence[str], padding: str = "\n") -> str:
    """Render thoughts between the tags of their roles; consecutive thoughts of one role share a
    block. A role without a tag is rendered as thinking.

    Args:
        thoughts: thoughts in their order.
        tags: tags of the dialect.
        padding: white space between a tag and its text.
    """

    def get_role(thought: Thought) -> ThoughtRole:
        return thought.role if f"<{thought.role}>" in tags else ThoughtRole.THINK

    groups = [
        (role, "\n\n".join(thought.text for thought in group))
        for role, group in groupby(thoughts, key=get_role)
    ]
    return "".join(f"<{role}>{padding}{text}{padding}</{role}>\n" for role, text in groups)


@dataclass(frozen=True)
class TagDialect(BaseDialect):
    """A dialect whose calls and answers are texts between tags.

    A subclass sets `name`, `default_instruction`, `spec` and `delimiters`. `tags`, `stop_strings`,
    `callable_tools` and, unless it is set, `grammar` follow from `spec`.
    """

    spec: ClassVar[TagSpec]
    delimiters: ClassVar[tuple[str, str]]  # around an observation
    padding: ClassVar[str] = "\n"  # white space between a tag and its text
    grammar: ClassVar[re.Pattern[str]]
    empty_call_reason: ClassVar[str] = (
        "Nothing to search for: write {opening} {argument} {closing}."
    )

    def __init_subclass__(cls) -> None:
        if "spec" in vars(cls):
            cls.tags, cls.stop_strings = cls.spec.tags, cls.spec.stop_strings
            cls.callable_tools = tuple(call.tool for call in cls.spec.calls)
            if "grammar" not in vars(cls):
                cls.grammar = cls.spec.make_grammar()

    def encode_prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        """Encode the prompt. The instruction describes the tools; `tools` may contain any of
        them."""
        known = [call.tool for call in self.spec.calls]
        for tool in tools:
            if (name := tool["function"]["name"]) not in known:
                raise UserError(
                    f"The dialect {self.name} can only call `{'` and `'.join(known)}`, not"
                    f" `{name}`; use the dialect hermes for other tools."
                )
        return super().encode_prompt(question, [])

    def observation_delimiters(
        self, position: ObservationPosition = ONLY_OBSERVATION
    ) -> tuple[str, str]:
        return self.delimiters

    # -- parsing -------------------------------------------------------------------------------

    def parse(self, turns: Sequence[str]) -> Answer | ToolCalls | None:
        turn = "".join(turns[-1:])
        reply = strip_thoughts(turn, self.tagged_roles, self.stop_strings)
        return self._parse_unfinished_thought(turn) if reply is None else self.parse_reply(reply)

    def _parse_unfinished_thought(self, turn: str) -> ToolCalls | None:
        """Return the call of a turn that ends inside a thought. This is None, unless a call ended
        the turn; then a malformed call informs the policy why it was ignored."""
        for call in self.spec.calls:
            if call.closing in turn:
                reason = f"A call stands after the thought: write </think> before {call.opening}."
                return (MalformedCall(reason, call.tool),)
        return None

    def parse_reply(self, text: str) -> Answer | ToolCalls | None:
        """Parse the text after the thoughts of a turn up to its first closing tag. The text after
        it is ignored: the last sampled token may extend beyond the stop string."""
        ends = [(index, end) for end in self.stop_strings if (index := text.find(end)) >= 0]
        if not ends:
            return None
        index, end = min(ends)
        for call in self.spec.calls:
            if call.closing == end:
                _, opened, content = text[:index].rpartition(call.opening)
                return (self.parse_call(call, content if opened else ""),)
        _, opened, content = text[:index].rpartition(f"<{self.spec.answer}>")
        answer = self.parse_answer(content) if opened else ""
        return Answer(answer) if answer else None

    def parse_call(self, call: CallTags, text: str) -> ToolCall | MalformedCall:
        """Parse the call whose tags contain `text`."""
        if not text.strip():
            return MalformedCall(self.empty_call_reason.format(**call._asdict()), call.tool)
        return ToolCall(call.tool, {call.argument: text.strip()})

    def parse_answer(self, text: str) -> str:
        """Parse the text of an answer, "" for none."""
        return unwrap_boxed(text)

    def matches_grammar(self, joined_turns: str) -> bool:
        return self.grammar.fullmatch(joined_turns) is not None

    # -- rendering -----------------------------------------------------------------------------

    def render_thought(self, text: str) -> str:
        if not text or ThoughtRole.THINK not in self.tagged_roles:
            return f"{text}\n" if text else ""
        return render_blocks([Thought(text)], self.tags, self.padding)

    def render_thoughts(self, thoughts: Sequence[Thought]) -> str:
        if len(self.tagged_roles) < 2:
            return super().render_thoughts(thoughts)
        return render_blocks(thoughts, self.tags, self.padding)

    def render_call(self, call: ToolCall) -> str:
        for tags in self.spec.calls:
            if (call.tool, *call.arguments) == (tags.tool, tags.argument):
                text = str(call.arguments[tags.argument]).strip()
                return f"{tags.opening}{self.padding}{text}{self.padding}{tags.closing}"
        known = ", ".join(f"{tags.tool}({tags.argument})" for tags in self.spec.calls)
        raise UserError(
            f"The dialect {self.name} can only write {known}, not {call}; use the dialect hermes."
        )

    def render_answer(self, text: str) -> str:
        tag, content = self.spec.answer, self.render_answer_content(text)
        return f"<{tag}>{self.padding}{content}{self.padding}</{tag}>"

    def render_answer_content(self, text: str) -> str:
        """Render the text between the tags of an answer."""
        return text


# -- programs ----------------------------------------------------------------------------------

PYTHON_TOOL = "python"
# A turn starts at the start of the text or after an observation.
LINE_START_REGEX = rf"(?:^|(?<={OBSERVATION_PLACEHOLDER}))"
BODY_REGEX = r"(?:(?!```)[^\n]*+\n)*"  # lines that do not start with a fence


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
