"""Memories in the worker that runs the simulators of the Berkeley Function Calling Leaderboard."""

import asyncio
import json
import os
import subprocess
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from bfcl_memory_parts import make_note, questions_about, read_answers
from bfcl_parts import (
    NEEDS_PACKAGE,
    PYTHON,
)

from fieldcraft.extensions.external_envs.bfcl.questions import (
    MEMORY_CATEGORIES,
    WORKER_SCRIPT,
    BfclQuestion,
)
from fieldcraft.extensions.external_envs.worker_process import WorkerProcess

pytestmark = [pytest.mark.long, NEEDS_PACKAGE]


@asynccontextmanager
async def open_worker(category: str) -> AsyncIterator[WorkerProcess]:
    worker = WorkerProcess(
        [str(PYTHON), str(WORKER_SCRIPT)], {"categories": [category]}, Path("worker.log")
    )
    await worker.start()
    try:
        yield worker
    finally:
        await worker.close()


def ask_worker(category: str, *requests: dict[str, Any]) -> list[dict[str, Any]]:
    async def send() -> list[dict[str, Any]]:
        async with open_worker(category) as worker:
            return [await worker.send_request(request) for request in requests]

    return asyncio.run(send())


async def hold_conversations(
    question: BfclQuestion, steps: Sequence[Sequence[Any]]
) -> dict[str, Any]:
    """Return the first messages of the conversations before a question and of the question itself,
    and the memory that it reads, if each conversation has one message with calls."""
    memory, messages = None, []
    async with open_worker(question.category) as worker:
        for key, step in zip(question.depends_on, steps, strict=True):
            request = {"open": key, "memory": memory}
            messages.append((await worker.send_request(request))["messages"])
            request = {"store": key, "steps": [step], "memory": memory}
            memory = (await worker.send_request(request))["memory"]
        request = {"open": question.id, "memory": memory}
        messages.append((await worker.send_request(request))["messages"])
    return {"messages": messages, "memory": memory}


def test_a_memory_is_stored_and_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = questions_about("memory_kv", "notetaker")[0].depends_on[:2]
    question = questions_about("memory_kv", "notetaker")[0].id
    old = {"core_memory": {"colour": "blue"}, "archival_memory": {}}
    add = ("archival_memory_add", {"key": "town", "value": "Oslo \ud83d"})
    stored, restarted, shown, again = ask_worker(
        "memory_kv",
        {"store": second, "steps": [[add]], "memory": old},
        {"store": first, "steps": [[add]], "memory": old},
        {"open": question, "memory": old},
        {"open": question, "memory": None},
    )
    assert stored["memory"] == {
        "core_memory": {"colour": "blue"}, "archival_memory": {"town": "Oslo \ud83d"}
    }  # fmt: skip
    assert restarted["memory"]["core_memory"] == {}  # the first conversation begins with none
    assert [m["role"] for m in shown["messages"]] == ["system", "user"]
    assert '"colour": "blue"' in shown["messages"][0]["content"]
    assert "colour" not in again["messages"][0]["content"]
    assert shown["messages"][1] == again["messages"][1]


@pytest.mark.parametrize("category", MEMORY_CATEGORIES)
def test_memories_are_those_of_the_handler_of_the_package(
    category: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    questions = questions_about(category, "notetaker")[:5]
    name = "core_memory_add" if category == "memory_kv" else "memory_append"
    calls = [[(name, make_note(question).arguments)] for question in questions]
    given = {"category": category, "scenario": "notetaker", "calls": calls, "folder": str(tmp_path)}
    ran = subprocess.run(
        [PYTHON, Path(__file__).with_name("bfcl_handler.py")],
        input=json.dumps(given),
        env=os.environ | {"BFCL_PROJECT_ROOT": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = json.loads(ran.stdout)
    assert json.dumps(expected["memory"]).count("fact_") == 5
    assert "fact_" in expected["messages"][-1][0]["content"]
    assert asyncio.run(hold_conversations(questions[0], calls)) == expected


def test_a_memory_that_grows_without_limit_is_not_stored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    name = questions_about("memory_rec_sum", "notetaker")[0].depends_on[1]
    grow = ("memory_replace", {"old_text": "", "new_text": "x" * 9999})
    old = {"memory": "a" * 200}  # 201 times 9,999 characters, and 200 more: 2,009,999
    huge, small = ask_worker(
        "memory_rec_sum",
        {"store": name, "steps": [[grow]], "memory": old},
        {"store": name, "steps": [[grow]], "memory": {"memory": "aa"}},
    )
    assert huge["memory"] == old
    assert len(small["memory"]["memory"]) == 3 * 9999 + 2


@pytest.mark.parametrize(
    ("answer", "expected"),
    [("{'answer': 'MICHAEL.'}", True), ("michaela", False), ("I do not know", False), ("", False)],
)
def test_the_last_message_is_right_if_it_has_an_accepted_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, answer: str, expected: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    assert read_answers()["0-customer-0"] == "Michael"
    [reply] = ask_worker("memory_kv", {"check": "memory_kv_0-customer-0", "answer": answer})
    assert reply["valid"] is expected
    assert bool(reply["error"]) is not expected
