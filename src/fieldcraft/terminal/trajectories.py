"""Trajectories and loss masks in the terminal.

Everything a model, a tool or a data set wrote reaches the screen as `rich.text.Text`, never as
markup, and through `clean`, so it can neither colour, move the cursor nor hide itself.
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

from fieldcraft.records.chains import chains, ids_of
from fieldcraft.records.transcript import Entry, Kind, clean, split_tags, transcript
from fieldcraft.types import Author, Segment, Tokenizer, Trajectory

_COLOURS = {
    Kind.PROMPT: "dim",
    Kind.THOUGHT: "",
    Kind.ACTION: "cyan",
    Kind.OBSERVATION: "yellow",
    Kind.SUMMARY: "bold magenta",
    Kind.ANSWER: "bold green",
}
# Neighbouring tokens take turns, so that their boundaries are seen.
_TRAINED = ("black on green", "black on bright_green")
_NOT_TRAINED = ("dim red", "dim bright_red")
_TABLE_WIDTH = 70  # of a terminal; in a narrower one a list has a block for each trajectory


def print_trajectory(trajectory: Trajectory, console: Console) -> None:
    """Show one trajectory: the question, then what was thought, done, seen and answered."""
    console.print(Rule(style="dim"))
    console.print(_field("question", trajectory.task.question, "bold"))
    for entry in transcript(trajectory):
        if entry.kind is Kind.PROMPT and entry.label:
            console.print(Rule(f"folded: {entry.label}", style="magenta"))
        elif entry.kind is not Kind.PROMPT:
            console.print(_block(entry))
    if trajectory.task.answers:
        console.print(_field("gold", " | ".join(trajectory.task.answers), "green"))
    console.print(_verdict(trajectory))


def _block(entry: Entry) -> Padding:
    label = f"{entry.kind.value} {entry.label}".strip()
    return Padding(_field(label, entry.text, _COLOURS[entry.kind]), (0, 0, 1, 0))


def print_field(console: Console, label: str, text: str, style: str = "") -> None:
    """Show a text beside its label, with tags dimmed."""
    console.print(_field(label, text, style))


def _field(label: str, text: str, style: str) -> Table:
    """Return a label column and wrapped text beside it."""
    body = Text()
    for piece, is_tag in split_tags(clean(text)):
        body.append(piece, "dim" if is_tag else style)
    grid = Table.grid(padding=(0, 2))
    grid.add_column(width=13)  # of "action search"
    grid.add_column(overflow="fold")
    grid.add_row(Text(label, "magenta"), body)
    return grid


def _verdict(trajectory: Trajectory) -> Text:
    mark, style = _grade(trajectory)
    parts = [mark, f"calls {_calls(trajectory)}", trajectory.status.value]
    parts += [f"folds {len(trajectory.folds)}"] if trajectory.folds else []
    parts += ["tools unavailable"] if trajectory.tool_free else []
    parts += ["made to answer"] if trajectory.forced else []
    graded = {name: value for name, value in trajectory.rewards.items() if value is not None}
    parts += [f"{name} {value:g}" for name, value in graded.items()]
    if trajectory.error:
        parts.append(clean(trajectory.error))
    return Text("  ".join(parts), style)


def _grade(trajectory: Trajectory) -> tuple[str, str]:
    """Return the verdict, and its colour."""
    if trajectory.right is None:
        return "not graded", "dim"
    return ("right", "green") if trajectory.right else ("wrong", "red")


def _calls(trajectory: Trajectory) -> str:
    optimum = trajectory.task.meta.get("calls_optimal")
    return str(trajectory.executed_calls) + ("" if optimum is None else f"/{optimum}")


def print_trajectory_list(numbered: Mapping[int, Trajectory], console: Console) -> None:
    """Print number, question, gold, answer, verdict, calls/optimum and status of every
    trajectory."""
    if not numbered:
        console.print("There is no such trajectory.")
    elif console.width < _TABLE_WIDTH:
        for number, trajectory in numbered.items():
            console.print(_listed(number, trajectory))
    else:
        console.print(_list_table(numbered))


def _list_table(numbered: Mapping[int, Trajectory]) -> Table:
    table = Table(header_style="bold")
    for head in ("#", "question", "gold", "answer", "em", "calls", "status"):
        is_text = head in ("question", "gold", "answer")
        table.add_column(head, no_wrap=not is_text, overflow="fold")
    for number, trajectory in numbered.items():
        mark, style = _grade(trajectory)
        table.add_row(
            str(number),
            Text(clean(trajectory.task.question)),
            Text(clean(" | ".join(trajectory.task.answers))),
            Text(clean(trajectory.answer or "")),
            Text(mark, style),
            _calls(trajectory),
            trajectory.status.value,
        )
    return table


def _listed(number: int, trajectory: Trajectory) -> Table:
    """Return one entry of a list in a narrow terminal: its number beside lines of its own."""
    mark, style = _grade(trajectory)
    figures = f"  calls {_calls(trajectory)}  {trajectory.status.value}"
    golds = " | ".join(trajectory.task.answers)
    grid = Table.grid(padding=(0, 1))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text(str(number), "bold"), Text(mark, style) + Text(figures, ""))
    grid.add_row("", Text(clean(trajectory.task.question)))
    grid.add_row("", Text(f"gold {clean(golds)}"))
    grid.add_row("", Text(f"answer {clean(trajectory.answer or '')}"))
    return grid


def print_mask(
    trajectory: Trajectory, tokenizer: Tokenizer, trained: AbstractSet[Author], console: Console
) -> None:
    """Show every token. Those whose author is in `trained` carry loss: they are in brackets and
    green, all others dim red. "|" stands between tokens, "⏎" for a line feed. Each chain is a
    sample of its own."""
    plain = console.options.ascii_only
    (opening, closing), feed = ("[[", "]]") if plain else "⟦⟧", "\\n" if plain else "⏎"

    def tokens_of(chain: Sequence[Segment]) -> Text:
        text = Text()
        for is_trained, segments in groupby(chain, lambda s: s.author in trained):
            styles = _TRAINED if is_trained else _NOT_TRAINED
            text.append(opening if is_trained else "", "bold green")
            for position, token in enumerate(ids_of(segments)):
                shown = clean(tokenizer.decode([token])).replace("\n", f"{feed}\n")
                text.append("|" if position else "", "dim").append(shown, styles[position % 2])
            text.append(closing if is_trained else "", "bold green")
        return text

    carrying = sum(len(s.ids) for s in trajectory.segments if s.author in trained)
    names = ", ".join(sorted(trained)) or "nobody"
    parts = chains(trajectory)
    for number, chain in enumerate(parts, start=1):
        if number > 1:
            console.print(Rule(f"folded: chain {number} of {len(parts)}", style="magenta"))
        console.print(tokens_of(chain))
    console.print(Text(f"{opening}...{closing} trained, | between tokens, {feed} line feed", "dim"))
    console.print(Text(f"{carrying} of {len(trajectory.ids)} tokens are trained ({names})", "bold"))


def print_collection(summary: Mapping[str, Any], console: Console) -> None:
    """Print the result of a teacher's answers: what was kept, and the reasons for what was not."""
    table = Table.grid(padding=(0, 2))
    parts = {
        "demonstrations": summary["demonstrations"],
        "pairs": summary["pairs"],
        "questions without a pair": summary["without_pair"],
        f"{summary['attempts']} attempts": summary["outcomes"],
        "left by the filter": summary.get("filters", {}),
        "used": summary["usage"],
        **{f"used by the seat {name}": use for name, use in summary.get("seats", {}).items()},
    }
    for name, counts in parts.items():
        known = {what: count for what, count in counts.items() if count is not None}
        for row, (what, count) in enumerate(known.items()):
            label = "" if row else name
            number = f"{count:,.2f}" if isinstance(count, float) else f"{count:,}"
            table.add_row(Text(label, "bold"), Text(number, justify="right"), Text(what))
    console.print(table)
