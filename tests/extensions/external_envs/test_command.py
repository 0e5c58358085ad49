"""Programs of any language as agents, in folders of their own."""

import json
import os
import select
import shlex
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from blackbox_parts import TOKENIZER, run_scripted

import older_kernel
from fieldcraft.extensions.external_envs.command import CommandEnvironment
from fieldcraft.extensions.sandbox import landlock
from fieldcraft.extensions.sandbox.write_guard import make_guarded_command
from fieldcraft.types import Status, UserError
from virtual_time import Clock

END = TOKENIZER.eos_token
MISSING_GUARD = landlock.explain_missing(landlock.FILES)
needs_guard = pytest.mark.skipif(MISSING_GUARD is not None, reason=str(MISSING_GUARD))
WRITABLE = ["/"] if MISSING_GUARD else []

PROGRAM = """\
import json, os, sys, urllib.request
task = json.load(open(os.environ["FIELDCRAFT_TASK"]))
assert sys.stdin.read() == task["question"]
body = {"model": "policy", "messages": [{"role": "user", "content": task["question"]}]}
asked = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(), {"Content-Type": "application/json"},
)
print(json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"].upper())
"""


@pytest.fixture(autouse=True)
def folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make the folders of programs in a folder of the test, which must be empty after it."""
    place = tmp_path / "folders"
    place.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(place))
    return place


def run_program(run: str, turns: Any = (), **settings: Any) -> Any:
    """Run a rollout. Its folder must not exist afterwards."""
    done, _ = run_scripted(None, turns, {"run": run, "writable": WRITABLE, **settings})
    assert list(Path(tempfile.gettempdir()).iterdir()) == []
    return done


def python(code: str, *arguments: str) -> str:
    return shlex.join([sys.executable, "-c", code, *arguments])


def test_a_program_of_any_language(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    done = run_program(f"{sys.executable} {tmp_path / 'agent.py'}", ["Ada"])
    assert (done.answer, done.policy_turns) == ("ADA", [f"Ada{END}"])
    broken = run_program(python("raise SystemExit('no plan')"))
    assert "the agent exited with status 1: no plan" in broken.error


def test_it_finds_its_task_and_the_policy() -> None:
    names = "OPENAI_BASE_URL OPENAI_API_KEY ANTHROPIC_BASE_URL ANTHROPIC_API_KEY"
    done = run_program(f"cat $FIELDCRAFT_TASK; for v in {names}; do printenv $v; done")
    task, openai, key, anthropic, other_key = (done.answer or "").replace("}}", "}}\n").split()[-5:]
    assert openai == f"{anthropic}/v1"
    assert (key, other_key) == ("none", "none")
    assert task.endswith("}}")
    record = json.loads((done.answer or "").split("http")[0])
    assert record == {"id": "q", "question": "Who?", "meta": {}}


def test_answers_are_in_its_task_only_if_the_recipe_says_so() -> None:
    done = run_program('cat "$FIELDCRAFT_TASK"', share_answers=True)
    assert json.loads(done.answer or "")["answers"] == ["Ada"]


def test_files_of_the_answer_and_the_reward() -> None:
    done = run_program("echo much; echo Oslo > answer.txt; echo 0.5 > reward.txt")
    assert (done.answer, done.rewards) == ("Oslo", {"environment": 0.5})
    assert run_program("echo Rome; echo 0.5 > reward.txt").answer == "Rome"
    assert run_program("true").answer is None
    done = run_program(r"printf '\357\273\277Oslo\r\n' > answer.txt; cp answer.txt reward.txt")
    assert "reward.txt is not a number: 'Oslo'" in done.error
    done = run_program(r"printf '\357\273\277Oslo'; printf '\357\273\2771\r\n' > reward.txt")
    assert (done.answer, done.rewards) == ("Oslo", {"environment": 1})


@pytest.mark.parametrize(
    ("run", "cause"),
    [
        ("echo much > reward.txt", "reward.txt is not a number: 'much'"),
        ("echo nan > reward.txt", "its reward is nan"),
        ("ln -s /etc/hostname answer.txt", "answer.txt cannot be read"),
        ("mkfifo answer.txt", "answer.txt is not a file"),
        ("mkdir reward.txt", "reward.txt is not a file"),
        ("head -c 1048577 /dev/zero > answer.txt", "answer.txt has more than 1048576 bytes"),
        ("no-such-agent", "the agent exited with status 127"),
    ],
)
def test_what_is_no_result_is_an_error_of_its_rollout(run: str, cause: str) -> None:
    done = run_program(run)
    assert (done.status, done.rewards) == (Status.ERROR, {})
    assert cause in done.error


@needs_guard
def test_it_changes_files_in_its_folder_only(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    attempts = [f"echo x > {outside}/new", f"rm {outside}/kept", f"mkdir {outside}/folder"]
    attempts += [f"truncate -s 0 {outside}/kept", f"ln -s x {outside}/link"]
    tries = "; ".join(f"({attempt}) 2>/dev/null && echo done" for attempt in attempts)
    inside = 'cat "$0" | head -c0; echo x > $HOME/x; mktemp >/dev/null; echo x >/dev/null'
    done = run_program(f"{tries}; {inside} && cat {outside}/kept")
    assert (done.answer, done.error) == ("kept", "")
    assert [file.name for file in outside.iterdir()] == ["kept"]
    allowed = run_program(f"echo x > {outside}/new", writable=[str(outside)])
    assert (allowed.error, (outside / "new").read_text()) == ("", "x\n")
    refused = run_program(f"echo x > {outside}/another")
    assert "the agent exited with status" in refused.error
    assert run_program(f"echo x > {outside}/another", writable=["/"]).error == ""


ESCAPES = """\
import ctypes, os, struct, sys
libc = ctypes.CDLL(None)
entered = None
for _ in range(2):
    cleared = ctypes.create_string_buffer(struct.pack("=QQQQ", 0, 1, 0, 0))  # MOUNT_ATTR_RDONLY
    changed = libc.syscall(442, -100, b"/", 0x8000, cleared, 32)
    mounted = libc.mount(b"none", b"/", None, 0x1000 | 0x20, None)  # MS_BIND | MS_REMOUNT
    assert (changed, mounted) == (-1, -1), (changed, mounted)
    if entered is None:  # then it has all capabilities in namespaces of its own
        entered = libc.unshare(0x10000000 | 0x20000)
try:
    open(sys.argv[1], "w")
except OSError as error:
    print(error.strerror, entered)
"""


IMPORT = "from fieldcraft.extensions.external_envs.command import CommandEnvironment\n"


def test_a_program_has_settings_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """It neither reads nor writes those of the user, wherever these are."""
    names = ("CONFIG_HOME", "CACHE_HOME", "DATA_HOME", "STATE_HOME", "RUNTIME_DIR")
    for name in names:
        monkeypatch.setenv(f"XDG_{name}", "/etc")
    inside = 'mkdir -p "$XDG_{0}/me" && echo x > "$XDG_{0}/me/x"'
    run = " && ".join(inside.format(name) for name in names)
    assert run_program(f"{run} && echo 42").answer == "42"


@pytest.mark.parametrize("kernel", ["landlock-2", "landlock-none"])
def test_older_kernels_restrict_it_by_a_mount_namespace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kernel: str
) -> None:
    """Ubuntu 22.04 and RHEL 9 have no Landlock that restricts all changes of files."""
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("kept")
    older = older_kernel.write_interpreter(tmp_path, kernel)
    guarded = [older, *make_guarded_command(["/bin/sh", "-c", ":"], [])[1:]]
    if subprocess.run(guarded, capture_output=True, check=False).returncode:
        pytest.skip("this system forbids user namespaces")
    plain = sys.executable
    monkeypatch.setattr(sys, "executable", older)
    asked = [older, "-c", f"{IMPORT}print(CommandEnvironment('true').describe_isolation().layers)"]
    assert subprocess.check_output(asked, text=True) == "('user', 'mount')\n"
    attempts = [f"echo x > {outside}/new", f"rm {outside}/kept", f"chmod 0 {outside}/kept"]
    tries = "; ".join(f"({attempt}) 2>/dev/null && echo done" for attempt in attempts)
    inside = "echo x > $HOME/x && mktemp >/dev/null && echo x >/dev/null"
    done = run_program(f"{tries}; {inside} && cat {outside}/kept", writable=[])
    assert (done.answer, done.error) == ("kept", "")
    escaped = run_program(shlex.join([plain, "-c", ESCAPES, str(outside / "new")]), writable=[])
    assert escaped.answer == "Read-only file system 0"
    allowed = run_program(f"echo x > {outside}/new; cat {outside}/new", writable=[str(outside)])
    assert (allowed.answer, allowed.error) == ("x", "")


@pytest.mark.parametrize("kernel", ["no-user", "no-mount"])
def test_without_any_guard_one_sentence_names_two_ways_out(tmp_path: Path, kernel: str) -> None:
    code = f"{IMPORT}CommandEnvironment('true', writable=['/'])\nCommandEnvironment('true')"
    older = [
        older_kernel.write_interpreter(tmp_path, kernel),
        older_kernel.__file__,
        "landlock-none",
    ]
    refused = subprocess.run([*older, "-c", code], capture_output=True, text=True, check=False)
    sentence = refused.stderr.strip().rpartition("\n")[2]
    assert "cannot keep its programs from changing files outside" in sentence
    assert "apparmor_restrict_unprivileged_userns=0" in sentence
    assert sentence.endswith("or allow it with writable: [/].")


@needs_guard
def test_it_cannot_end_the_process_that_trains() -> None:
    if landlock.explain_missing(landlock.SCOPES) is not None:
        pytest.skip("the kernel's Landlock does not restrict signals")
    done = run_program(f"kill -0 {os.getpid()} 2>/dev/null || echo refused")
    assert done.answer == "refused"


def test_a_folder_is_removed_whatever_a_program_makes_of_it() -> None:
    done = run_program("mkdir -p a/b; touch a/b/c; chmod 0 a/b; chmod 500 a; ln -s / root; echo ok")
    assert done.answer == "ok"


def test_settings_that_cannot_be_followed() -> None:
    with pytest.raises(UserError, match="the path /no/where of writable does not exist"):
        CommandEnvironment("true", writable=["/no/where"])


LEAVES_A_PROCESS = """\
import os, subprocess, sys
held = os.open(sys.argv[1], os.O_WRONLY)
subprocess.Popen(["sleep", "1000"], pass_fds=[held], start_new_session=True)
os.write(held, b"x")
print("done")
"""


@pytest.mark.parametrize("ends", ["", "import time; time.sleep(1000)"])
def test_what_a_program_has_started_ends_with_its_rollout(
    tmp_path: Path, folders: Path, ends: str
) -> None:
    held = tmp_path / "held"
    os.mkfifo(held)
    reader = os.open(held, os.O_RDONLY | os.O_NONBLOCK)
    clock = Clock()

    def let_time_pass() -> None:
        """Advance the time once the process exists. Opening the pipe here would wait for ever if
        the process had already ended."""
        select.select([reader], [], [])
        assert os.read(reader, 1) == b"x"
        if ends:
            clock.jump(600)

    watching = threading.Thread(target=let_time_pass, daemon=True)
    watching.start()
    settings = {"run": python(LEAVES_A_PROCESS + ends, str(held)), "writable": [str(held)]}
    settings["timeout_seconds"] = 600
    done, _ = run_scripted(None, [], settings, run=clock.run)
    watching.join()
    assert (done.answer, done.status) == (
        (None, Status.ERROR) if ends else ("done", Status.NO_ANSWER)
    )
    assert not ends or "the agent did not finish within 600 s" in done.error
    ready, _, _ = select.select([reader], [], [], 300)
    assert ready, "a process still holds it open"
    assert os.read(reader, 1) == b""
    os.close(reader)
    assert list(folders.iterdir()) == []


def test_a_program_that_prints_without_end_is_ended() -> None:
    code = "import sys\nfor _ in range(40): sys.std{}.write('a' * 2**16)\n"
    for more, message in (
        (code.format("out") + "while True: pass", "the agent printed more than 1048576 bytes"),
        (code.format("err") + "raise SystemExit('bye')", "bye"),
    ):
        done = run_program(python(more))
        assert done.status is Status.ERROR
        assert done.error.endswith(message)
        assert len(done.error) < 300


def test_files_of_the_agent_are_copied_to_each_rollout(tmp_path: Path) -> None:
    agent = tmp_path / "agent" / "bin" / "run.sh"
    agent.parent.mkdir(parents=True)
    agent.write_text("#!/bin/sh\ncat bin/data.txt; echo more >> bin/data.txt\n")
    agent.chmod(0o755)
    data = agent.with_name("data.txt")
    data.write_text("once\n")
    for _ in range(2):
        assert run_program("./bin/run.sh", files=str(tmp_path / "agent")).answer == "once"
    assert data.read_text() == "once\n"


SERVER = {"name": "sandboxfusion", "url": "http://127.0.0.1:1"}
MISTAKES: list[tuple[dict[str, Any], str]] = [
    ({"files": "/no/where"}, "'/no/where' is not a folder: correct 'files' of the environment"),
    ({"backend": "dock"}, "unknown sandbox backend 'dock'"),
    ({"backend": {"image": "x"}}, "'backend' of the environment command has no name"),
    ({"backend": {"name": "local", "image": "x"}}, "'local' of the environment command has no"),
    ({"backend": {"name": "container"}}, "'container' needs the setting 'image'"),
    ({"backend": "sandboxfusion"}, "'sandboxfusion' runs no commands, because its server"),
    ({"backend": SERVER}, "'sandboxfusion' runs no commands, because its server"),
    (
        {"backend": SERVER, "writable": ["/tmp"]},
        "'writable' .* is a setting of the backend 'local'",
    ),
    (
        {"limits": {"memory_mb": 5}},
        "'local' has no limit 'memory_mb' for a command",
    ),
    ({"backend": "test_command:make_backend"}, "runs no commands: write its methods run_command"),
]


def make_backend() -> object:
    """Make a backend of programs only."""
    return object()


@pytest.mark.parametrize(("settings", "message"), MISTAKES)
def test_backends_that_cannot_be_used(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        CommandEnvironment("true", **{"writable": WRITABLE, **settings})
    assert str(refused.value).endswith(".")


def test_e2b_does_not_limit_the_memory_of_a_command(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("e2b", reason="needs the extra e2b")
    monkeypatch.setenv("E2B_API_KEY", "e2b_0")
    environment = CommandEnvironment("true", backend="e2b", limits={"processes": 5})
    assert environment.describe_isolation().backend == "e2b"
    with pytest.raises(UserError, match=r"'e2b' has no limit 'memory_mb' .* limits: processes\): "):
        CommandEnvironment("true", backend="e2b", limits={"memory_mb": 5})


def test_a_folder_that_is_too_large(tmp_path: Path) -> None:
    with open(tmp_path / "large", "wb") as file:
        file.truncate(33 * 2**20)
    with pytest.raises(UserError, match="has more than 32 MiB: name a smaller folder"):
        CommandEnvironment("true", writable=WRITABLE, files=str(tmp_path))
