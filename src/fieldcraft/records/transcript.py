"""A trajectory as a reader sees it: question, thought, action, observation, answer.

This is a view for people. It reads the record (who wrote a segment, which calls were made) and
uses tags only to place the cut between a thought and the action or answer that ends it; nothing
that trains or grades a model depends on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import groupby

from fieldcraft.records.chains import chains
from fieldcraft.types import Author, Call, Outcome, Trajectory


class Kind(StrEnum):
    PROMPT = "prompt"
    THOUGHT = "thought"
    ACTION = "action"
    OBSERVATION = "observation"
    SUMMARY = "summary"
    ANSWER = "answer"


@dataclass(frozen=True, slots=True)
class Entry:
    """One block of a transcript. `label` is the tool of an action, what is special about an
    observation ("simulated", "failed", "9 characters cut"), the chain that the prompt after a fold
    begins ("chain 2 of 3"), "given" for a thought that the policy did not write, or "forced" for an
    answer that it was made to give, else empty."""

    kind: Kind
    text: str
    label: str = ""


_ESCAPE = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-_])")
# C0 and C1 controls but for tab and line feed, and the marks that reorder text on the screen.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
_TAG = re.compile(r"</?[|｜]?[A-Za-z][\w.:-]*[|｜]?>")
_MARK = re.compile(rf"{_TAG.pattern}|```\w*|\\boxed\{{")


def clean(text: str) -> str:
    """Return `text` without terminal escapes, control characters and direction overrides, so that
    text of a model or a web page can be shown safely."""
    return _CONTROL.sub("", _ESCAPE.sub("", text))


def split_tags(text: str) -> Iterator[tuple[str, bool]]:
    """Yield the pieces of `text` in order, each with whether it is a tag like `<think>`."""
    end = 0
    for match in _TAG.finditer(text):
        if match.start() > end:
            yield text[end : match.start()], False
        yield match.group(), True
        end = match.end()
    if end < len(text):
        yield text[end:], False


def transcript(trajectory: Trajectory) -> list[Entry]:
    """Return the blocks of `trajectory` in order, cleaned for display; empty ones are left out."""
    entries: list[Entry] = []
    calls = list(trajectory.calls)
    pending: list[Call] = []
    runs = _runs(trajectory)
    for index, (side, text) in enumerate(runs):
        last = index == len(runs) - 1
        if trajectory.forced and trajectory.answer is not None and index == len(runs) - 2:
            continue  # tags that open the answer
        if side is not Kind.THOUGHT:
            entries += [_observed(text, call) for call in pending] or [Entry(side, text)]
            pending = []
        elif last and trajectory.answer is not None:
            thought = _before(text, trajectory.answer)
            label = "forced" if trajectory.forced else ""
            entries += [Entry(Kind.THOUGHT, thought), Entry(Kind.ANSWER, trajectory.answer, label)]
        elif calls and _belongs(calls, runs[index + 1 :]):
            pending = _take_turn(calls, runs[index + 1 :])
            for call in reversed(pending):
                text = _before(text, _argument(call))
            entries.append(Entry(Kind.THOUGHT, text))
            entries += [Entry(Kind.ACTION, _argument(call), call.tool) for call in pending]
        else:
            entries.append(Entry(Kind.THOUGHT, text))
    # of a trajectory that ended before its observations could be appended
    entries += [_observed(call.observation, call) for call in pending]
    _number_chains(entries)
    _name_given(entries)
    shown = [Entry(e.kind, _unframed(e.kind, clean(e.text)), clean(e.label)) for e in entries]
    return [entry for entry in shown if entry.text]


def _runs(trajectory: Trajectory) -> list[tuple[Kind, str]]:
    """Return the texts of those who took turns, chain by chain. What ends a folded chain is its
    summary; a prompt stands on either side of it."""
    runs: list[tuple[Kind, str]] = []
    *folded, last = chains(trajectory)
    for chain in (*folded, last):
        runs += [
            (side, "".join(segment.text for segment in segments))
            for side, segments in groupby(chain, key=lambda s: _side(s.author))
        ]
        if chain is not last:
            runs[-1] = (Kind.SUMMARY, runs[-1][1])
    return runs


def _number_chains(entries: list[Entry]) -> None:
    """Label the prompt after each summary."""
    after = [at for at, entry in enumerate(entries, start=1) if entry.kind is Kind.SUMMARY]
    for number, at in enumerate(after, start=2):
        entries[at] = replace(entries[at], label=f"chain {number} of {len(after) + 1}")


def _name_given(entries: list[Entry]) -> None:
    """Mark the prompts in the middle of a chain that a turn was begun with; others ask for a
    summary."""
    for at, entry in enumerate(entries[1:], start=1):
        asks = entry.text.rstrip().endswith("<summary>")
        if entry.kind is Kind.PROMPT and not entry.label and not asks:
            entries[at] = Entry(Kind.THOUGHT, entry.text, "given")


def _side(author: Author) -> Kind:
    match author:
        case Author.PROMPT:
            return Kind.PROMPT
        case Author.POLICY:
            return Kind.THOUGHT
        case Author.TOOL | Author.SIMULATOR:  # a simulator writes inside the tool's frame
            return Kind.OBSERVATION


def _belongs(calls: list[Call], rest: list[tuple[Kind, str]]) -> bool:
    """Return whether the next call was written in this turn. A malformed attempt is answered but
    may have left no call; then there are more observations than calls, and the text tells them
    apart."""
    observations = [text for side, text in rest if side is Kind.OBSERVATION]
    return len(observations) <= len(calls) or calls[0].observation.strip() in observations[0]


def _take_turn(calls: list[Call], rest: list[tuple[Kind, str]]) -> list[Call]:
    """Take the calls of one turn from those that are left. There are as many turns with calls as
    observation blocks, so only what is more can be further calls of this turn: those whose
    observations the block holds one after the other."""
    observations = [text for side, text in rest if side is Kind.OBSERVATION]
    taken = [calls.pop(0)]
    while observations and len(calls) >= len(observations):
        _, found, after = observations[0].partition(taken[-1].observation.strip())
        if not found or calls[0].observation.strip() not in after:
            break
        observations[0] = after
        taken.append(calls.pop(0))
    return taken


def _observed(text: str, call: Call) -> Entry:
    """Return the observation of a call; `text` is the whole block."""
    marks = ["simulated"] if call.simulated else []
    if call.outcome is not Outcome.OK:
        marks.append(call.outcome.value)
    if call.cut:
        marks.append(f"{call.cut} characters cut")
    # The frame's tags are noise to a reader; what was cut or escaped differs and is shown as it is.
    inner = call.observation.strip()
    shown = inner if inner and inner in text else text
    return Entry(Kind.OBSERVATION, shown, ", ".join(marks))


def _unframed(kind: Kind, text: str) -> str:
    """Return the text without the space around it, and without the tags that only say what its kind
    is."""
    text = text.strip()
    if kind is Kind.THOUGHT:
        text = text.removeprefix("<think>").removesuffix("</think>").strip()
    if kind is Kind.SUMMARY:
        text = text.removesuffix("</summary>").strip()
    return text


def _argument(call: Call) -> str:
    values = list(call.arguments.values())
    if len(values) == 1 and isinstance(values[0], str):
        return values[0]
    return json.dumps(call.arguments, ensure_ascii=False)


def _before(text: str, written: str) -> str:
    """Return the text before the tag, fence or box that holds `written`; all of it if there is
    none.

    If the last tag before it closes (`</think>`), `written` follows that tag without a frame.
    """
    at = max(text.rfind(written), text.rfind(json.dumps(written, ensure_ascii=False)[1:-1]))
    if at < 0:
        return text
    marks = list(_MARK.finditer(text, 0, at))
    if not marks:
        return text[:at]
    return text[: marks[-1].end() if marks[-1].group().startswith("</") else marks[-1].start()]
