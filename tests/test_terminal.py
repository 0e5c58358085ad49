import ast
import io
import itertools
import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fieldcraft.evaluation.tables import build_results_table
from fieldcraft.records.events import (
    EvaluationCompleted,
    LogMessage,
    PhaseEnded,
    PhaseStarted,
    TrajectoryCompleted,
    track_phase,
)
from fieldcraft.terminal.console import CleanConsole, drop_invalid_sizes, print_line
from fieldcraft.terminal.progress import PhaseProgress, TerminalReporter
from fieldcraft.terminal.trajectory_text import print_mask, print_trajectory, print_trajectory_list
from fieldcraft.types import Author, CallOutcome, CallRecord, Segment, Status, Task, Trajectory
from report_parts import folded
from syntax_trees import tree_of

HOSTILE = "[bold]Bar[/bold]\x1b[2J\x1b[31m\x07!"


def trajectory():
    return Trajectory(
        Task("q", "Where is [red]Kelm\x1b[1m?", ("Bar",), {"calls_optimal": 1}),
        segments=[
            Segment(Author.PROMPT, [1, 2], "You are a system prompt."),
            Segment(Author.POLICY, [3, 4], "<think>Look [i]up</think><search>Kelm</search>"),
            Segment(Author.TOOL, [5], f"<result>{HOSTILE}</result>"),
            Segment(Author.POLICY, [6, 7, 8], "<answer>[b]Bar</answer>"),
        ],
        calls=[
            CallRecord("search", {"query": "Kelm"}, HOSTILE, CallOutcome.OK, 0.0),
            CallRecord("search", {"query": "more"}, "budget", CallOutcome.REFUSED, 0.0),
        ],
        status=Status.ANSWERED,
        answer="[b]Bar",
        rewards={"em": 0.0, "judge": None},
    )


class Screen(io.StringIO):
    def isatty(self):
        return True


def console(*, terminal=False, width=100):
    file, colours = (Screen(), "standard") if terminal else (io.StringIO(), None)
    return CleanConsole(file=file, width=width, force_terminal=terminal, color_system=colours)


def test_a_trajectory_is_shown_in_order_without_its_prompt():
    out = console()
    print_trajectory(trajectory(), out)
    text = out.file.getvalue()
    parts = ["Where is [red]Kelm?", "Look [i]up", "Kelm", "[bold]Bar[/bold]!", "[b]Bar", "wrong"]
    rest = text
    for part in parts:
        assert part in rest
        rest = rest[rest.index(part) + len(part) :]
    assert "system prompt" not in text
    assert "calls 1/1  answered  em 0" in text
    assert "judge" not in text  # not gradable


def test_untrusted_text_brings_no_escape_of_its_own():
    out = console(terminal=True)
    print_trajectory(trajectory(), out)
    print_trajectory_list({0: trajectory()}, out)
    text = out.file.getvalue()
    assert "\x1b[2J" not in text
    assert "\x07" not in text
    assert "[bold]Bar[/bold]!" in text  # markup is plain text
    assert "\x1b[33m[bold]Bar" in text  # in the colour of an observation


SUMMARY = {"em": 0.5, "em_ci95": [0.25, 0.75], "calls_mean": 1.5, "known": None}
EVIL = f"a[/b]{HOSTILE}"


def test_no_name_brings_an_escape_of_its_own(capsys):
    """Names of rewards, splits, stages and tools appear in tables, lines, bars and sentences."""
    out = console(terminal=True)
    graded = trajectory()
    graded.rewards[EVIL] = 0.25
    graded.task.meta["split"] = EVIL
    print_trajectory(graded, out)
    summary = {**SUMMARY, "calls_optimal_mean": None}
    out.print(build_results_table({EVIL: summary}, {EVIL: 1.0}))
    reporter = TerminalReporter(out)
    for event in (
        PhaseStarted(EVIL, 2, "questions"),
        EvaluationCompleted(EVIL, summary),
        LogMessage(EVIL),
    ):
        reporter(event)
    reporter(PhaseEnded(EVIL))
    output = out.file.getvalue()
    print_line(EVIL, file=out.file)
    for text in (output, out.file.getvalue()[len(output) :]):
        assert not re.search(r"\x1b\[2J|\x07", text)
        assert "[/b][bold]Bar[/bold]!" in text
    assert output.count("[/b][bold]Bar[/bold]!") >= 4


PACKAGE = Path(__file__).parents[1] / "src/fieldcraft"


def test_all_that_is_shown_goes_one_way():
    """Text printed elsewhere would not be cleaned."""
    folders = ("cli", "terminal", "tools", "runs", "evals", "branching", "serving", "view")
    files = [file for folder in folders for file in (PACKAGE / folder).rglob("*.py")]
    found = {
        file.name
        for file in files
        if not file.name.endswith("_worker.py")  # their output is read by a program
        for node in ast.walk(tree_of(file))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("print", "Console")
    }
    assert found == {"console.py"}


GOES_ON = """
import sys
from rich.table import Table
from fieldcraft.terminal.console import CleanConsole, print_line
sys.stdin.read()  # until the reader has gone
if sys.argv[2] == "say":
    print_line("a" * 10**6)
else:
    CleanConsole().print("word " * 20_000, highlight=False)
print_line("more")
CleanConsole().print("more")
open(sys.argv[1], "w").close()
"""


@pytest.mark.parametrize("first", ["say", "print"])
def test_what_is_under_way_goes_on_when_nobody_reads_any_more(first, tmp_path):
    command = [sys.executable, "-c", GOES_ON, str(tmp_path / "written"), first]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    with subprocess.Popen(command, **pipes) as process:
        process.stdout.close()
        process.stdin.close()
        assert process.stderr.read() == b""
    assert process.returncode == 0
    assert (tmp_path / "written").exists()


@pytest.mark.parametrize(
    "size", ["0", "-1", "1", "19", "eighty", "", "1e9", "9" * 30, "²", "10001"]
)
def test_an_impossible_size_is_forgotten(size, monkeypatch):
    for name in ("COLUMNS", "LINES", "TERMINAL_WIDTH"):
        monkeypatch.setenv(name, size)
    drop_invalid_sizes()
    assert not {"COLUMNS", "LINES", "TERMINAL_WIDTH"} & os.environ.keys()
    monkeypatch.setenv("COLUMNS", "132")
    drop_invalid_sizes()
    assert os.environ["COLUMNS"] == "132"


def test_the_list_has_one_line_for_each_trajectory():
    ungraded = trajectory()
    ungraded.rewards["em"] = None
    ungraded.answer = None
    ungraded.status = Status.TRUNCATED
    out = console()
    print_trajectory_list({4: trajectory(), 17: ungraded}, out)
    rows = [[cell.strip() for cell in line.split("│")[1:-1]] for line in _lines(out) if "│" in line]
    assert rows == [
        ["4", "Where is [red]Kelm?", "Bar", "[b]Bar", "wrong", "1/1", "answered"],
        ["17", "Where is [red]Kelm?", "Bar", "", "not graded", "1/1", "truncated"],
    ]


def test_the_list_shortens_long_lists_of_accepted_answers():
    city = trajectory()
    city.task = Task("a", "Which city?", ("Abidjan", "Abijan", "Abiyan", "ABJ", "Abidzhan"))
    out = console()
    print_trajectory_list({0: city}, out)
    assert "Abidjan | Abijan | Abiyan | 2 more" in " ".join(out.file.getvalue().split())
    assert "ABJ" not in out.file.getvalue()


class Words:
    eos_token_id = 0

    def decode(self, ids):
        (token,) = ids
        return "[x]\n" if token == 5 else f"w{token}"


def test_the_mask_shows_every_token_once_with_its_boundaries():
    out = console()
    print_mask(trajectory(), Words(), {Author.POLICY}, out)
    assert out.file.getvalue() == (
        "w1|w2⟦w3|w4⟧[x]⏎\n⟦w6|w7|w8⟧\n"
        "⟦...⟧ trained, | between tokens, ⏎ line feed\n"
        "5 of 8 tokens are trained (policy)\n"
    )


def test_a_fold_is_a_line_between_two_chains():
    out = console()
    print_trajectory(folded("q", correct=True), out)
    labels = [line.split()[0] for line in _lines(out) if line.strip() and "─" not in line]
    assert labels == [
        "question",
        "thought",
        "action",
        "observation",
        "summary",
        "answer",
        "gold",
        "right",
    ]
    fold = out.file.getvalue().index("folded: chain 2 of 2")
    assert out.file.getvalue().index("summary") < fold < out.file.getvalue().index("answer")
    assert "folds 1" in out.file.getvalue()


def test_the_mask_of_each_chain_stands_alone():
    out = console()
    print_mask(folded("q", correct=True), Words(), {Author.POLICY}, out)
    first, fold, second, *_ = _lines(out)
    assert (first, second) == ("w1⟦w2|w3⟧w4|w6⟦w7|w7⟧", "w8⟦[x]⏎")
    assert "folded: chain 2 of 2" in fold


def test_the_mask_in_plain_ascii():
    file = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    print_mask(trajectory(), Words(), {Author.TOOL}, CleanConsole(file=file, width=100))
    file.seek(0)
    assert file.read() == (
        "w1|w2|w3|w4[[[x]\\n\n]]w6|w7|w8\n"
        "[[...]] trained, | between tokens, \\n line feed\n"
        "1 of 8 tokens are trained (tool)\n"
    )


def test_the_mask_is_told_without_colours(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    out = CleanConsole(file=io.StringIO(), width=100, force_terminal=True)
    print_mask(trajectory(), Words(), {Author.POLICY}, out)
    assert "⟦" in out.file.getvalue()
    assert not re.search(r"\x1b\[[\d;]*[34]\d", out.file.getvalue())  # bold and dim are not colours


def test_the_mask_colours_trained_tokens_green_and_the_others_red():
    out = console(terminal=True)
    print_mask(trajectory(), Words(), {Author.TOOL}, out)
    text = out.file.getvalue()
    assert "\x1b[30;42m[x]" in text
    assert "\x1b[2;31mw3" in text
    assert "\x1b[2;91mw4" in text


FIGURES = {"calls_mean": 1.5, "tokens_per_second": 3900.4, "loss": 0.1}


def test_without_a_terminal_progress_is_a_line_every_tenth_and_the_last():
    out = console()
    progress = PhaseProgress("rl1", 25, out)
    progress.start()
    for step in range(1, 26):
        progress.update(step, {"em": step / 25} | FIGURES)
    lines = _lines(out)
    assert [line.split()[1] for line in lines] == [
        f"{step}/25" for step in (3, 5, 8, 10, 13, 15, 18, 20, 23, 25)
    ]
    assert lines[-1].startswith("rl1  25/25  EM 1.000  calls 1.50  loss 0.1000  tok/s 3,900  0 s")
    assert "\x1b" not in out.file.getvalue()


def test_a_stage_shorter_than_ten_steps_prints_each_step_once():
    out = console()
    progress = PhaseProgress("[red]", 2, out)
    progress.start()
    progress.update(1)
    progress.update(2, {"loss": 0.5, "em": None, "new": 1.0})
    first, second = _lines(out)
    assert first == "[red]  1/2"
    assert second.startswith("[red]  2/2  loss 0.5000  0 s left")


def test_in_a_terminal_progress_is_live_and_ends_clean_after_an_error():
    out = console(terminal=True)
    reporter = TerminalReporter(out)
    with pytest.raises(RuntimeError), track_phase(reporter, "[red]", 4, "questions"):
        _fail_after_two_steps(reporter)
    text = out.file.getvalue()
    assert "[red]" in text
    assert "2/4" in text
    assert "EM 0.500" in text
    assert text.rstrip().endswith("\x1b[?25h")  # the cursor is visible again


@pytest.mark.parametrize(
    ("width", "figures"),
    [(40, "EM 0.500"), (80, "EM 0.500  calls 1.50  loss -0.1234  tok/s 13,900")],
)
def test_a_bar_shows_the_figures_that_there_is_room_for(width, figures):
    out = console(terminal=True, width=width)
    progress = PhaseProgress("rl1", 250, out)
    progress.start()
    row = {"em": 0.5, "calls_mean": 1.5, "tokens_per_second": 13900.2, "loss": -0.1234}
    progress.update(120, row)
    progress.stop()
    lines = [line for line in plain(out).split("\n") if "120/250" in line]
    assert lines
    for line in lines:
        assert f" 120/250 {figures} " in line
        assert len(line) <= width


def test_a_file_gets_no_bar_though_colours_are_forced(monkeypatch):
    monkeypatch.setenv("FORCE_COLOR", "1")
    out = CleanConsole(file=io.StringIO(), width=80)
    assert out.is_terminal
    progress = PhaseProgress("rl1", 2, out)
    progress.start()
    progress.update(2)
    assert "\x1b[2K" not in out.file.getvalue()
    assert _lines(out)[0].startswith("rl1  2/2")


@pytest.mark.parametrize(("steps", "begin"), [(3, 0), (10, 0), (95, 0), (1000, 0), (1000, 437)])
def test_a_log_gets_at_most_one_line_for_each_tenth(monkeypatch, steps, begin):
    """The limit does not depend on the duration of a step or the start of a resumed stage."""
    hours = itertools.count(step=3600)
    monkeypatch.setattr(time, "monotonic", lambda: next(hours))
    out = console()
    progress = PhaseProgress("rl1", steps, out)
    progress.start()
    for step in range(begin + 1, steps + 1):
        progress.update(step)
    logged_steps = [int(line.split()[1].partition("/")[0]) for line in _lines(out)]
    tenths = [10 * step // steps for step in logged_steps]
    assert tenths == sorted(set(tenths))
    assert logged_steps[-1] == steps
    assert set(tenths) == {10 * step // steps for step in range(begin + 1, steps + 1)} - {0}


@pytest.mark.parametrize("width", [40, 80, 120])
def test_an_evaluation_fits_into_a_terminal(width):
    known = {"em": 1.0, "no_call_rate": 0.25}
    summary = {"em": 0.5, "em_ci95": [0.25, 0.75], "calls_mean": 1.5, "known": known}
    out = console(terminal=True, width=width)
    TerminalReporter(out)(EvaluationCompleted("sft2", {**summary, "calls_optimal_mean": 1.25}))
    lines = plain(out).splitlines()
    assert max(map(len, lines)) <= width
    assert len(lines) == {40: 3, 80: 2, 120: 1}[width]
    assert "  ".join(line.strip() for line in lines) == (
        "sft2  EM 0.500 [0.250, 0.750]  calls 1.50 (optimum 1.25)  known: EM 1.00, no call 0.25"
    )


def plain(out):
    """Return the text on a screen, without colours and cursor movements."""
    return re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", out.file.getvalue()).replace("\r", "\n")


def _fail_after_two_steps(reporter):
    """Fail after two steps. One of four answers is correct: the progress shows a half after two, a
    quarter after four."""
    for em in (1.0, 0.0):
        reporter(TrajectoryCompleted("[red]", Trajectory(Task("", "", ()), rewards={"em": em})))
    raise RuntimeError


def _lines(out):
    return out.file.getvalue().splitlines()
