"""Trajectories and loss masks in the terminal.

All text of models, tools and data sets is printed as `rich.text.Text`, never as markup, and without
control characters (`strip_control_characters`), so it can neither add colours, move the cursor nor
hide itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import groupby
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from fieldcraft.records.chains import concat_ids, split_chains
from fieldcraft.records.transcript import (
    EntryKind,
    TranscriptEntry,
    build_transcript,
    split_tags,
    strip_control_characters,
)
from fieldcraft.types import Author, Segment, Tokenizer, Trajectory

_ENTRY_STYLES = {
    EntryKind.PROMPT: "dim",
    EntryKind.THOUGHT: "",
    EntryKind.ACTION: "cyan",
    EntryKind.OBSERVATION: "yellow",
    EntryKind.SUMMARY: "bold magenta",
    EntryKind.ANSWER: "bold green",
}
# Neighbouring tokens alternate in style, so that their boundaries are visible.
_TRAINED_STYLES = ("black on green", "black on bright_green")
_UNTRAINED_STYLES = ("dim red", "dim bright_red")
_MAX_LISTED_GOLDS = 3
_MIN_TABLE_COLUMNS = 70  # in a narrower terminal a list has a block for each trajectory


def print_trajectory(trajectory: Trajectory, console: Console) -> None:
    """Show one trajectory: the question, then thoughts, calls, observations and the answer."""
    console.print(Rule(style="dim"))
    console.print(_render_field("question", trajectory.task.question, "bold"))
    for entry in build_transcript(trajectory):
        if entry.kind is EntryKind.PROMPT and entry.label:
            console.print(Rule(f"folded: {entry.label}", style="magenta"))
        elif entry.kind is not EntryKind.PROMPT:
            console.print(_render_entry(entry))
    if trajectory.task.answers:
        console.print(_render_field("gold", " | ".join(trajectory.task.answers), "green"))
    console.print(_render_verdict(trajectory))


def _render_entry(entry: TranscriptEntry) -> Padding:
    label = f"{entry.kind.value} {entry.label}".strip()
    return Padding(_render_field(label, entry.text, _ENTRY_STYLES[entry.kind]), (0, 0, 1, 0))


def print_field(console: Console, label: str, text: str, style: str = "") -> None:
    """Show a text next to its label, with tags dimmed."""
    console.print(_render_field(label, text, style))


def _render_field(label: str, text: str, style: str) -> Table:
    """Return a label column with wrapped text next to it."""
    body = Text()
    for piece, is_tag in split_tags(strip_control_characters(text)):
        body.append(piece, "dim" if is_tag else style)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=13)  # fits "action search"
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, "magenta"), body)
    return grid


def _render_verdict(trajectory: Trajectory) -> Text:
    return Text("  ".join(describe_result(trajectory)), _describe_verdict(trajectory)[1])


def describe_result(trajectory: Trajectory) -> list[str]:
    """Return the verdict, the calls, the status, the scores and the error of a trajectory."""
    mark, _ = _describe_verdict(trajectory)
    parts = [mark, f"calls {_format_calls(trajectory)}", trajectory.status.value]
    parts += [f"folds {len(trajectory.folds)}"] if trajectory.folds else []
    parts += ["tools unavailable"] if trajectory.tool_free else []
    parts += ["forced to answer"] if trajectory.forced else []
    graded = {name: value for name, value in trajectory.rewards.items() if value is not None}
    parts += [f"{name} {value:g}" for name, value in graded.items()]
    if trajectory.error:
        parts.append(strip_control_characters(trajectory.error))
    return parts


def _describe_verdict(trajectory: Trajectory) -> tuple[str, str]:
    """Return the verdict, and its colour."""
    if trajectory.is_correct is None:
        return "not graded", "dim"
    return ("right", "green") if trajectory.is_correct else ("wrong", "red")


def _format_calls(trajectory: Trajectory) -> str:
    optimum = trajectory.task.meta.get("calls_optimal")
    return str(trajectory.num_executed_calls) + ("" if optimum is None else f"/{optimum}")


def _shorten_golds(golds: Sequence[str]) -> str:
    """Return the first accepted answers and the number of the others: a city may have dozens of
    names."""
    listed = strip_control_characters(" | ".join(golds[:_MAX_LISTED_GOLDS]))
    hidden = len(golds) - _MAX_LISTED_GOLDS
    return f"{listed} | {hidden} more" if hidden > 0 else listed


def print_trajectory_list(numbered: Mapping[int, Trajectory], console: Console) -> None:
    """Print number, question, gold, answer, verdict, calls/optimum and status of every
    trajectory."""
    if not numbered:
        console.print("There is no such trajectory.")
    elif console.width < _MIN_TABLE_COLUMNS:
        for number, trajectory in numbered.items():
            console.print(_render_narrow(number, trajectory))
    else:
        console.print(_build_list_table(numbered))


def _build_list_table(numbered: Mapping[int, Trajectory]) -> Table:
    table = Table(header_style="bold")
    for header in ("#", "question", "gold", "answer", "em", "calls", "status"):
        is_text = header in ("question", "gold", "answer")
        table.add_column(header, no_wrap=not is_text, overflow="fold")
    for number, trajectory in numbered.items():
        mark, style = _describe_verdict(trajectory)
        table.add_row(
            str(number),
            Text(strip_control_characters(trajectory.task.question)),
            Text(_shorten_golds(trajectory.task.answers)),
            Text(strip_control_characters(trajectory.answer or "")),
            Text(mark, style),
            _format_calls(trajectory),
            trajectory.status.value,
        )
    return table


def _render_narrow(number: int, trajectory: Trajectory) -> Table:
    """Return one entry of a list in a narrow terminal: its number next to several lines."""
    mark, style = _describe_verdict(trajectory)
    figures = f"  calls {_format_calls(trajectory)}  {trajectory.status.value}"
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(str(number), "bold"), Text(mark, style) + Text(figures, ""))
    grid.add_row("", Text(strip_control_characters(trajectory.task.question)))
    grid.add_row("", Text(f"gold {_shorten_golds(trajectory.task.answers)}"))
    grid.add_row("", Text(f"answer {strip_control_characters(trajectory.answer or '')}"))
    return grid


def print_mask(
    trajectory: Trajectory, tokenizer: Tokenizer, trained: AbstractSet[Author], console: Console
) -> None:
    """Show every token. Tokens whose author is in `trained` carry loss: they are green and in
    brackets, all others are dim red. "|" separates tokens, "⏎" is a line feed. Each chain is a
    separate sample."""
    plain = console.options.ascii_only
    (opening, closing), feed = ("[[", "]]") if plain else "⟦⟧", "\\n" if plain else "⏎"

    def render_tokens(chain: Sequence[Segment]) -> Text:
        text = Text()
        for is_trained, segments in groupby(chain, lambda s: s.author in trained):
            styles = _TRAINED_STYLES if is_trained else _UNTRAINED_STYLES
            text.append(opening if is_trained else "", "bold green")
            for position, token in enumerate(concat_ids(segments)):
                token_text = strip_control_characters(tokenizer.decode([token])).replace(
                    "\n", f"{feed}\n"
                )
                text.append("|" if position else "", "dim").append(token_text, styles[position % 2])
            text.append(closing if is_trained else "", "bold green")
        return text

    trained_count = sum(len(s.ids) for s in trajectory.segments if s.author in trained)
    names = ", ".join(sorted(trained)) or "none"
    parts = split_chains(trajectory)
    for number, chain in enumerate(parts, start=1):
        if number > 1:
            console.print(Rule(f"folded: chain {number} of {len(parts)}", style="magenta"))
        console.print(render_tokens(chain))
    console.print(Text(f"{opening}...{closing} trained, | between tokens, {feed} line feed", "dim"))
    console.print(
        Text(f"{trained_count} of {len(trajectory.ids)} tokens are trained ({names})", "bold")
    )


def print_collection(summary: Mapping[str, Any], console: Console) -> None:
    """Print the result of a teacher's collection: accepted answers, and reasons for rejection."""
    table = Table.grid(padding=(0, 2))
    parts = {
        "demonstrations": summary["demonstrations"],
        "pairs": summary["pairs"],
        "questions without a pair": summary["without_pair"],
        f"{summary['attempts']} attempts": summary["outcomes"],
        "left by the filter": summary.get("filters", {}),
        "used": summary["usage"],
        **{
            f"used by the team member {name}": usage
            for name, usage in summary.get("seats", {}).items()
        },
    }
    for name, counts in parts.items():
        known = {label_text: count for label_text, count in counts.items() if count is not None}
        for row, (label_text, count) in enumerate(known.items()):
            label = "" if row else name
            number = f"{count:,.2f}" if isinstance(count, float) else f"{count:,}"
            table.add_row(Text(label, "bold"), Text(number, justify="right"), Text(label_text))
    console.print(table)
