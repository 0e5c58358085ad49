r"""Dialect of ToolRL (arXiv 2504.13958): one turn of calls that are not executed.

policy  <think> I need ... </think>\n<tool_call>\n{...}\n{...}\n</tool_call><end of sequence>

A response to the user, between <response> tags, may replace the calls or follow them. The text
after the thought is the answer, including tags; rewards parse the calls in it.

In ToolRL's data, the tools of a question are described in a separate system text. Here this text is
the first part of the question, up to the heading of the dialogue, so that the same dialogue with
other tools is a different question.
"""

from __future__ import annotations

import re
from abc import abstractmethod
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from fieldcraft.dialects.base import (
    BaseDialect,
    encode_template,
    encode_untrusted,
    make_untagged_regex,
)
from fieldcraft.dialects.calls import (
    JSON_DECODER,
    WHITESPACE_REGEX,
    dump_call_json,
    make_unclosed_call,
    parse_call_json,
    parse_turn,
)
from fieldcraft.dialects.thought_parser import strip_foreign_thoughts
from fieldcraft.rewards.answers import StatelessReward
from fieldcraft.types import (
    ONLY_OBSERVATION,
    Answer,
    MalformedCall,
    ObservationPosition,
    Task,
    ToolCall,
    ToolCalls,
    Trajectory,
    UserError,
)

DIALOGUE_HEADING = "**Dialogue Records History**"
BLOCK_NAMES = ("tool_call", "response")
OPENING_REGEX = re.compile(rf"<({'|'.join(BLOCK_NAMES)})>")
CLOSING_TAG = "</tool_call>"
POLICY_TAGS = tuple(f"<{end}{tag}>" for tag in ("think", *BLOCK_NAMES) for end in ("", "/"))
TEXT_REGEX = make_untagged_regex(POLICY_TAGS)
CALLS_REGEX = rf"\n<tool_call>\n{TEXT_REGEX}(?<=\n)</tool_call>"
RESPONSE_REGEX = rf"\n<response>{TEXT_REGEX}</response>"
LAYOUT_REGEX = re.compile(
    rf"\s*<think>{TEXT_REGEX}</think>(?:{CALLS_REGEX}(?:{RESPONSE_REGEX})?|{RESPONSE_REGEX})\s*"
)


def split_thought(turn: str) -> tuple[str, str]:
    """Return the thought of a turn and the text after it. Either may be empty."""
    content = parse_turn(turn)
    # The thought is unclosed.
    if content.is_thinking or strip_foreign_thoughts(turn[content.start :]) is None:
        return turn, ""
    head = turn[: content.start].removesuffix("</think>")
    return head.strip().removeprefix("<think>").strip(), turn[content.start :].strip()


@dataclass(frozen=True, slots=True)
class AnswerBlock:
    """One block of an answer: calls or a response.

    Attributes:
        name: one of `BLOCK_NAMES`.
        start: start position of its content in the answer.
        end: end position of its content; the end of the answer for an unclosed block.
        calls: calls of a call block, in order.
    """

    name: str
    start: int
    end: int
    calls: ToolCalls = ()


def parse_blocks(answer: str) -> list[AnswerBlock]:
    """Parse the blocks of an answer, from left to right. A tag inside a block is text."""
    found, position = list[AnswerBlock](), 0
    while mark := OPENING_REGEX.search(answer, position):
        if mark[1] == "tool_call":
            calls, end = _parse_calls_from(answer, mark.end())
            found.append(AnswerBlock(mark[1], mark.end(), end, calls))
        else:
            closed = answer.find("</response>", mark.end())
            end = closed if closed >= 0 else len(answer)
            found.append(AnswerBlock(mark[1], mark.end(), end))
        position = found[-1].end
    return found


def _parse_calls_from(text: str, position: int) -> tuple[ToolCalls, int]:
    """Parse the calls from a position on. Return them and the position of the closing tag. Each
    JSON value is parsed from its start to its end; if there is no valid value, the rest of the line
    is a malformed call."""
    calls = list[ToolCall | MalformedCall]()
    while (position := _skip_whitespace(text, position)) < len(text):
        if text.startswith(CLOSING_TAG, position):
            return tuple(calls) or (parse_call_json("", "parameters"),), position
        end = _find_value_end(text, position) or min(
            index
            for index in (text.find("\n", position), text.find(CLOSING_TAG, position), len(text))
            if index >= 0
        )
        calls.append(parse_call_json(text[position:end].rstrip(), "parameters"))
        position = end
    return (make_unclosed_call(""),), len(text)


def _find_value_end(text: str, position: int) -> int | None:
    """Return the end position of the JSON value that starts at a position; None for other text."""
    try:
        _, end = JSON_DECODER.raw_decode(text, position)
    except (ValueError, RecursionError):
        return None
    is_delimited = (
        _skip_whitespace(text, end) > end or text.startswith(CLOSING_TAG, end) or end == len(text)
    )
    return end if is_delimited else None


def _skip_whitespace(text: str, position: int) -> int:
    space = WHITESPACE_REGEX.match(text, position)
    return space.end() if space else position


def parse_answer_calls(answer: str) -> ToolCalls:
    """Return the calls in the first call block of an answer."""
    blocks = (block.calls for block in parse_blocks(answer) if block.name == "tool_call")
    return next(blocks, ())


def find_block_names(answer: str) -> frozenset[str]:
    """Return the subset of `BLOCK_NAMES` that an answer contains."""
    return frozenset(block.name for block in parse_blocks(answer))


def _mask_blocks(turn: str) -> str:
    """Return a turn with the contents of its blocks masked, because they may contain any text,
    including tags."""
    start = parse_turn(turn).start
    answer, outline, position = turn[start:], turn[:start], 0
    for block in parse_blocks(answer):
        outline += answer[position : block.start] + answer[block.start : block.end].replace("<", "")
        position = block.end
    return outline + answer[position:]


def join_system_and_dialogue(system: str, dialogue: str) -> str:
    """Join a system text and a dialogue into one question."""
    return f"{system.strip()}\n\n{dialogue.strip()}"


@dataclass(frozen=True)
class ToolRLDialect(BaseDialect):
    """Dialect whose questions include their system text. It replaces the recipe's `system_prompt`.
    For a tokenizer without a chat template, the system text is the start of the prompt."""

    name = "toolrl"
    stop_strings = ()
    tags = (*POLICY_TAGS, "<obs>", "</obs>")
    default_instruction = ""  # each question includes its own

    def encode_prompt(self, question: str, tools: Sequence[dict[str, Any]]) -> list[int]:
        """Encode the prompt. Raises UserError for a tool, and for a chat template without system
        messages."""
        if tools:
            raise UserError(
                "The dialect toolrl runs no tools, because they are in the text of a question;"
                " set tools=[], or use the dialect hermes."
            )
        system, heading, dialogue = question.partition(DIALOGUE_HEADING)
        if not heading or not system.strip() or self.tokenizer.chat_template is None:
            return super().encode_prompt(question, [])
        opening, between, ending = self.system_parts
        return [
            *encode_template(self.tokenizer, opening),
            *encode_untrusted(self.tokenizer, system.strip()),
            *encode_template(self.tokenizer, between),
            *encode_untrusted(self.tokenizer, heading + dialogue.rstrip()),
            *encode_template(self.tokenizer, ending),
        ]

    @cached_property
    def system_parts(self) -> tuple[str, str, str]:
        """Prompt text before the system text, between it and the dialogue, and after the
        dialogue."""
        try:
            marked = replace(self, system_prompt=DIALOGUE_HEADING)
        except UserError as error:
            raise UserError(
                "The dialect toolrl needs a chat template that shows a system message; use a model"
                " that has one."
            ) from error
        before, ending = marked.render_prompt_parts([])
        opening, _, between = before.partition(DIALOGUE_HEADING)
        return opening, between, ending

    def parse(self, turns: Sequence[str]) -> Answer | None:
        _, answer = split_thought(self.turn_end.strip("".join(turns[-1:])))
        return Answer(answer) if answer else None

    def render_thought(self, text: str) -> str:
        return f"<think> {text} </think>\n" if text else ""

    def render_call(self, call: ToolCall) -> str:
        return self.render_calls([call])

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        lines = (dump_call_json(_to_json_object(call), self.tags) for call in calls)
        return "\n".join(("<tool_call>", *lines, "</tool_call>"))

    def render_answer(self, text: str) -> str:
        """Render an answer, which already contains its tags."""
        return text

    def observation_delimiters(
        self, position: ObservationPosition = ONLY_OBSERVATION
    ) -> tuple[str, str]:
        """Return the delimiters that ToolRL's dialogues use for results of earlier calls; a rollout
        has no observations."""
        return "\n<obs> ", " </obs>\n"

    def matches_grammar(self, joined_turns: str) -> bool:
        return LAYOUT_REGEX.fullmatch(_mask_blocks(joined_turns)) is not None


def _to_json_object(call: ToolCall) -> Mapping[str, Any]:
    return {"name": call.tool, "parameters": call.arguments}


# -- rewards -----------------------------------------------------------------------------------

NamedCall = tuple[str, Mapping[str, Any]]  # tool name and arguments


class _CallComparisonReward(StatelessReward):
    """Base class of scores that compare the calls of a rollout with the expected calls of its task.
    The score is None for a task without `meta["calls"]`."""

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [self._score_or_none(trajectory) for trajectory in group]

    def _score_or_none(self, trajectory: Trajectory) -> float | None:
        wanted = _read_wanted_calls(trajectory.task)
        return (
            None if wanted is None else self._score(trajectory, wanted, _collect_calls(trajectory))
        )

    @abstractmethod
    def _score(
        self, trajectory: Trajectory, wanted: list[NamedCall], calls: list[NamedCall] | None
    ) -> float:
        """Return the score of a trajectory; `calls` is None if a call is malformed."""


class ToolRLReward(_CallComparisonReward):
    """ToolRL's score of the calls of a rollout (arXiv 2504.13958): 6 R / S - 3, from -3 to 3.

    `task.meta["calls"]` lists the expected calls as {"name": ..., "arguments": {...}}. They are
    compared with the calls of the rollout or, in the dialect `toolrl`, which executes none, with
    the calls in its answer. R is r_name, the Jaccard index of the tool names as multisets, plus,
    for each expected call that is matched, the Jaccard index of the argument names and the number
    of equal values. S, the maximum of R, is 1 + the number of expected calls + the number of their
    arguments. Calls with the same name are matched greedily, most similar first; the paper
    maximises over all matchings, but its code is greedy. As in that code, a malformed call gives
    -3, and a task that expects no calls gives 0. A task without `calls` gives None.

    The paper's reward is the sum of this one and `toolrl_format`, both with weight 1.
    """

    name = "toolrl"

    def _score(
        self, trajectory: Trajectory, wanted: list[NamedCall], calls: list[NamedCall] | None
    ) -> float:
        if not wanted:
            return 0.0
        if calls is None:
            return -3.0
        return 6 * compute_call_score(wanted, calls) / _max_call_score(wanted) - 3


class ToolRLFormatReward(StatelessReward):
    """ToolRL's format score (arXiv 2504.13958): 1 for a well-formed rollout whose answer has the
    same blocks (calls, a response, or both) as a gold answer, else 0. Without gold answers, any
    blocks are accepted."""

    name = "toolrl_format"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [float(_has_layout(trajectory)) for trajectory in group]


class ToolRLExactReward(_CallComparisonReward):
    """Reward of 1 for the format of `toolrl_format` and exactly the expected calls, in any order
    and with the same arguments, else 0. None for a task without `meta["calls"]`."""

    name = "toolrl_exact"

    def _score(
        self, trajectory: Trajectory, wanted: list[NamedCall], calls: list[NamedCall] | None
    ) -> float:
        if calls is None or not _has_layout(trajectory):
            return 0.0
        return float(
            compute_call_score(wanted, calls) == _max_call_score(wanted) if wanted else not calls
        )


def _has_layout(trajectory: Trajectory) -> bool:
    golds = trajectory.task.answers
    blocks = find_block_names(trajectory.answer or "")
    return trajectory.well_formed and (not golds or blocks in map(find_block_names, golds))


def _read_wanted_calls(task: Task) -> list[NamedCall] | None:
    wanted = task.meta.get("calls")
    if wanted is None:
        return None
    if not isinstance(wanted, list):
        raise _make_wanted_error(task.id)
    return [_parse_wanted_call(call, task.id) for call in wanted]


def _collect_calls(trajectory: Trajectory) -> list[NamedCall] | None:
    """Return the calls of a trajectory; None if one is malformed."""
    calls: list[NamedCall] = []
    for call in trajectory.calls or parse_answer_calls(trajectory.answer or ""):
        if isinstance(call, MalformedCall) or not call.tool:
            return None
        calls.append((call.tool, call.arguments))
    return calls


def _max_call_score(wanted: Sequence[NamedCall]) -> int:
    """Return ToolRL's S."""
    return 1 + len(wanted) + sum(len(arguments) for _, arguments in wanted)


def compute_call_score(wanted: Sequence[NamedCall], calls: Sequence[NamedCall]) -> float:
    """Return ToolRL's R for the given calls."""
    names, call_names = (Counter(name for name, _ in side) for side in (wanted, calls))
    score = (names & call_names).total() / (names | call_names).total()
    pairs = [
        (_similarity(arguments, given), i, j)
        for i, (name, arguments) in enumerate(wanted)
        for j, (other, given) in enumerate(calls)
        if name == other
    ]
    taken: set[int] = set()
    matched: set[int] = set()
    for value, i, j in sorted(pairs, key=lambda pair: (-pair[0], pair[1], pair[2])):
        if i not in matched and j not in taken:
            matched.add(i)
            taken.add(j)
            score += value
    return score


def _similarity(wanted: Mapping[str, Any], given: Mapping[str, Any]) -> float:
    """Return the Jaccard index of the argument names of two calls plus the number of equal values.
    Two calls without arguments are equal."""
    all_keys = wanted.keys() | given.keys()
    shared = wanted.keys() & given.keys()
    jaccard = len(shared) / len(all_keys) if all_keys else 1.0
    return jaccard + sum(wanted[key] == given[key] for key in shared)


def _parse_wanted_call(call: Any, task: str) -> NamedCall:
    match call:
        case {"name": str(name), "arguments": dict(arguments)}:
            return name, arguments
    raise _make_wanted_error(task)


def _make_wanted_error(task: str) -> UserError:
    return UserError(
        f"the expected calls of task '{task}' cannot be parsed: write each in the metadata as"
        ' {"name": "...", "arguments": {...}}.'
    )
