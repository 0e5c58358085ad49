"""Runs that synthesise questions, by a world and by a model behind an endpoint."""

import json
import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chat_server import completion
from collecting_parts import settings, status
from fieldcraft.data.tasks import read_tasks
from fieldcraft.tools.serving import serve_in_thread

pytest.importorskip("openai", reason="remote models need the extra openai")


class FakeWriter:
    """An endpoint that knows the mayors of towns. It asks for them and reports them only after a
    search, but Town2's even without one. For Town3 it reports a different one. Its question about
    Town4 contains the answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def complete(self, request: Request) -> Response:
        self.asked += 1
        content = (await request.json())["messages"]
        first, last = content[0]["content"], content[-1]["content"]
        if first == "Say ok.":
            return completion("ok")
        return completion(self.reply(first, last))

    def reply(self, first: str, last: str) -> str:
        if found := re.search(r"Its answer: Town(\d)", first):
            if "You make a harder" not in first:
                return f"Thought: I look.\nQuery: Town{found[1]}"
            name = f" of Mayor{found[1]}" if found[1] == "4" else ""
            return (
                f"Fact: It has a mayor.\nNew question: Who{name} is mayor where Person{found[1]} "
                f"was born?\nNew answer: Mayor{found[1]}"
            )
        if "You join" in first:
            people = " and ".join(re.findall(r"Person\d", first.rpartition("Question: ")[2]))
            return f"New question: How many towns were {people} born in?"
        number = (re.findall(r"Person(\d) was born\?", first) or ["0"])[-1]
        if "How many" in first:
            known = last.startswith("Observation:")
            return "Thought: I count.\nAnswer: 3" if known else self.act(first)
        if last.startswith("Observation:"):
            return f"Thought: So.\nAnswer: Mayor{0 if number == '3' else number}"
        if "Action:" in first:
            return self.act(first)
        return f"Thought: Hm.\nAnswer: {'Mayor2' if number == '2' else 'nobody'}"

    def act(self, first: str) -> str:
        if "Action:" not in first:
            return "Thought: Hm.\nAnswer: nobody"
        return 'Thought: I look.\nAction: search {"query": "Person"}'

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self.complete, methods=["POST"])])


def test_a_model_writes_and_checks_them(tmp_path: Path) -> None:
    writer, out = FakeWriter(), tmp_path / "run"
    with serve_in_thread(writer.app) as url:
        _, *given = settings(tmp_path, f"{url}/v1", {"easy": 6})
        command = ["synthesise", "afm-data", *given, "--out", out, "--depth"]
        assert status(*command, 2, "--width", 3) == 0
        before = writer.asked
        assert status(*command, 2, "--width", 3) == 0
        assert writer.asked == before + 1  # the answer exists
    drafts = [json.loads(x) for x in (out / "synthesis/drafts.jsonl").read_text().splitlines()]
    assert {d["meta"]["made"]: d["answers"] for d in drafts if d["kind"] == "count" and d["meta"]}
    synthesised = read_tasks(out / "synthesis" / "tasks.jsonl")
    deep = [task for task in synthesised if task.meta["made"] == "depth"]
    assert len(deep) == 2
    for task in deep:
        [number] = re.findall(r"Person(\d)", task.question)
        assert number in "015"
        assert task.answers == (f"Mayor{number}",)
    [counted] = [task for task in synthesised if task.meta["made"] == "count"]
    assert counted.answers == ("3",)
    assert len(counted.meta["from"]) == 3
    reasons = {d["kind"]: d["reason"] for d in drafts if d["kind"] in ("compare", "intersect")}
    assert reasons == {
        "intersect": "no other question has the same answer",
        "compare": "there are no two questions with numbers as answers",
    }
    rejected = {d["reason"]: d["question"] for d in drafts if d["kind"] == "depth" and d["rule"]}
    assert set(rejected) <= {
        *("", "right without tools", "an agent with tools finds another answer"),
        *("it contains an answer", "it was made before"),
    }


def test_a_world_makes_and_checks_them(tmp_path: Path) -> None:
    out = tmp_path / "run"
    command = ["synthesise", "afm-data", "world.people=60", "--out", out]
    assert status(*command, "--depth", 5, "--width", 6) == 0
    synthesised = read_tasks(out / "synthesis" / "tasks.jsonl")
    kinds = [task.meta["made"] for task in synthesised]
    assert kinds == ["depth"] * 5 + ["intersect"] * 2 + ["compare"] * 2 + ["count"] * 2
    assert not any(task.meta["known"] for task in synthesised)
    assert status(*command, "--depth", 7, "--width", 0) == 0  # more of the available ones
    more = read_tasks(out / "synthesis" / "tasks.jsonl")
    assert (more[:5], len(more)) == (synthesised[:5], 7)
    card = json.loads((out / "synthesis" / "card.json").read_text())
    assert [cut["name"] for cut in card["cuts"]] == ["made", "new", "closed", "right"]
    assert card["cuts"][2]["dropped"]["the model was taught all of it"] > 0


def test_questions_without_answers_are_no_start(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    _, *given = settings(tmp_path, "http://127.0.0.1:9/v1", {"easy": 2})
    graded = {"metadata": {"graded_by": "rubric"}}
    records = [{"question": f"Is letter {number} polite?"} | graded for number in range(3)]
    (tmp_path / "tasks.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    assert status("synthesise", "afm-data", *given, "--out", tmp_path / "run") == 2
    assert "no question has an answer, and harder questions are" in capsys.readouterr().err


def test_none_is_requested(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["synthesise", "afm-data", "world.people=60", "--out", tmp_path / "run"]
    assert status(*command, "--depth", 0, "--width", 0) == 2
    sentence = "--depth=0 and --width=0 ask for no question of the kinds depth, intersect, compare"
    assert sentence in capsys.readouterr().err


def test_nobody_makes_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["synthesise", "code-mini", "--out", tmp_path / "run"]
    assert status(*command) == 2
    assert "no generator of questions is configured: set teacher.model" in capsys.readouterr().err
