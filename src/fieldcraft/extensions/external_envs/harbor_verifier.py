"""Tests of a task, which run in its terminal and leave a reward there."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from fieldcraft.environments.base import EnvironmentContractError
from fieldcraft.extensions.external_envs.harbor_tasks import HarborTask
from fieldcraft.extensions.sandbox.terminals.base import Terminal

_FILE_SECONDS = 60.0  # for copying the tests, and for reading the reward
_MAX_REWARD_CHARS = 10_000
_REWARD_KEY = "reward"
_PREPARE = (
    "rm -rf /tests /logs/verifier && mkdir -p /tests /logs/verifier /logs/agent"
    " && tar -xf - -C /tests && chmod +x /tests/test.sh"
)
# The first file that exists, after a line with its name
_READ_REWARD = """\
for file in reward.json reward.txt; do
    if [ -f "/logs/verifier/$file" ]; then
        echo "$file"
        exec head -c 10001 "/logs/verifier/$file"
    fi
done
exit 3"""


async def run_tests(terminal: Terminal, task: HarborTask) -> float:
    """Run the tests of a task, and return their reward.

    Raises EnvironmentContractError if they exceed their time, or leave no reward, and
    TerminalError.
    """
    archive = pack_folder(task.folder / "tests")
    prepared = await terminal.run(("sh", "-c", _PREPARE), _FILE_SECONDS, archive)
    if prepared.exit_code != 0:
        raise EnvironmentContractError(
            f"the tests of {task.folder} cannot be copied ({_get_last_line(prepared.output)})"
        )
    # Through a shell, which also runs a script without an interpreter line.
    command = ("sh", "-c", "exec /tests/test.sh")
    tested = await terminal.run(command, task.verifier_seconds, b"", task.verifier_variables)
    if tested.exit_code is None:
        raise EnvironmentContractError(
            f"the tests of {task.folder} did not finish within verifier.timeout_sec ="
            f" {task.verifier_seconds:g}"
        )
    found = await terminal.run(("sh", "-c", _READ_REWARD), _FILE_SECONDS)
    if found.exit_code != 0:
        raise EnvironmentContractError(
            f"the tests of {task.folder} wrote no /logs/verifier/reward.txt (status"
            f" {tested.exit_code}; {_get_last_line(tested.output)})"
        )
    file, _, content = found.output.partition("\n")
    try:
        return parse_reward(file, content)
    except ValueError as error:
        message = f"the tests of {task.folder} wrote a malformed {file}: {error}"
        raise EnvironmentContractError(message) from error


def parse_reward(file: str, content: str) -> float:
    """Return the reward in the content of reward.txt or reward.json. Raises ValueError."""
    content = content.removeprefix("\ufeff")  # of Windows editors
    if len(content) > _MAX_REWARD_CHARS:
        raise ValueError(f"it has more than {_MAX_REWARD_CHARS} characters")
    if not content.strip():
        raise ValueError("it is empty")
    if file == "reward.txt":
        try:
            return float(content)
        except ValueError:
            raise ValueError(f"{content.strip()[:80]!r} is no number") from None
    try:
        rewards: Any = json.loads(content)
    except (json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"it is not JSON ({error})") from error
    if not isinstance(rewards, dict) or not rewards:
        raise ValueError("it is no object of rewards by name")
    if _REWARD_KEY not in rewards and len(rewards) > 1:
        raise ValueError(f"none of its rewards {', '.join(rewards)} has the name '{_REWARD_KEY}'")
    reward = rewards[_REWARD_KEY] if _REWARD_KEY in rewards else next(iter(rewards.values()))
    if not isinstance(reward, int | float) or isinstance(reward, bool):
        raise ValueError(f"{str(reward)[:80]!r} is no number")
    return float(reward)


def pack_folder(folder: Path) -> bytes:
    """Return a tar archive of the contents of a folder."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(folder, arcname=".")
    return buffer.getvalue()


def _get_last_line(output: str) -> str:
    return output.strip().rpartition("\n")[2][:200] or "no output"
