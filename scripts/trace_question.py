"""Count the functions that a question passes through, from the start of a run to its report.

    python scripts/trace_question.py         # print a table of counts
    python scripts/trace_question.py --list  # and the functions in order; `*` marks the main path

A tiny run is executed twice in a temporary folder. The first time, another process writes the
corpus, the index, the first model and a supervised stage, which learns to search. The second time,
this process traces what remains: one step of reinforcement learning with one question and two
rollouts (the smallest group), an evaluation with one question, and the report. There is one thread,
and seeds are fixed, so two traces of the same code are equal.

- The path begins with the first function of `runs/run.py` and ends when report.json and report.html
  exist.
- A call, or hop, is the first entry into a function of the package on the path. Nested functions,
  lambdas and comprehensions are not counted, but what they call is. Neither counted nor followed
  are properties, decorated validators, imports, special methods except `__call__`, and the folders
  `cli` and `terminal`, which display the progress. A function that such code enters is counted when
  other code enters it.
- A call is on the main path if its caller is in another file and it leads to another call. Helpers
  of a file and functions at the end of a chain are left out, as a reader leaves them out.
- A return is a call into a file that differs from the file of the previous call and was visited
  before.
- The first token is the first call of a function `generate` in `engine/`. The depth is the number
  of functions on the call stack there. The stack of an asyncio task continues where it was created.

A count by hand follows the data of the question alone and skips what prepares it. A trace cannot
repeat it, because a profiler does not know which values belong to the question. A count by hand for
an earlier version found 171 calls (38 before the first token), 68 files, 14 folders and 54 returns.
The main path has about as many calls and returns; all calls are four times as many. Both enter more
files. So compare traces with traces only.
"""

from __future__ import annotations

import argparse
import asyncio
import inspect
import json
import linecache
import os
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Literal

RECIPE = """
name: question
device: cpu
dialect: autocoa
instruction: ""
world: {name: atlas, people: 60, taught: 0.2, heldout: 0.5, variants: 4}
tiny_model: {layers: 2, width: 32, heads: 2}
search: {top_k: 1}
budget: {max_calls: 2, max_turn_tokens: 80, max_context_tokens: 600}
stages:
  sft: {type: sft, dataset: demonstrations, train_on: [policy], max_examples: 12, steps: 120,
    batch_size: 8, optim: {lr: 5.0e-3}, evaluate: false}
  # with entropy, the step trains even if both rollouts have the same reward
  rl: {type: rl, observations: real, entropy_coef: 0.001, steps: 1, questions_per_step: 1,
    group_size: 2, optim: {lr: 2.0e-5}}
evaluation: {splits: {heldout: 1}, workflows: []}
"""
TRACED_FOLDERS = ("rl", "evaluations")  # of the run
REPORTS = ("report.json", "report.html")
START, ENGINE, DISPLAY = "runs/run.py", "engine/", ("cli", "terminal")
UNCOUNTED_DECORATOR = re.compile(r"\s*@.*(property|\.setter|_validator)\b")
Kind = Literal["counted", "transparent", "excluded"]


@dataclass(frozen=True)
class Call:
    """First entry into a function."""

    index: int
    file: str  # relative to the package
    function: str  # qualified name
    line: int
    caller: int | None  # index of the call from which this one was entered


def classify(code: CodeType, package: Path) -> Kind:
    """Return whether a function is counted; if not, whether functions that it calls are."""
    path = Path(code.co_filename)
    if path.suffix != ".py" or not path.is_relative_to(package):
        return "transparent"
    is_body = not code.co_flags & inspect.CO_OPTIMIZED  # of a module or a class
    is_special = code.co_name.startswith("__") and code.co_name != "__call__"
    if is_body or is_special or path.relative_to(package).parts[0] in DISPLAY:
        return "excluded"
    if "<" in code.co_qualname:
        return "transparent"
    line = linecache.getline(code.co_filename, code.co_firstlineno)  # the first decorator
    return "excluded" if UNCOUNTED_DECORATOR.match(line) else "counted"


class Tracer:
    """Profile function that records the calls of a run in the folder `out`."""

    def __init__(self, package: Path, out: Path) -> None:
        self.calls: list[Call] = []
        self.token = 0  # index of the call that samples the first token
        self.depth = 0
        self._package = package
        self._reports = [out / name for name in REPORTS]
        self._start: FrameType | None = None
        # Codes of two files may be equal, so `id` identifies them, as long as they are stored.
        self._kinds: dict[int, tuple[Kind, CodeType]] = {}
        self._indices: dict[int, int] = {}  # of counted functions in `calls`
        self._task_stacks: dict[FrameType, list[CodeType]] = {}

    def __call__(self, frame: FrameType, event: str, arg: Any) -> None:
        code = frame.f_code
        if event != "call" or id(code) in self._indices:
            return
        if code.co_name == "create_task" and code.co_filename == asyncio.base_events.__file__:
            self._task_stacks[frame.f_locals["coro"].cr_frame] = self._find_stack(frame)
        elif self._find_kind(code) == "counted":
            self._add(frame)

    def _add(self, frame: FrameType) -> None:
        code = frame.f_code
        file = Path(code.co_filename).relative_to(self._package).as_posix()
        if self._start is None and file == START:
            self._start = frame
        stack = self._find_stack(frame)
        is_followed = self._find_kind(stack[-1]) == "counted"
        if self._start is None or not is_followed or all(path.exists() for path in self._reports):
            return
        caller = self._indices.get(id(stack[1])) if len(stack) > 1 else None
        index = self._indices[id(code)] = len(self.calls)
        self.calls.append(Call(index, file, code.co_qualname, code.co_firstlineno, caller))
        if not self.token and file.startswith(ENGINE) and code.co_name == "generate":
            self.token, self.depth = index, len(stack)

    def _find_stack(self, frame: FrameType | None) -> list[CodeType]:
        """Return the counted functions on the stack of a frame, innermost first, to the start of
        the path or to an excluded function, which is then the last one."""
        stack = []
        while frame is not None:
            kind = self._find_kind(frame.f_code)
            if kind != "transparent":
                stack.append(frame.f_code)
            if kind == "excluded" or frame is self._start:
                break
            if frame in self._task_stacks:
                return stack + self._task_stacks[frame]
            frame = frame.f_back
        return stack

    def _find_kind(self, code: CodeType) -> Kind:
        if id(code) not in self._kinds:
            self._kinds[id(code)] = classify(code, self._package), code
        return self._kinds[id(code)][0]


def trace(out: Path) -> Tracer:
    """Trace a run in the folder `out`. Exits if the run fails or its model does not search."""
    recipe = out.with_suffix(".yaml")
    recipe.write_text(RECIPE, "utf-8")
    arguments = ["run", str(recipe), "--out", str(out)]
    os.environ["OMP_NUM_THREADS"] = "1"  # also for this process, which has not loaded torch yet
    command = [sys.executable, "-m", "fieldcraft", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"the first run failed:\n{done.stderr[-3000:]}")
    for name in TRACED_FOLDERS:
        shutil.rmtree(out / name)
    for name in REPORTS:
        (out / name).unlink()
    spec = find_spec("fieldcraft")
    assert spec is not None
    assert spec.origin is not None
    tracer = Tracer(Path(spec.origin).parent, out)
    execute(arguments, tracer)
    rollouts = (out / "evaluations" / "rl.jsonl").read_text("utf-8").splitlines()
    if not any(json.loads(rollout)["calls"] for rollout in rollouts):
        sys.exit("the model did not search: raise the steps of the stage 'sft' in this script")
    return tracer


def execute(arguments: Sequence[str], tracer: Tracer) -> None:
    """Run the command line of the package in this process with a profile function."""
    import_module("fieldcraft.runs.run")  # imports take much longer while they are traced
    sys.argv = ["fieldcraft", *arguments]
    threading.setprofile(tracer)
    sys.setprofile(tracer)
    try:
        with redirect_stdout(StringIO()):
            runpy.run_module("fieldcraft", run_name="__main__", alter_sys=True)
    except SystemExit as stopped:
        if stopped.code:
            raise
    finally:
        sys.setprofile(None)


def select_main_path(calls: Sequence[Call]) -> list[Call]:
    """Return the calls whose caller is in another file and that lead to another call."""
    callers = {call.caller for call in calls}
    return [
        call
        for call in calls
        if call.index in callers and (call.caller is None or calls[call.caller].file != call.file)
    ]


def count(path: Sequence[Call], token: int) -> dict[str, int]:
    """Return the counts of a path, by name; `token` is the index of the first token's call."""
    files = [call.file for call in path]
    return {
        "calls": len(path),
        "calls before the first token": sum(call.index < token for call in path),
        "files": len({*files}),
        "top-level folders": len({file.partition("/")[0] for file in files if "/" in file}),
        "returns": sum(
            file != files[index - 1] and file in files[:index] for index, file in enumerate(files)
        ),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--list", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        tracer = trace(Path(folder, "question"))
    main_path = select_main_path(tracer.calls)
    counts, main_counts = (count(path, tracer.token) for path in (tracer.calls, main_path))
    print("| measure | all calls | main path |\n|---|---|---|")
    for name, number in counts.items():
        print(f"| {name} | {number} | {main_counts[name]} |")
    print(f"| depth at the first token | {tracer.depth} | |")
    if given.list:
        print()
        for call in tracer.calls:
            mark = "*" if call in main_path else " "
            print(f"{mark} {call.file}:{call.line} {call.function}")


if __name__ == "__main__":
    main()
