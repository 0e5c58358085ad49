"""Transcript of a trajectory for display: question, thought, action, observation, answer.

The transcript is for people. It is built from the record (author of a segment, calls made), and
uses tags only to separate a thought from the action or answer that ends it; training and grading do
not depend on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby

from fieldcraft.records.chains import split_chains
from fieldcraft.types import Author, CallOutcome, CallRecord, Trajectory


class EntryKind(StrEnum):
    PROMPT = "prompt"
    THOUGHT = "thought"
    ACTION = "action"
    OBSERVATION = "observation"
    SUMMARY = "summary"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class TranscriptEntry:
    """One block of a transcript. `label` is the tool of an action, the properties of an observation
    ("simulated", "failed", "9 characters cut"), the chain that starts with the prompt after a fold
    ("chain 2 of 3"), "given" for a thought that the policy did not write, "forced" for a forced
    answer, else empty."""

    kind: EntryKind
    text: str
    label: str = ""


_ESCAPE_REGEX = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
# C0 and C1 controls except tab and line feed, and the marks that reorder text on the screen.
_CONTROL_REGEX = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_TAG_REGEX = re.compile(r"</?[|｜]?[A-Za-z][\w.:-]*[|｜]?>")
_MARK_REGEX = re.compile(rf"{_TAG_REGEX.pattern}|```\w*|\\boxed\{{")


def strip_control_characters(text: str) -> str:
    """Return `text` without terminal escapes, control characters and direction overrides, so that
    text of a model or a web page can be displayed safely."""
    return _CONTROL_REGEX.sub("", _ESCAPE_REGEX.sub("", text))


def shorten_line(text: str, max_chars: int) -> str:
    """Return a text as one line of at most `max_chars` characters."""
    line = " ".join(text.split())
    return line if len(line) <= max_chars else f"{line[: max_chars - 1]}…"


def split_tags(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of `text` in order, each with whether it is a tag such as `<think>`."""
    end = 0
    for match in _TAG_REGEX.finditer(text):
        if match.start() > end:
            yield text[end : match.start()], False
        yield match.group(), True
        end = match.end()
    if end < len(text):
        yield text[end:], False


def build_transcript(trajectory: Trajectory) -> list[TranscriptEntry]:
    """Return the blocks of `trajectory` in order, cleaned for display; empty ones are omitted."""
    entries: list[TranscriptEntry] = []
    calls = list(trajectory.calls)
    pending: list[CallRecord] = []
    runs = _group_by_author(trajectory)
    for index, (side, text) in enumerate(runs):
        last = index == len(runs) - 1
        if trajectory.forced and trajectory.answer is not None and index == len(runs) - 2:
            continue  # tags that open the answer
        if side is not EntryKind.THOUGHT:
            entries += [_make_observation_entry(text, call) for call in pending] or [
                TranscriptEntry(side, text)
            ]
            pending = []
        elif last and trajectory.answer is not None:
            thought = _text_before(text, trajectory.answer)
            label = "forced" if trajectory.forced else ""
            entries += [
                TranscriptEntry(EntryKind.THOUGHT, thought),
                TranscriptEntry(EntryKind.ANSWER, trajectory.answer, label),
            ]
        elif calls and _turn_has_call(calls, runs[index + 1 :]):
            pending = _pop_turn_calls(calls, runs[index + 1 :])
            for call in reversed(pending):
                text = _text_before(text, _render_arguments(call))
            entries.append(TranscriptEntry(EntryKind.THOUGHT, text))
            entries += [
                TranscriptEntry(EntryKind.ACTION, _render_arguments(call), call.tool)
                for call in pending
            ]
        else:
            entries.append(TranscriptEntry(EntryKind.THOUGHT, text))
    # calls of a trajectory that ended before their observations could be appended
    entries += [_make_observation_entry(call.observation, call) for call in pending]
    _label_chains(entries)
    _label_given_thoughts(entries)
    visible = [
        TranscriptEntry(
            e.kind,
            _strip_delimiters(e.kind, strip_control_characters(e.text)),
            strip_control_characters(e.label),
        )
        for e in entries
    ]
    return [entry for entry in visible if entry.text]


def _group_by_author(trajectory: Trajectory) -> list[tuple[EntryKind, str]]:
    """Return the merged texts of consecutive segments of the same kind, chain by chain. The end of
    a folded chain is its summary, with prompts before and after it."""
    runs: list[tuple[EntryKind, str]] = []
    *folded, last = split_chains(trajectory)
    for chain in (*folded, last):
        runs += [
            (side, "".join(segment.text for segment in segments))
            for side, segments in groupby(chain, key=lambda s: _get_entry_kind(s.author))
        ]
        if chain is not last:
            runs[-1] = (EntryKind.SUMMARY, runs[-1][1])
    return runs


def _label_chains(entries: list[TranscriptEntry]) -> None:
    """Label the prompt after each summary."""
    after = [
        index for index, entry in enumerate(entries, start=1) if entry.kind is EntryKind.SUMMARY
    ]
    for number, index in enumerate(after, start=2):
        entries[index] = replace(entries[index], label=f"chain {number} of {len(after) + 1}")


def _label_given_thoughts(entries: list[TranscriptEntry]) -> None:
    """Mark prompts in the middle of a chain that start a turn; other such prompts request a
    summary."""
    for index, entry in enumerate(entries[1:], start=1):
        asks = entry.text.rstrip().endswith("<summary>")
        if entry.kind is EntryKind.PROMPT and not entry.label and not asks:
            entries[index] = TranscriptEntry(EntryKind.THOUGHT, entry.text, "given")


def _get_entry_kind(author: Author) -> EntryKind:
    match author:
        case Author.PROMPT:
            return EntryKind.PROMPT
        case Author.POLICY:
            return EntryKind.THOUGHT
        case Author.TOOL | Author.SIMULATOR:  # a simulator writes between the tool's tags
            return EntryKind.OBSERVATION


def _turn_has_call(calls: list[CallRecord], rest: list[tuple[EntryKind, str]]) -> bool:
    """Return whether the next call was written in this turn. A malformed attempt has an observation
    but may have no call; then there are more observations than calls, and the text distinguishes
    them."""
    observations = [text for side, text in rest if side is EntryKind.OBSERVATION]
    return len(observations) <= len(calls) or calls[0].observation.strip() in observations[0]


def _pop_turn_calls(calls: list[CallRecord], rest: list[tuple[EntryKind, str]]) -> list[CallRecord]:
    """Take the calls of one turn from the remaining calls. There are as many turns with calls as
    observation blocks, so only surplus calls can be further calls of this turn: those whose
    observations follow one another in the block."""
    observations = [text for side, text in rest if side is EntryKind.OBSERVATION]
    taken = [calls.pop(0)]
    while observations and len(calls) >= len(observations):
        _, found, after = observations[0].partition(taken[-1].observation.strip())
        if not found or calls[0].observation.strip() not in after:
            break
        observations[0] = after
        taken.append(calls.pop(0))
    return taken


def _make_observation_entry(text: str, call: CallRecord) -> TranscriptEntry:
    """Return the observation of a call; `text` is the whole block."""
    marks = ["simulated"] if call.simulated else []
    if call.outcome is not CallOutcome.OK:
        marks.append(call.outcome.value)
    if call.cut:
        marks.append(f"{call.cut} characters cut")
    # The tags are noise for display; a cut or escaped observation differs and is shown unchanged.
    inner = call.observation.strip()
    excerpt = inner if inner and inner in text else text
    return TranscriptEntry(EntryKind.OBSERVATION, excerpt, ", ".join(marks))


def _strip_delimiters(kind: EntryKind, text: str) -> str:
    """Return the text without surrounding white space, and without tags that only mark its kind."""
    text = text.strip()
    if kind is EntryKind.THOUGHT:
        text = text.removeprefix("<think>").removesuffix("</think>").strip()
    if kind is EntryKind.SUMMARY:
        text = text.removesuffix("</summary>").strip()
    return text


def _render_arguments(call: CallRecord) -> str:
    values = list(call.arguments.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(call.arguments, ensure_ascii=False)


def _text_before(text: str, content: str) -> str:
    """Return the text before the tag, fence or box that contains `content`, or all of it if there
    is none.

    If the last tag before it is a closing tag (`</think>`), `content` directly follows that tag.
    """
    start = max(text.rfind(content), text.rfind(json.dumps(content, ensure_ascii=False)[1:-1]))
    if start < 0:
        return text
    marks = list(_MARK_REGEX.finditer(text, 0, start))
    if not marks:
        return text[:start]
    return text[: marks[-1].end() if marks[-1].group().startswith("</") else marks[-1].start()]
