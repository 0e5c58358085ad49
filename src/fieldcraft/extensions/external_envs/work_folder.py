"""Working folder of a program during one rollout."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import stat
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from fieldcraft.environments.base import EnvironmentContractError
from fieldcraft.extensions.external_envs.agent_runner import AgentResult
from fieldcraft.extensions.external_envs.programs import MAX_OUTPUT_BYTES
from fieldcraft.types import Task

TASK_VARIABLE = "FIELDCRAFT_TASK"
ANSWER_FILE, REWARD_FILE = "answer.txt", "reward.txt"


@dataclass(frozen=True)
class WorkFolder:
    """Folder of a rollout, with the task's file and three empty folders."""

    root: Path

    @property
    def work(self) -> Path:
        """Working folder of the program, in which it leaves its results."""
        return self.root / "work"

    @property
    def variables(self) -> dict[str, str]:
        """Environment variables that keep a program within the folder."""
        home, temporary = self.root / "home", self.root / "tmp"
        task = {TASK_VARIABLE: str(self.root / "task.json")}
        return task | {"HOME": str(home), "TMPDIR": str(temporary), "PWD": str(self.work)}

    def create(self, task: Task, share_answers: bool) -> None:
        for name in ("work", "home", "tmp"):
            (self.root / name).mkdir()
        record = asdict(task)
        if not share_answers:
            del record["answers"]
        (self.root / "task.json").write_text(json.dumps(record), "utf-8")

    def read_result(self, output: str) -> AgentResult:
        """Read the answer and the reward of a program that printed `output`. Raises
        EnvironmentContractError for files that are no results."""
        answer, reward = self._read(ANSWER_FILE), self._read(REWARD_FILE)
        if answer is None:
            answer = output or None
        if reward is None:
            return AgentResult(answer)
        try:
            return AgentResult(answer, float(reward))
        except ValueError:
            message = f"{REWARD_FILE} is not a number: {reward[:80]!r}"
            raise EnvironmentContractError(message) from None

    def _read(self, name: str) -> str | None:
        """Return the content of a file, None if it does not exist. A link or a pipe is not opened:
        it may lead out of the folder, or never end."""
        try:
            descriptor = os.open(self.work / name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise EnvironmentContractError(f"{name} cannot be read ({error.strerror})") from error
        try:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise EnvironmentContractError(f"{name} is not a file")
            with open(descriptor, "rb", closefd=False) as file:
                content = file.read(MAX_OUTPUT_BYTES + 1)
        finally:
            os.close(descriptor)
        if len(content) > MAX_OUTPUT_BYTES:
            raise EnvironmentContractError(f"{name} has more than {MAX_OUTPUT_BYTES} bytes")
        return content.decode(errors="replace").strip()


@asynccontextmanager
async def open_work_folder(task: Task, share_answers: bool) -> AsyncIterator[WorkFolder]:
    """Yield the folder of a rollout, and remove it with everything in it at the end."""
    folder = WorkFolder(Path(tempfile.mkdtemp(prefix="fieldcraft-")))
    try:
        folder.create(task, share_answers)
        yield folder
    finally:
        await asyncio.to_thread(_remove, folder.root)  # in a thread: it may have many files


def _remove(root: Path) -> None:
    """Remove a folder, with folders in it that the program made read-only."""
    root.chmod(stat.S_IRWXU)
    for parent, folders, _ in os.walk(root):
        for name in folders:
            if not (folder := Path(parent, name)).is_symlink():
                folder.chmod(stat.S_IRWXU)
    shutil.rmtree(root, ignore_errors=True)
