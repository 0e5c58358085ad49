"""Branching from the page: it runs `fieldcraft branch` to sample, and shows the results.

The page loads no model. It starts the command in a separate process, one at a time, and reads the
folder that the command writes.
"""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from fieldcraft.extensions.studio.branching.sample_store import SETTINGS_FILE
from fieldcraft.extensions.studio.branching.steps import find_turns
from fieldcraft.extensions.studio.run_view import BRANCHES_FOLDER, RunView, TrajectoryFile
from fieldcraft.records.reading import advise_renaming, read_json
from fieldcraft.records.training_rollouts import ROLLOUTS_FOLDER
from fieldcraft.records.transcript import shorten_line, strip_control_characters
from fieldcraft.types import Trajectory, UserError

MAX_LABEL_CHARS = 80  # characters of a turn next to the number of its step
MAX_TEXT_BYTES = 100_000  # bytes of an edit; the system allows 131,072 for an argument
INTERRUPT_TIMEOUT_SECONDS = 10.0  # for the exit of an interrupted command


class BranchRequest(BaseModel):
    """Branches requested by a user. Without `at` they start from every step."""

    model_config = ConfigDict(extra="forbid")

    at: Annotated[int, Field(ge=0)] | None = None
    edit: Literal["", "observation", "thought"] = ""
    text: Annotated[str, Field(pattern=r"^[^\x00]*$")] = ""  # an argument
    samples: Annotated[int, Field(ge=1, le=4096)] = 32
    model: str = ""  # another stage of the run

    def make_options(self, run: RunView) -> Iterator[str]:
        """Yield the options of the command. Raises UserError for an edit without a step or a text,
        for a text that is too long, and for a model that is not a finished stage of the run."""
        finished = [] if run.folder is None else run.folder.finished_stages()
        if self.model and self.model not in finished:
            stages = ", ".join(finished) or "none"
            raise UserError(f"the run has no such model: choose one of its stages ({stages}).")
        if self.at is not None:
            yield from ("--step", str(self.at))
        if self.edit and (self.at is None or not self.text.strip()):
            raise UserError(f"an edited {self.edit} needs a step and a text: give both.")
        if self.edit and (size := len(self.text.encode())) > MAX_TEXT_BYTES:
            raise UserError(
                f"the text has {size:,} bytes, and an edit may have {MAX_TEXT_BYTES:,}: shorten it."
            )
        if self.edit:
            yield from (f"--{self.edit}={self.text}",)
        if self.model:
            yield from ("--model", str(run.path / self.model))
        yield from ("--samples", str(self.samples))


def parse_branch_request(body: bytes) -> BranchRequest:
    """Parse a request. Raises UserError if it is invalid."""
    try:
        return BranchRequest.model_validate_json(body)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the request"
        raise UserError(f"{place} is wrong ({first['msg']}): correct it.") from error


class BranchCommand:
    """Currently running command, if any. Thread-safe."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = Lock()
        self._folder = tempfile.TemporaryDirectory(prefix="fieldcraft-")
        self._output_file = Path(self._folder.name, "said.txt")
        self._command_line = ""

    def start(self, arguments: Sequence[str]) -> None:
        """Start a command. Raises UserError while another command runs."""
        with self._lock:
            if self._process is not None and self._process.poll() is None:
                raise UserError("the page is already sampling: wait for it, or stop it.")
            self._command_line = shlex.join(["fieldcraft", *arguments])
            with self._output_file.open("wb") as output:
                self._process = subprocess.Popen(
                    [sys.executable, "-m", "fieldcraft", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )

    def stop(self) -> None:
        """Interrupt the command as Ctrl-C does: its samples so far are kept."""
        with self._lock:
            process = self._process
            if process is None or process.poll() is not None:
                return
            process.send_signal(signal.SIGINT)
            try:
                process.wait(INTERRUPT_TIMEOUT_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def close(self) -> None:
        """Stop the command permanently."""
        self.stop()
        self._folder.cleanup()

    @property
    def state(self) -> dict[str, Any]:
        """State of the command: `status` is the exit status, None while it runs; `said` is its last
        output line."""
        process = self._process
        if process is None:
            return {"command": "", "status": 0, "said": ""}
        return {
            "command": self._command_line,
            "status": process.poll(),
            "said": self._read_last_line(),
        }

    def _read_last_line(self) -> str:
        text = self._output_file.read_bytes()[-2000:].decode(errors="replace")
        lines = [
            strip_control_characters(line).strip() for line in text.replace("\r", "\n").split("\n")
        ]
        return next((line for line in reversed(lines) if line), "")


def make_branch_options(run: RunView, file: TrajectoryFile, number: int) -> list[str] | None:
    """Return the options of `fieldcraft branch` that name a trajectory, or None if it cannot be
    continued. Rollouts of training are numbered over all recorded steps."""
    if run.recipe is None or file.kind not in ("evaluation", "training"):
        return None
    flags = []
    if file.kind == "training":
        flags = ["--from-training"]
        for path in sorted((run.path / file.part / ROLLOUTS_FOLDER).glob("*.jsonl")):
            if path == file.path:
                break
            number += path.read_bytes().count(b"\n")
    return [str(run.path), "--index", str(number), "--stage", file.part, *flags]


def label_turns(trajectory: Trajectory) -> list[str]:
    """Return the text that the policy wrote at each step, shortened."""
    turns = [trajectory.segments[index].text for index in find_turns(trajectory)]
    return [shorten_line(strip_control_characters(text), MAX_LABEL_CHARS) for text in turns]


def read_results(run: RunView, options: Sequence[str]) -> list[dict[str, Any]]:
    """Return the results of the branches of a trajectory, folder by folder: first of its own model,
    then of other models. Damaged files are skipped: the command reports what is wrong with them."""
    _, _, number, _, stage, *training = options
    name = f"{stage}{'-training' if training else ''}-{number}"
    # The name of a folder is ambiguous: a model or a stage may end with a number, too.
    start = {"stage": stage, "training": bool(training), "trajectory": int(number)}
    records = []
    for folder in sorted(run.path.glob(f"{BRANCHES_FOLDER}/{name}*")):
        if not start.items() <= _read_record(folder / SETTINGS_FILE).items():
            continue
        for path in sorted(folder.glob("*.json")):
            if path.name != SETTINGS_FILE and (record := _read_record(path)):
                records.append({"folder": folder.name, "name": path.stem, **record})
    return records


def _read_record(path: Path) -> dict[str, Any]:
    """Return the content of a file of branches; empty if it is damaged."""
    try:
        record: dict[str, Any] = read_json(path, dict[str, Any], advise_renaming(path))
    except UserError:
        return {}
    return record
