"""Texts of questions: prompts without another framework's instruction, and added passages.

A prompt may repeat the instruction of another framework, which is removed. A question that is
unanswerable without its passage (BoolQ, RACE, SVAMP) is preceded by it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, TypeVar

from fieldcraft.data.multiple_choice import parse_options
from fieldcraft.data.records import Record, RecordError, first_filled

SequenceT = TypeVar("SequenceT", str, list[int])
# Last line of AutoCoA's instruction, and of this project's instruction for it.
_LAST_LINE = re.compile(r".*\bnow\b[^\n]*\bquestion\b[^\n]*:[ \t]*\n", re.DOTALL | re.IGNORECASE)
# Possible ends of an instruction before a question, and starts of one after it.
_COLON = re.compile(r".*:\s+", re.DOTALL)
_BLANK_LINE = re.compile(r".*\n[ \t]*\n\s*", re.DOTALL)
_MIN_PROMPTS = 3
_LAST_BLOCK = re.compile(r"\n[ \t]*\n.*", re.DOTALL)


def extract_prompt(record: Record) -> str:
    """Return the user's message of a verl prompt, or a prompt that is plain text, or "" if there is
    neither. Raises RecordError for a conversation of several turns, whose last message alone is not
    the question."""
    messages = record.get("prompt")
    if isinstance(messages, str):
        return messages
    if not isinstance(messages, list):
        return ""
    user_messages = [
        m for m in messages if isinstance(m, dict) and m.get("role") in ("user", "human")
    ]
    if len(user_messages) > 1:
        raise RecordError(
            "a prompt of several messages of the user",
            "its prompt is a conversation: write what the user asks in the end as 'question', with"
            " all that it needs.",
        )
    content = user_messages[0].get("content") if user_messages else None
    return extract_text(content) if content else ""


def extract_text(content: Any) -> str:
    """Return the text of a message, which may be in parts."""
    if isinstance(content, str):
        return content
    if isinstance(content, list) and content:
        return "".join(map(_part_text, content))
    raise RecordError("a message without a text")


_TEXT_PART_TYPES = ("text", "input_text", "output_text", "reasoning.text", None)


def _part_text(part: Any) -> str:
    match part:
        case str(text):
            return text
        case {"type": str(kind) | (None as kind), "text": str(text)} if kind in _TEXT_PART_TYPES:
            return text
        case {"text": str(text)} if "type" not in part:
            return text
    raise RecordError("a part of a message that is not text")


def strip_shared_instruction(prompts: Sequence[str]) -> list[str]:
    """Return the questions of prompts. A known instruction is removed up to its last line.
    Otherwise, the prefix shared by all prompts of a file is removed up to its last colon or blank
    line, and so are shared paragraphs at the end. A paragraph with a question mark is part of the
    question, and stays."""
    others = [prompt for prompt in prompts if not _LAST_LINE.match(prompt)]
    prefix, suffix = _find_shared_prefix(others), _find_shared_suffix(others)
    return [
        found.string[found.end() :]
        if (found := _LAST_LINE.match(prompt))
        else prompt.removeprefix(prefix).removesuffix(suffix)
        for prompt in prompts
    ]


def strip_instructions_by_kind(prompts: Sequence[str], kinds: Sequence[str]) -> list[str]:
    """Return the questions as `strip_shared_instruction` does, if the prompts of each kind, such as
    mathematics or code, end with their own paragraphs."""
    questions = strip_shared_instruction(prompts)
    for kind in dict.fromkeys(kinds):
        indices = [index for index, other in enumerate(kinds) if other == kind]
        suffix = _find_shared_suffix([questions[index] for index in indices])
        for index in indices:
            questions[index] = questions[index].removesuffix(suffix)
    return questions


def _find_shared_prefix(prompts: Sequence[str]) -> str:
    """Return the prefix shared by all prompts, up to its last colon with white space, or blank
    line. Equal prompts share nothing that could be told from a question."""
    if len(set(prompts)) < 2:
        return ""
    shared = find_common_prefix(prompts)
    ends = [found.end() for found in (_COLON.match(shared),) if found]
    if (block := _BLANK_LINE.match(shared)) and "?" not in block.group():
        ends.append(block.end())
    return shared[: max(ends, default=0)]


def _find_shared_suffix(prompts: Sequence[str]) -> str:
    """Return the paragraphs that all prompts end with, from the first blank line on. Fewer than
    `_MIN_PROMPTS` prompts may share their end by chance."""
    if len(set(prompts)) < _MIN_PROMPTS:
        return ""
    shared = find_common_prefix([prompt[::-1] for prompt in prompts])[::-1]
    found = _LAST_BLOCK.search(shared)
    return found.group() if found and "?" not in found.group() else ""


def find_common_prefix(sequences: Sequence[SequenceT]) -> SequenceT:
    """Return the longest text, or list of token ids, with which all sequences begin; at least one
    is required."""
    low, high = min(sequences), max(sequences)  # their prefix is shared by all between them
    pairs = zip(low, high, strict=False)
    length = next((i for i, (a, b) in enumerate(pairs) if a != b), len(low))
    return low[:length]


# -- passages ----------------------------------------------------------------------------------

_PASSAGE_KEYS = ("passage", "article", "context", "narrative", "premise")  # COPA has the last
_TRUTH_VALUES = ("true", "false", "yes", "no")


def prepend_passage(record: Record, question: str) -> str:
    """Return the question preceded by its passage (`find_own_passage`), unless it contains it."""
    passage = find_own_passage(record)
    return question if passage is None or passage in question else f"{passage}\n\n{question}"


def find_own_passage(record: Record) -> str | None:
    """Return the passage that a question is asked with, as in evaluations of BoolQ and RACE. The
    text of other questions, such as SQuAD's, is what a search has to find."""
    passage = first_filled(record, _PASSAGE_KEYS) if parse_options(record) else None
    if passage is None and str(record.get("answer")).strip().lower() in _TRUTH_VALUES:
        passage = record.get("passage")
    if "Body" in record and "Question" in record:  # SVAMP: `Question` is only the last sentence
        passage = record["Body"]
    return (passage.strip() or None) if isinstance(passage, str) else None
