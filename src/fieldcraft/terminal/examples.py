"""Examples of a run's questions and demonstrations, in the terminal and as a page."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.rule import Rule
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from fieldcraft.records.files import write_text
from fieldcraft.terminal.console import CleanConsole
from fieldcraft.terminal.trajectory_text import print_field, print_mask
from fieldcraft.types import Author, Task, Tokenizer, Trajectory

# This green is readable both behind black text and on white. Dim text is mixed with the first
# colour.
_THEME = TerminalTheme(
    background=(110, 110, 110),
    foreground=(0, 0, 0),
    normal=[  # black, red, green, yellow, blue, magenta, cyan, white
        *((0, 0, 0), (190, 0, 0), (0, 138, 0), (128, 96, 0)),
        *((0, 0, 190), (128, 0, 128), (0, 110, 120), (90, 90, 90)),
    ],
    bright=[
        *((90, 90, 90), (220, 60, 20), (80, 220, 80), (160, 120, 0)),
        *((40, 40, 220), (160, 0, 160), (0, 130, 140), (0, 0, 0)),
    ],
)
_MAX_TEST_CHARACTERS = 400  # characters of a test
_PAGE_COLUMNS = 110  # characters of a line of the page
_PAGE_TEMPLATE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>Examples of the data</title>
<meta name="viewport" content="width=device-width">
<style>{stylesheet} body {{margin: 1.5em; color: {foreground}; background: #fff;}}
pre {{font: 14px/1.4 ui-monospace, monospace; white-space: pre-wrap;}}</style></head>
<body><pre><code>{code}</code></pre></body></html>
"""


@dataclass(frozen=True, slots=True)
class QuestionExample:
    """A question. `prompt` is the text that the model reads, or None if an external program writes
    it. `grader` is the reward that grades it. `scores` holds the verdicts on a correct and on a
    wrong answer, rendered and parsed by the dialect, or None if they cannot be determined."""

    task: Task
    prompt: str | None
    grader: str
    scores: Mapping[str, bool | None]


@dataclass(frozen=True, slots=True)
class DemonstrationExample:
    """A demonstration of a stage: the trajectory, in which tokens of `trained_authors` contribute
    to the loss, or the reason to leave it out. `name` identifies the data source."""

    name: str
    trained_authors: frozenset[Author] = frozenset()
    trajectory: Trajectory | None = None
    rejection_reason: str = ""


@dataclass(frozen=True, slots=True)
class DataExamples:
    """Examples of a run's data. `tokenizer` encodes its prompts; None without prompts."""

    questions: list[QuestionExample]
    demonstrations: list[DemonstrationExample]
    tokenizer: Tokenizer | None


def print_examples(examples: DataExamples, console: Console) -> None:
    """Show each question with its prompt and the rewards of answers, and each demonstration token
    by token, with its trained tokens."""
    for number, question in enumerate(examples.questions, start=1):
        console.print(Rule(f"question {number} of {len(examples.questions)}", style="magenta"))
        _print_question(question, console)
    for demonstration in examples.demonstrations:
        console.print(Rule(demonstration.name, style="magenta"))
        _print_demonstration(demonstration, examples.tokenizer, console)


def write_examples(examples: DataExamples, path: Path) -> None:
    """Write the output of `print_examples` as a self-contained HTML page."""
    console = CleanConsole(
        record=True,
        file=io.StringIO(),
        width=_PAGE_COLUMNS,
        force_terminal=True,
        force_jupyter=False,  # a notebook would show the page, too
        color_system="truecolor",
    )
    print_examples(examples, console)
    write_text(path, [console.export_html(theme=_THEME, code_format=_PAGE_TEMPLATE)])


def _print_question(question: QuestionExample, console: Console) -> None:
    task = question.task
    print_field(console, "id", f"{task.id} ({task.meta.get('split', 'training')})")
    if question.prompt is None:
        print_field(console, "question", task.question)
    else:
        print_field(console, "prompt", question.prompt.replace("\n", "⏎\n").removesuffix("\n"))
    print_field(console, "gold", " | ".join(task.answers) or "none", "green")
    print_field(console, "graded by", question.grader)
    if tests := _describe_tests(task):
        print_field(console, "tests", tests)
    for answer, is_correct in question.scores.items():
        verdict = {True: "right", False: "wrong", None: "not graded here"}[is_correct]
        print_field(console, verdict, answer, "green" if is_correct else "red")


def _describe_tests(task: Task) -> str:
    """Return a sentence with the number of tests of a program and the parsed first test, "" if it
    has no tests."""
    tests: list[str | dict[str, str]]
    tests = task.meta.get("unit_tests") or task.meta.get("stdin_tests") or []
    if not tests:
        return ""
    first = tests[0]
    if isinstance(first, dict):
        first = f"reads {first['input']!r}, prints {first['output']!r}"
    excerpt = first[:_MAX_TEST_CHARACTERS].replace("\n", "⏎\n") + " ..." * (
        len(first) > _MAX_TEST_CHARACTERS
    )
    return f"{len(tests)}, of which the first is⏎\n{excerpt}"


def _print_demonstration(
    demonstration: DemonstrationExample, tokenizer: Tokenizer | None, console: Console
) -> None:
    if demonstration.trajectory is None:
        console.print(Text(f"left out: {demonstration.rejection_reason}", "red"))
        return
    assert tokenizer is not None, "demonstrations are written in a dialect"
    print_field(console, "id", demonstration.trajectory.task.id)
    print_mask(demonstration.trajectory, tokenizer, demonstration.trained_authors, console)
