"""External agents that are programs of any language."""

import json
import os
import select
import sys
import threading
from pathlib import Path

import pytest
from blackbox_parts import TOKENIZER, run_scripted

from fieldcraft.types import Status
from virtual_time import Clock

END = TOKENIZER.eos_token

PROGRAM = """\
import json, os, sys, urllib.request
task = json.load(sys.stdin)
body = {"model": "policy", "messages": [{"role": "user", "content": task["question"]}]}
asked = urllib.request.Request(
    os.environ["OPENAI_BASE_URL"] + "/chat/completions",
    json.dumps(body).encode(), {"Content-Type": "application/json"},
)
print(json.load(urllib.request.urlopen(asked))["choices"][0]["message"]["content"].upper())
"""


def test_a_program_of_any_language(tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    done, _ = run_scripted(None, ["Ada"], {"command": [sys.executable, str(tmp_path / "agent.py")]})
    assert (done.answer, done.policy_turns) == ("ADA", [f"Ada{END}"])
    broken, _ = run_scripted(
        None, [], {"command": [sys.executable, "-c", "raise SystemExit('no plan')"]}
    )
    assert "the agent exited with status 1: no plan" in broken.error


def test_its_task_is_json_for_a_program() -> None:
    done, _ = run_scripted(None, [], {"command": [sys.executable, "-c", "print(input())"]})
    assert json.loads(done.answer or "") == {
        "id": "q",
        "question": "Who?",
        "answers": ["Ada"],
        "meta": {},
    }


LEAVES_A_PROCESS = """\
import os, subprocess, sys
held = os.open(sys.argv[1], os.O_WRONLY)
subprocess.Popen(["sleep", "1000"], pass_fds=[held])
os.write(held, b"x")
print("done")
"""


@pytest.mark.parametrize("ends", ["", "import time; time.sleep(1000)"])
def test_what_a_program_has_started_ends_with_its_rollout(tmp_path: Path, ends: str) -> None:
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

    watching = threading.Thread(target=let_time_pass)
    watching.start()
    command = [sys.executable, "-c", LEAVES_A_PROCESS + ends, str(held)]
    done, _ = run_scripted(None, [], {"command": command, "timeout_seconds": 600}, run=clock.run)
    watching.join()
    assert (done.answer, done.status) == (
        (None, Status.ERROR) if ends else ("done", Status.NO_ANSWER)
    )
    ready, _, _ = select.select([reader], [], [], 300)
    assert ready, "a process still holds it open"
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_program_that_prints_without_end_is_ended() -> None:
    code = "import sys\nfor _ in range(40): sys.std{}.write('a' * 2**16)\n"
    for more, message in (
        (code.format("out") + "while True: pass", "the agent printed more than 1048576 bytes"),
        (code.format("err") + "raise SystemExit('bye')", "bye"),
    ):
        done, _ = run_scripted(None, [], {"command": [sys.executable, "-c", more]})
        assert done.status is Status.ERROR
        assert done.error.endswith(message)
        assert len(done.error) < 300
