"""Rollouts in the terminals of tasks, in our own sandbox."""

import os
from pathlib import Path

import pytest
from harbor_parts import call, run_rollouts, skip_without_terminals

from fieldcraft.extensions.external_envs.harbor import HarborEnvironment
from fieldcraft.types import Author, CallOutcome, Status, UserError
from harbor_folders import CONFIG, write_task

SOLVE = (call("echo bird > word.txt"), "Done.")
NOTHING = ("Done.",)


@pytest.fixture(autouse=True)
def terminals(tmp_path_factory: pytest.TempPathFactory) -> None:
    skip_without_terminals(tmp_path_factory.mktemp("first"))


def count_children() -> int:
    """Return the number of processes that this one has started and that still run."""
    return len(Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split())


def test_the_tests_of_a_task_give_the_reward(tmp_path: Path) -> None:
    write_task(tmp_path / "a")
    before = count_children()
    solved, unsolved = run_rollouts(
        HarborEnvironment(str(tmp_path)), [("a", SOLVE), ("a", NOTHING)]
    )
    assert (solved.status, solved.rewards) == (Status.ANSWERED, {"environment": 1.0})
    assert (unsolved.status, unsolved.rewards) == (Status.ANSWERED, {"environment": 0.0})
    assert [s.author for s in solved.segments] == [
        *(Author.PROMPT, Author.POLICY, Author.TOOL, Author.POLICY)
    ]
    assert solved.segments[0].text.count("Write bird into word.txt.") == 1
    assert "Complete the task below in a terminal" in solved.segments[0].text
    assert count_children() == before


def test_what_the_policy_finds(tmp_path: Path) -> None:
    """The files and variables of its Dockerfile, and neither the tests nor the solution."""
    task = write_task(tmp_path / "a")
    (task / "solution").mkdir()
    (task / "solution" / "solve.sh").write_text("echo bird > /app/word.txt")
    look = "pwd; echo $GREETING; cat words.txt; ls -d /tests /solution /logs; false"
    [done] = run_rollouts(HarborEnvironment(str(task)), [("a", (call(look), "Done."))])
    [found] = done.calls
    assert found.outcome is CallOutcome.FAILED
    lines = found.observation.splitlines()
    assert lines[:4] == ["/app", "hello", "bird", "stone"]
    assert lines[-1] == "The command ended with status 1."
    assert sum("No such file" in line for line in lines) == 3


def test_an_environment_says_what_isolates_its_terminals(tmp_path: Path) -> None:
    write_task(tmp_path / "a")
    isolation = HarborEnvironment(str(tmp_path)).describe_isolation()
    assert {"mount", "network", "seccomp"} <= {*isolation.layers}


def test_rollouts_do_not_see_each_other(tmp_path: Path) -> None:
    write_task(tmp_path / "a")
    writes = (call("echo stone > /app/word.txt; ls /app"), call("cat /app/word.txt"), "Done.")
    first, second = run_rollouts(HarborEnvironment(str(tmp_path)), [("a", writes), ("a", SOLVE)])
    assert [done.observation for done in first.calls] == ["word.txt\nwords.txt", "stone"]
    assert (first.rewards, second.rewards) == ({"environment": 0.0}, {"environment": 1.0})
    again, _ = run_rollouts(
        HarborEnvironment(str(tmp_path)), [("a", (call("ls"), "Done.")), ("a", NOTHING)]
    )
    assert again.calls[0].observation == "words.txt"


@pytest.mark.parametrize(
    ("script", "cause"),
    [
        ("true", "wrote no /logs/verifier/reward.txt (status 0; no output)"),
        ("echo no python >&2; exit 4", "wrote no /logs/verifier/reward.txt (status 4; no python)"),
        ("echo much > /logs/verifier/reward.txt", "malformed reward.txt: 'much' is no number"),
        (": > /logs/verifier/reward.txt", "wrote a malformed reward.txt: it is empty"),
        ("echo nan > /logs/verifier/reward.txt", "its reward is nan"),
        ("echo '{' > /logs/verifier/reward.json", "malformed reward.json: it is not JSON"),
        ("mkdir /logs/verifier/reward.txt", "wrote no /logs/verifier/reward.txt"),
        ("mkfifo /logs/verifier/reward.txt", "wrote no /logs/verifier/reward.txt"),
        (
            "head -c 20000 /dev/zero > /logs/verifier/reward.txt",
            "it has more than 10000 characters",
        ),
        ("kill -9 $$", "wrote no /logs/verifier/reward.txt (status -9"),
    ],
)
def test_tests_without_a_reward_are_an_error_of_their_rollout(
    tmp_path: Path, script: str, cause: str
) -> None:
    write_task(tmp_path / "bad", test=script)
    write_task(tmp_path / "good")
    bad, good = run_rollouts(HarborEnvironment(str(tmp_path)), [("bad", SOLVE), ("good", SOLVE)])
    assert (bad.status, bad.rewards) == (Status.ERROR, {})
    assert cause in bad.error
    assert len(bad.policy_turns) == 2
    assert (good.status, good.rewards) == (Status.ANSWERED, {"environment": 1.0})


def test_rewards_in_json(tmp_path: Path) -> None:
    script = """echo '{"reward": 0.25, "style": 1}' > /logs/verifier/reward.json
    echo 0.75 > /logs/verifier/reward.txt"""
    write_task(tmp_path / "a", test=script)
    [done] = run_rollouts(HarborEnvironment(str(tmp_path)), [("a", NOTHING)])
    assert done.rewards == {"environment": 0.25}


def test_tests_that_never_end(tmp_path: Path) -> None:
    config = CONFIG.replace("[verifier]\ntimeout_sec = 300.0", "[verifier]\ntimeout_sec = 0.2")
    script = "sleep 1000 & setsid sleep 1000 & while :; do :; done"
    write_task(tmp_path / "a", task=config, test=script)
    write_task(tmp_path / "b")
    before = count_children()
    never, good = run_rollouts(HarborEnvironment(str(tmp_path)), [("a", SOLVE), ("b", SOLVE)])
    assert never.status is Status.ERROR
    assert "did not finish within verifier.timeout_sec = 0.2" in never.error
    assert good.rewards == {"environment": 1.0}
    assert count_children() == before


def test_time_of_the_agent(tmp_path: Path) -> None:
    """After its end the tests judge what is there."""
    config = CONFIG.replace("[agent]\ntimeout_sec = 300.0", "[agent]\ntimeout_sec = 2.0")
    write_task(tmp_path / "a", task=config)
    turns = (call("echo bird > word.txt; sleep 1000"), "Done.")
    [done] = run_rollouts(HarborEnvironment(str(tmp_path)), [("a", turns)])
    assert (done.status, done.well_formed) == (Status.TRUNCATED, False)
    assert (done.rewards, len(done.policy_turns)) == ({"environment": 1.0}, 1)


def test_time_of_a_command(tmp_path: Path) -> None:
    write_task(tmp_path / "a")
    turns = (call("echo bird > word.txt; sleep 1000"), call("cat word.txt"), "Done.")
    environment = HarborEnvironment(str(tmp_path))
    [done] = run_rollouts(environment, [("a", turns)], call_timeout_seconds=1.0)
    assert [found.observation for found in done.calls] == [
        "The command was stopped, because its time of 1 s was over.",
        "bird",
    ]
    assert done.rewards == {"environment": 1.0}


def test_the_tests_see_their_variables_and_running_processes(tmp_path: Path) -> None:
    config = CONFIG + 'env = { LEVEL = "${NO_SUCH_LEVEL:-0.5}" }\n'
    script = (
        "for i in $(seq 600); do read word < /dev/tcp/127.0.0.1/4321 && break; sleep 0.1; done\n"
        '[ "$word" = bird ] && echo $LEVEL > /logs/verifier/reward.txt'
    )
    write_task(tmp_path / "a", task=config, test="#!/bin/bash\n" + script)
    serve = (
        "import socket; s = socket.create_server(('127.0.0.1', 4321))\n"
        "while True: s.accept()[0].send(b'bird\\n')"
    )
    turns = (call(f'/usr/bin/python3 -c "{serve}" &'), "Done.")
    if not os.path.exists("/usr/bin/python3"):
        pytest.skip("this system has no /usr/bin/python3")
    [done] = run_rollouts(HarborEnvironment(str(tmp_path)), [("a", turns)])
    assert (done.error, done.rewards) == ("", {"environment": 0.5})


def test_other_questions_are_refused(tmp_path: Path) -> None:
    write_task(tmp_path / "a")
    with pytest.raises(UserError, match="'who' is no task of the environment 'harbor'"):
        run_rollouts(HarborEnvironment(str(tmp_path)), [("who", NOTHING)])


def test_held_out_tasks(tmp_path: Path) -> None:
    for name in "dacb":
        write_task(tmp_path / name)
    environment = HarborEnvironment(str(tmp_path))
    train, heldout = environment.tasks(1)
    assert ([t.id for t in train], [t.id for t in heldout]) == (["a", "b", "c"], ["d"])
    assert train[0].question == "Write bird into word.txt."
    train, heldout = environment.tasks(9)
    assert ([t.id for t in train], [t.id for t in heldout]) == (["a", "b"], ["c", "d"])


@pytest.mark.parametrize(
    ("backend", "sentence"),
    [
        ("vm", "'backend' of the environment harbor is 'vm': write one of local, container"),
        ({"disk_mb": 5}, "'backend' of the environment harbor has no name"),
        ({"name": "local", "disk": 5}, "has no setting 'disk'; did you mean 'disk_mb'?"),
        ({"name": "local", "disk_mb": 0}, "the setting 'disk_mb' of the sandbox backend 'local'"),
    ],
)
def test_backends_that_do_not_exist(tmp_path: Path, backend: object, sentence: str) -> None:
    write_task(tmp_path / "a")
    with pytest.raises(UserError) as refused:
        HarborEnvironment(str(tmp_path), backend=backend)  # type: ignore[arg-type]
    assert sentence in str(refused.value)
