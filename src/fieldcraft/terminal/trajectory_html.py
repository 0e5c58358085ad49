"""Trajectory as the output of a notebook's cell."""

from __future__ import annotations

from fieldcraft.records.transcript import EntryKind, TranscriptEntry, build_transcript
from fieldcraft.terminal.html import escape_text, shorten_text
from fieldcraft.terminal.trajectory_text import describe_result
from fieldcraft.types import Trajectory

MAX_ENTRIES = 40  # of the transcript, the last ones
MAX_CHARACTERS = 1500  # of each entry
BORDERS = {
    EntryKind.PROMPT: "#888",
    EntryKind.THOUGHT: "#bbb",
    EntryKind.ACTION: "#0f8a9d",
    EntryKind.OBSERVATION: "#c9730b",
    EntryKind.SUMMARY: "#b0408f",
    EntryKind.ANSWER: "#2c8f57",
}


def render_trajectory(trajectory: Trajectory) -> str:
    """Return the question, the thoughts, calls, observations and the answer, and the verdict.
    Long texts are shortened."""
    entries = [e for e in build_transcript(trajectory) if e.kind is not EntryKind.PROMPT]
    left_out = len(entries) - MAX_ENTRIES
    parts = [_render_block("question", trajectory.task.question, "#888")]
    parts += [_render_block("", f"{left_out} earlier entries", "#888")] if left_out > 0 else []
    parts += [_render_entry(entry) for entry in entries[-MAX_ENTRIES:]]
    if trajectory.task.answers:
        parts.append(_render_block("gold", " | ".join(trajectory.task.answers), "#888"))
    result = escape_text("  ".join(describe_result(trajectory)))
    return f'<div style="max-width:60em">{"".join(parts)}<small>{result}</small></div>'


def _render_entry(entry: TranscriptEntry) -> str:
    return _render_block(f"{entry.kind.value} {entry.label}", entry.text, BORDERS[entry.kind])


def _render_block(label: str, text: str, border: str) -> str:
    text_html = escape_text(shorten_text(text, MAX_CHARACTERS))
    return (
        f'<div style="border-left:3px solid {border};padding-left:.6em;margin:.3em 0;'
        f'white-space:pre-wrap"><small>{escape_text(label.strip())}</small>\n{text_html}</div>'
    )
