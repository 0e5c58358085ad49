"""Folders of tasks in the format of Harbor, complete and not."""

import contextlib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checkpoints import write_tiny_checkpoint
from cli_parts import sentence, status
from fieldcraft.extensions.external_envs.harbor_tasks import read_task, read_tasks
from fieldcraft.extensions.external_envs.harbor_verifier import parse_reward
from fieldcraft.types import UserError
from harbor_folders import CONFIG, write_task


def test_a_folder_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARBOR_LEVEL", "high")
    config = """\
[agent]
timeout_sec = 5
[verifier]
timeout_sec = 7.5
env = { LEVEL = "${HARBOR_LEVEL}", OTHER = "${HARBOR_NONE:-low}" }
[environment]
build_timeout_sec = 9
cpus = 2
memory = "4G"
storage_mb = 300
allow_internet = false
env = { PLAIN = "$5" }
[some_future_section]
key = 1
"""
    task = read_task(write_task(tmp_path / "a", task=config))
    assert (task.folder, task.instruction) == (tmp_path / "a", "Write bird into word.txt.")
    assert (task.agent_seconds, task.verifier_seconds) == (5, 7.5)
    assert task.verifier_variables == {"LEVEL": "high", "OTHER": "low"}
    image = task.image
    assert image.folder == tmp_path / "a" / "environment"
    assert (image.memory_mb, image.disk_mb, image.cpus) == (4096, 300, 2)
    assert (image.internet, image.build_seconds) == (False, 9)
    assert image.variables == {"PLAIN": "$5"}


def test_tasks_are_the_folders_with_files_of_a_task(tmp_path: Path) -> None:
    for name in "ba":
        write_task(tmp_path / name)
    (tmp_path / "notes").mkdir()
    (tmp_path / "README.md").write_text("Tasks.")
    assert list(read_tasks(tmp_path)) == ["a", "b"]
    assert list(read_tasks(tmp_path / "b")) == ["b"]


@pytest.mark.parametrize(
    ("removed", "sentence"),
    [
        ("tests/test.sh", "has no verifier: write tests/test.sh"),
        ("instruction.md", "instruction.md does not exist; write there what the agent should do."),
        ("task.toml", "task.toml does not exist; correct the file."),
        ("environment/Dockerfile", "has no environment: add environment/Dockerfile"),
    ],
)
def test_a_missing_file(tmp_path: Path, removed: str, sentence: str) -> None:
    write_task(tmp_path / "good")
    (write_task(tmp_path / "task") / removed).unlink()
    with pytest.raises(UserError) as refused:
        read_tasks(tmp_path)
    assert sentence in str(refused.value)
    assert str(tmp_path / "task") in str(refused.value)


def test_a_check_says_once_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Both its questions and its environment are made of the folder."""
    (write_task(tmp_path / "task") / "tests/test.sh").unlink()
    write_tiny_checkpoint(tmp_path / "model", "qwen3")
    recipe = tmp_path / "mine.yaml"
    recipe.write_text(
        f"name: mine\nmodel: {tmp_path / 'model'}\ndialect: hermes\n"
        f"environment: {{name: harbor, tasks: {tmp_path / 'task'}}}\n"
        "stages: {rl: {type: rl, steps: 1, optim: {lr: 1.0e-5}}}\n"
    )
    for command in (["check"], ["run", "--out", tmp_path / "run"]):
        assert status(command[0], recipe, *command[1:]) == 2
        assert "has no verifier: write tests/test.sh" in sentence(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("files", "sentence"),
    [
        ({"task": "[agent\n"}, "task.toml is not TOML (Expected ']'"),
        ({"task": "[agent]\ntimeout_sec = 0\n"}, "unexpected contents (agent.timeout_sec: "),
        ({"task": "[agent]\ntimeout_sec = 'long'\n"}, "unexpected contents (agent.timeout_sec: "),
        ({"task": "agent = 5\n"}, "task.toml has unexpected contents (agent: "),
        ({"task": "[environment]\nmemory = 'much'\n"}, "'much' is no size such as 512M or 4G"),
        ({"task": "[[steps]]\nname = 'x'\n"}, "sets steps, which is not supported"),
        ({"task": "[environment]\ngpus = 1\n"}, "sets environment.gpus, which is not supported"),
        ({"task": "[verifier]\nuser = 'judge'\n"}, "sets verifier.user, which is not supported"),
        (
            {"task": '[verifier]\nenv = { A = "${HARBOR_NONE}" }\n'},
            "needs the environment variable HARBOR_NONE: set it.",
        ),
        ({"instruction": " \n"}, "instruction.md is empty"),
    ],
)
def test_a_malformed_file(tmp_path: Path, files: dict[str, str], sentence: str) -> None:
    write_task(tmp_path / "task", **files)
    with pytest.raises(UserError) as refused:
        read_tasks(tmp_path)
    assert sentence in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    for name in ("task.toml", "instruction.md"):
        before = (task / name).read_bytes()
        (task / name).write_bytes(b"\xff\xfe")
        with pytest.raises(UserError, match=rf"{name} is not text in UTF-8"):
            read_task(task)
        (task / name).write_bytes(before)


def test_files_of_windows_editors(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    for name in ("task.toml", "instruction.md"):
        text = (task / name).read_text().replace("\n", "\r\n")
        (task / name).write_text(f"\ufeff{text}", newline="")
    assert read_task(task).instruction == "Write bird into word.txt."
    assert parse_reward("reward.txt", "\ufeff1\r\n") == 1
    assert parse_reward("reward.json", '\ufeff{"reward": 1}\r\n') == 1


def test_several_containers(tmp_path: Path) -> None:
    task = write_task(tmp_path / "task")
    (task / "environment" / "docker-compose.yaml").write_text("services: {}\n")
    with pytest.raises(UserError, match="several containers are not supported"):
        read_task(task)


def test_folders_without_tasks(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no folder of tasks"):
        read_tasks(tmp_path / "missing")
    with pytest.raises(UserError, match=r"no folder in .* is a task with task\.toml"):
        read_tasks(tmp_path)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_rewards_that_are_numbers(reward: float) -> None:
    assert parse_reward("reward.txt", f" {reward}\n") == reward
    assert parse_reward("reward.json", f'{{"reward": {reward}, "style": 1}}') == reward
    assert parse_reward("reward.json", f'{{"accuracy": {reward}}}') == reward


@given(st.text(), st.sampled_from(["reward.txt", "reward.json"]))
def test_any_text_is_a_number_or_an_error(content: str, file: str) -> None:
    with contextlib.suppress(ValueError):
        assert isinstance(parse_reward(file, content), float)


@pytest.mark.parametrize(
    ("content", "cause"),
    [
        ("[1]", "it is no object of rewards by name"),
        ("{}", "it is no object of rewards by name"),
        ('{"a": 1, "b": 0}', "none of its rewards a, b has the name 'reward'"),
        ('{"reward": true}', "'True' is no number"),
        ('{"reward": "1"}', "'1' is no number"),
        ("[" * 9000, "it is not JSON"),
    ],
)
def test_json_that_is_no_reward(content: str, cause: str) -> None:
    with pytest.raises(ValueError, match=cause):
        parse_reward("reward.json", content)


def test_defaults_of_a_short_file(tmp_path: Path) -> None:
    task = read_task(write_task(tmp_path / "a", task=CONFIG[:0]))
    assert (task.agent_seconds, task.verifier_seconds) == (600, 600)
    assert (task.image.memory_mb, task.image.disk_mb, task.image.cpus) == (2048, 1024, None)
