"""Format of gpt-oss (harmony): messages in channels, in which calls have recipients.

    <|channel|>analysis<|message|>I look.<|end|><|start|>assistant to=functions.search\\
    <|channel|>commentary json<|message|>{"query": "Oslo"}<|call|>
    <|channel|>final<|message|>Oslo<|return|>
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from fieldcraft.dialects.calls import TurnContent
from fieldcraft.extensions.families.formats import (
    CallFormat,
    find_json_end,
    parse_arguments,
    skip_space,
)
from fieldcraft.types import MalformedCall, ToolCall, ToolCalls

START, CHANNEL, MESSAGE = "<|start|>", "<|channel|>", "<|message|>"
END, CALL, RETURN, CONSTRAIN = "<|end|>", "<|call|>", "<|return|>", "<|constrain|>"
FINAL = "final"
NAME_SLOT = "{name}"
HEADERS = (
    f" to=functions.{NAME_SLOT}{CHANNEL}commentary json{MESSAGE}",
    f"{CHANNEL}commentary to=functions.{NAME_SLOT} {CONSTRAIN}json{MESSAGE}",
    f" to=functions.{NAME_SLOT}{CHANNEL}commentary {CONSTRAIN}json{MESSAGE}",
)
_MARKERS = (START, CHANNEL, MESSAGE, END, CALL, RETURN, CONSTRAIN)
_ENDS_REGEX = re.compile("|".join(map(re.escape, (END, CALL, RETURN, START, CHANNEL, MESSAGE))))
_TEXT = rf"(?:(?!{'|'.join(map(re.escape, _MARKERS))})[\s\S])*"
_HEADER = rf"(?:(?!{'|'.join(map(re.escape, (MESSAGE, END, CALL, RETURN)))})[\s\S])*?"
_MESSAGE_REGEX = re.compile(
    rf"\s*(?:{re.escape(START)}assistant)?(?P<header>{_HEADER}){re.escape(MESSAGE)}"
)
_RECIPIENT_REGEX = re.compile(r"\bto=([\w.:/-]+)")
_CHANNEL_REGEX = re.compile(rf"{re.escape(CHANNEL)}\s*(\w+)")
_THOUGHTS = (
    rf"(?:{re.escape(CHANNEL)}(?:analysis|commentary){re.escape(MESSAGE)}{_TEXT}"
    rf"{re.escape(END)}{re.escape(START)}assistant)*"
)
_CANONICAL_REGEX = re.compile(
    rf"{_THOUGHTS}(?:{re.escape(CHANNEL)}{FINAL}{re.escape(MESSAGE)}{_TEXT}"
    rf"|{_TEXT}{re.escape(CHANNEL)}commentary{_TEXT}(?:{re.escape(CONSTRAIN)}\w+)?"
    rf"{re.escape(MESSAGE)}\s*\{{[\s\S]*\}}\s*)"
)


@dataclass(frozen=True)
class HarmonyFormat(CallFormat):
    """Messages in channels; `header` is the text before the arguments of a call."""

    header: str = HEADERS[0]

    name = "gpt-oss"

    @property
    def markers(self) -> tuple[str, ...]:
        return _MARKERS

    @property
    def opener(self) -> re.Pattern[str]:
        return _MESSAGE_REGEX

    def render_calls(self, calls: Sequence[ToolCall]) -> str:
        return self.separator.join(
            self.header.replace(NAME_SLOT, call.tool) + self.dump_json(call.arguments)
            for call in calls
        )

    def parse_calls(self, text: str, mark: re.Match[str]) -> tuple[ToolCalls, int]:
        """Parse the call of a message; a message without a recipient has none."""
        recipient = _RECIPIENT_REGEX.search(mark["header"])
        if recipient is None:
            return (), mark.end()
        tool = recipient[1].removeprefix("functions.")
        start = skip_space(text, mark.end())
        end = find_json_end(text, start)
        if end is None:
            return (MalformedCall("The arguments of a call are JSON.", tool),), len(text)
        return (parse_arguments(tool, text[start:end]),), end

    def parse_turn(self, text: str, thought_tags: tuple[str, str]) -> TurnContent:
        """Parse the messages of a turn. Only the text of the channel `final` is a reply."""
        turn, position = TurnContent(), 0
        while mark := _MESSAGE_REGEX.match(text, position):
            calls, position = self.parse_calls(text, mark)
            turn.calls += calls
            channel = _CHANNEL_REGEX.search(mark["header"])
            ended = _ENDS_REGEX.search(text, position)
            end = ended.start() if ended else len(text)
            if not calls and channel is not None and channel[1] == FINAL:
                turn.texts.append(text[position:end])
            position = ended.end() if ended and ended[0] in (END, CALL, RETURN) else end
        return turn

    def is_canonical(self, text: str) -> bool:
        """Return whether a turn consists of thoughts, and then an answer or a call."""
        return _CANONICAL_REGEX.fullmatch(text) is not None

    def render_answer_opening(self, turn: str, answer_opening: str) -> str:
        """Return the text that ends the open message of a turn and opens an answer."""
        if not turn:
            return answer_opening
        is_ended = turn.endswith((END, f"{START}assistant"))
        start = "" if turn.endswith("assistant") and is_ended else f"{START}assistant"
        return f"{'' if is_ended else END}{start}{answer_opening}"
