"""Folders of tasks in the format of Harbor (https://www.harborframework.com/docs/tasks).

task.toml                  time limits and resources
instruction.md             what the agent reads
environment/Dockerfile     the machine in which it works
tests/test.sh              writes a reward into the folder /logs/verifier
solution/solve.sh          optional, and never shown to the agent
"""

from __future__ import annotations

import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt

from fieldcraft.extensions.sandbox.terminals.base import TerminalImage, require_one_source
from fieldcraft.records.reading import raise_read_errors
from fieldcraft.types import UserError

CONFIG_FILE, INSTRUCTION_FILE = "task.toml", "instruction.md"
TEST_SCRIPT, ENVIRONMENT_FOLDER = "tests/test.sh", "environment"
_COMPOSE_FILE = "docker-compose.yaml"
_CORRECT_ADVICE = "correct the file"
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_MIB_OF_UNIT = {"K": 2**-10, "": 2**-20, "M": 1, "G": 2**10, "T": 2**20}
_HOST_VARIABLE = re.compile(r"\$\{(\w+)(?::-([^}]*))?\}")


def _parse_size(text: str) -> str:
    if not _SIZE.fullmatch(text):
        raise ValueError(f"'{text}' is no size such as 512M or 4G")
    return text


_Size = Annotated[str, AfterValidator(_parse_size)]


class _Section(BaseModel):
    """Section of task.toml. Keys without a meaning here are ignored."""

    model_config = ConfigDict(extra="ignore")


class _AgentSection(_Section):
    timeout_sec: PositiveFloat = 600.0
    user: str | int | None = None


class _VerifierSection(_Section):
    timeout_sec: PositiveFloat = 600.0
    env: dict[str, str] = Field(default={})
    user: str | int | None = None
    environment_mode: str = "shared"
    environment: Any = None


class _EnvironmentSection(_Section):
    build_timeout_sec: PositiveFloat = 600.0
    docker_image: str | None = None
    cpus: PositiveFloat | None = None
    memory_mb: PositiveInt | None = None
    memory: _Size | None = None
    storage_mb: PositiveInt | None = None
    storage: _Size | None = None
    allow_internet: bool = True
    env: dict[str, str] = Field(default={})
    os: str = "linux"
    gpus: int = 0
    mcp_servers: list[Any] = Field(default=[])
    healthcheck: Any = None


class _TaskConfig(_Section):
    agent: _AgentSection = _AgentSection()
    verifier: _VerifierSection = _VerifierSection()
    environment: _EnvironmentSection = _EnvironmentSection()
    steps: Any = None

    def list_unsupported_keys(self) -> Iterator[str]:
        """Yield the keys that would change the meaning of a task, and have no effect here."""
        environment, verifier = self.environment, self.verifier
        found = {
            "steps": self.steps,
            "agent.user": self.agent.user not in (None, "root", 0),
            "verifier.user": verifier.user not in (None, "root", 0),
            "verifier.environment_mode": verifier.environment_mode != "shared",
            "verifier.environment": verifier.environment,
            "environment.os": environment.os != "linux",
            "environment.gpus": environment.gpus,
            "environment.mcp_servers": environment.mcp_servers,
            "environment.healthcheck": environment.healthcheck,
        }
        yield from (key for key, value in found.items() if value)


@dataclass(frozen=True, kw_only=True)
class HarborTask:
    """Task in a folder.

    Attributes:
        folder: folder of the task.
        instruction: text for the agent.
        image: machine in which the agent works and the tests run.
        agent_seconds: time limit of the agent.
        verifier_seconds: time limit of the tests.
        verifier_variables: environment variables of the tests.
    """

    folder: Path
    instruction: str
    image: TerminalImage
    agent_seconds: float
    verifier_seconds: float
    verifier_variables: Mapping[str, str]


def read_tasks(folder: Path) -> dict[str, HarborTask]:
    """Return the tasks of a folder by name, in the order of their names. The folder contains their
    folders, or is itself one.

    Raises UserError if there are none, and for a folder that is no complete task.
    """
    if not folder.is_dir():
        raise UserError(f"there is no folder of tasks '{folder}': correct environment.tasks.")
    with raise_read_errors(folder, "make the folder readable"):
        candidates = [folder] if _is_task(folder) else sorted(filter(_is_task, folder.iterdir()))
    if not candidates:
        raise UserError(
            f"no folder in '{folder}' is a task with {CONFIG_FILE}, {INSTRUCTION_FILE} and"
            f" {TEST_SCRIPT}: correct environment.tasks."
        )
    return {path.resolve().name: read_task(path) for path in candidates}


def _is_task(folder: Path) -> bool:
    """Return whether a folder has some file of a task."""
    names = (CONFIG_FILE, INSTRUCTION_FILE, TEST_SCRIPT)
    return folder.is_dir() and any((folder / name).exists() for name in names)


def read_task(folder: Path) -> HarborTask:
    """Return the task of a folder. Raises UserError if a file is missing or malformed, and for
    settings that are not supported."""
    config = _read_config(folder / CONFIG_FILE)
    for key in config.list_unsupported_keys():
        raise UserError(
            f"{folder / CONFIG_FILE} sets {key}, which is not supported: remove it, or leave out"
            " the task."
        )
    if (folder / ENVIRONMENT_FOLDER / _COMPOSE_FILE).exists():
        raise UserError(
            f"{folder} has a {_COMPOSE_FILE}, and several containers are not supported: leave out"
            " the task."
        )
    if not (folder / TEST_SCRIPT).is_file():
        raise UserError(
            f"the task {folder} has no verifier: write {TEST_SCRIPT}, which writes a number into"
            " /logs/verifier/reward.txt."
        )
    with raise_read_errors(folder / INSTRUCTION_FILE, "write there what the agent should do"):
        instruction = (folder / INSTRUCTION_FILE).read_text("utf-8-sig").strip()
    if not instruction:
        raise UserError(
            f"{folder / INSTRUCTION_FILE} is empty; write there what the agent should do."
        )
    return HarborTask(
        folder=folder,
        instruction=instruction,
        image=_make_image(folder, config.environment),
        agent_seconds=config.agent.timeout_sec,
        verifier_seconds=config.verifier.timeout_sec,
        verifier_variables=_resolve_variables(folder, config.verifier.env),
    )


def _read_config(path: Path) -> _TaskConfig:
    with raise_read_errors(path, _CORRECT_ADVICE):
        text = path.read_text("utf-8-sig")
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UserError(f"{path} is not TOML ({error}); {_CORRECT_ADVICE}.") from error
    with raise_read_errors(path, _CORRECT_ADVICE):
        return _TaskConfig.model_validate(values)


def _make_image(folder: Path, section: _EnvironmentSection) -> TerminalImage:
    own = folder / ENVIRONMENT_FOLDER
    sizes = {
        "memory_mb": section.memory_mb or _to_mib(section.memory),
        "disk_mb": section.storage_mb or _to_mib(section.storage),
    }
    image = TerminalImage(
        name=str(folder),
        folder=own if (own / "Dockerfile").is_file() else None,
        docker_image=section.docker_image,
        variables=_resolve_variables(folder, section.env),
        cpus=section.cpus,
        internet=section.allow_internet,
        build_seconds=section.build_timeout_sec,
        **{name: size for name, size in sizes.items() if size is not None},
    )
    require_one_source(image)
    return image


def _to_mib(size: str | None) -> int | None:
    """Return a size such as 4G in MiB, at least 1."""
    if size is None or (match := _SIZE.fullmatch(size)) is None:
        return None
    number, unit = match.groups()
    return max(int(float(number) * _MIB_OF_UNIT[unit.upper()]), 1)


def _resolve_variables(folder: Path, variables: Mapping[str, str]) -> dict[str, str]:
    """Return variables with ${NAME} and ${NAME:-default} replaced by variables of this process.
    Raises UserError for a missing one without a default."""

    def get(match: re.Match[str]) -> str:
        name, default = match.groups()
        value = os.environ.get(name, default)
        if value is None:
            raise UserError(
                f"{folder / CONFIG_FILE} needs the environment variable {name}: set it."
            )
        return value

    return {name: _HOST_VARIABLE.sub(get, value) for name, value in variables.items()}
