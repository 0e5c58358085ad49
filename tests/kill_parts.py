"""Runs that kill themselves with SIGKILL at a given moment.

A run changes its folder with a few system calls: it renames a complete draft, appends to a journal,
copies a file or deletes a folder. Python reports each as an audit event before it happens, so a run
can be killed between any two of them, without a clock. Completed rollouts are moments, too.
"""

import json
import multiprocessing
import os
import re
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any, NamedTuple

from fieldcraft.config.plan import Step, StepKind
from fieldcraft.engine.threads import ThreadCounts
from fieldcraft.extensions.worlds.atlas.world import AtlasWorld
from fieldcraft.types import Task

START, REPORT = "start", "report"  # parts of a run before its first step and after its last one
PARTS: Sequence[str] = (START, *StepKind, REPORT)
CHANGES = {"os.rename": 1, "shutil.copyfile": 1, "shutil.rmtree": 0}  # event -> argument: the path
TEMPORARY_REGEX = re.compile(r"(?<=\.)[a-z0-9_]{8}(?=/|$)")  # random names of temporary folders
SECONDS = 300  # after which a run that hangs fails


class ProbedAtlas(AtlasWorld):
    """Atlas with questions about what the first model knows, which a run asks first."""

    def probes(self) -> list[Task]:
        return [Task(str(n), f"{n} + 1 =", (str(n + 1),), {"kind": "sum"}) for n in range(4)]


class Moment(NamedTuple):
    """Moment in a part of a run: an event and its path, or its phase, with the number of equal ones
    in the process so far."""

    part: str
    event: str
    path: str
    number: int


class _Watcher:
    """Audit hook and event handler that records the moments of a run, and kills the process at
    one."""

    def __init__(self, out: Path, end: Moment | None, record: Path) -> None:
        self.out, self.end, self.record = str(out), end, record
        self.part = START
        self.counts: Counter[tuple[str, str, str]] = Counter()

    def __call__(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Note an audit event if it changes a file of the run."""
        appends = event == "open" and bool(arguments[2] & os.O_APPEND)
        if not appends and event not in CHANGES:
            return
        path = os.path.abspath(os.fsdecode(arguments[CHANGES.get(event, 0)]))
        if path.startswith(f"{self.out}{os.sep}"):
            name = TEMPORARY_REGEX.sub("*", os.path.relpath(path, self.out))
            self.note(event.replace("open", "append"), name)

    def note(self, event: str, path: str) -> None:
        key = (self.part, event, path)
        self.counts[key] += 1
        moment = Moment(*key, self.counts[key])
        if moment == self.end:
            os.kill(os.getpid(), signal.SIGKILL)
        with open(self.record, "a", encoding="utf-8") as file:  # outside of the run folder
            file.write(f"{json.dumps(moment)}\n")


def _run(arguments: Sequence[str], out: str, end: Moment | None, record: str) -> None:
    """Run `fieldcraft run ARGUMENTS --out OUT` in a separate process."""
    from fieldcraft.cli.main import main
    from fieldcraft.records.events import EventBus, JobsCompleted, TrajectoryCompleted
    from fieldcraft.runs import context, run

    watcher = _Watcher(Path(out), end, Path(record))
    execute, send = run.run_step, EventBus.__call__

    async def run_step(run_context: context.RunContext, step: Step) -> None:
        watcher.part = step.kind.value
        await execute(run_context, step)
        watcher.part = REPORT  # until the next step starts

    def send_noted(bus: EventBus, event: Any) -> None:
        send(bus, event)
        if isinstance(event, JobsCompleted | TrajectoryCompleted):
            watcher.note(type(event).__name__, event.phase)

    vars(run)["run_step"] = run_step
    EventBus.__call__ = send_noted
    # chosen by a clock, so different in each run
    vars(context)["find_fastest_threads"] = lambda _: ThreadCounts(1, 1)
    os.environ["XDG_CACHE_HOME"] = f"{record}.cache"  # of measurements, which another run may reuse
    with (
        open(f"{record}.output", "a", encoding="utf-8") as output,
        redirect_stdout(output),
        redirect_stderr(output),
    ):
        sys.addaudithook(watcher)
        main(["run", *arguments, "--out", out])


class KilledRun:
    """Run in a folder, by processes that are killed. `arguments` are a recipe and overrides."""

    def __init__(self, arguments: Sequence[str], out: Path) -> None:
        self.arguments, self.out = arguments, out
        self.record = out.with_name(f"{out.name}-moments")
        # A server that has imported everything forks each process, so that a start is fast.
        self.processes = multiprocessing.get_context("forkserver")
        self.processes.set_forkserver_preload(["fieldcraft.cli.main", "fieldcraft.runs.run"])

    def go_on(self, end: Moment | None = None) -> int | None:
        """Start or resume the run, until a moment or to its end. Returns the exit code of the
        process."""
        arguments = (self.arguments, str(self.out), end, str(self.record))
        process = self.processes.Process(target=_run, args=arguments)
        process.start()
        process.join(SECONDS)
        process.kill()  # one that hangs
        process.join()
        return process.exitcode

    @property
    def output(self) -> str:
        return Path(f"{self.record}.output").read_text()

    def read_moments(self) -> list[Moment]:
        """Return the moments of all processes so far, in order."""
        return [Moment(*json.loads(line)) for line in self.record.read_text().splitlines()]


def choose_kills(moments: Sequence[Moment]) -> list[Moment]:
    """Return the moments at which a run is killed, in order. Of equal changes of a file it is the
    first: a later one may be the clean-up of complete work, which a resumed run does not repeat. Of
    entries of a journal it is the second, so that the resumed run adds others. Of files with
    numbers in their names it is the one in the middle."""
    files: dict[tuple[str, str, str], dict[str, list[Moment]]] = {}
    for moment in moments:
        key = (moment.part, moment.event, re.sub(r"\d+", "#", moment.path))
        files.setdefault(key, {}).setdefault(moment.path, []).append(moment)
    middles = (list(alike.values())[len(alike) // 2] for alike in files.values())
    chosen = {
        equal[0] if equal[0].event in CHANGES else equal[min(1, len(equal) - 1)]
        for equal in middles
    }
    return [moment for moment in moments if moment in chosen]
