"""Teacher behind an endpoint that knows some of its questions, for the tests of collection."""

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from fieldcraft.cli.main import main

KINDS = ("easy", "hard", "nonsense", "broken", "slow")
SECONDS = 120  # deadline after which a hanging run fails


def question(kind: str, number: int) -> str:
    return f"Where was the {kind} Person{number} born?"


class FakeTeacher:
    """Teacher that plays ReAct by the kind of the question. It knows the easy ones and guesses the
    hard ones unless it may search. It ignores stop strings and invents search results."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, str]] = []  # (question, way)
        self.down = self.hangs = False

    async def complete(self, request: Request) -> Response:
        body = await request.json()
        messages = body["messages"]
        if self.hangs:
            while not await request.is_disconnected():
                await asyncio.sleep(0.01)
        if messages == [{"role": "user", "content": "Say ok."}]:
            return self._reply("ok")
        if self.down:
            return PlainTextResponse("on fire", status_code=500)
        instruction, _, text = messages[0]["content"].rpartition("\n\nQuestion: ")
        way = "coa" if "Action:" in instruction else "cot"
        self.asked.append((text, way))
        await asyncio.sleep(0.002)
        kind, number = re.fullmatch(r"Where was the (\w+) Person(\d+) born\?", text).groups()
        if kind == "nonsense":
            return self._reply("Lorem ipsum.")
        if kind == "broken":
            return PlainTextResponse("on fire", status_code=500)
        if kind == "slow":  # but correct
            await asyncio.sleep(0.5)
            kind = "easy"
        if way == "cot":
            town = "Town" if kind == "easy" else "Rome"
            return self._reply(f"Thought: He is well known.\nAnswer: {town}{number}")
        if len(messages) == 1:
            return self._reply(
                "Thought: A person was born somewhere. I look it up.\n"
                f'Action: search {{"query": "Person{number} born"}}\n'
                "Observation: Person was born in Eviltown.\nThought: Good.\nAnswer: Eviltown"
            )
        found = re.search(rf"Person{number} was born in (\w+)", messages[-1]["content"])
        return self._reply(f"Thought: So it says.\nAnswer: {found[1] if found else 'lost'}")

    def _reply(self, text: str) -> Response:
        message = {"role": "assistant", "content": text}
        return JSONResponse(
            {
                "id": "x",
                "object": "chat.completion",
                "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                "usage": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 110},
            }
        )

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self.complete, methods=["POST"])])


def settings(folder: Path, url: str, counts: dict[str, int], *more: str) -> list[str]:
    """Return settings of a run on files: a number of questions of each kind, and their passages."""
    people = [(kind, n) for kind in KINDS for n in range(counts.get(kind, 0))]
    people = [(kind, number) for number, (kind, _) in enumerate(people)]
    tasks = [{"question": question(kind, n), "answer": f"Town{n}"} for kind, n in people]
    corpus = [{"title": f"Person{n}", "text": f"Person{n} was born in Town{n}."} for _, n in people]
    for name, records in (("tasks", tasks), ("corpus", corpus)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    return [
        "autocoa-data",
        f"teacher.url={url}",
        "teacher.model=fake",
        "teacher.retries=0",
        "teacher.timeout_seconds=60",
        "teacher.concurrency=4",
        "teacher.prices=[1.0, 10.0]",
        f"tasks={folder / 'tasks.jsonl'}",
        f"corpus={folder / 'corpus.jsonl'}",
        "search.top_k=1",
        "evaluation.splits.heldout=1",
        "collect.attempts=2",
        *more,
    ]


def status(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def requests_of(question: str, way: str) -> int:
    """Return the number of requests for a question with two attempts."""
    kind = question.split()[3]
    if kind == "broken":
        return 1
    return 2 if way == "coa" or kind in ("hard", "nonsense") else 1


def journal(out: Path) -> list[dict[str, Any]]:
    file = out / "collect" / "attempts.jsonl"
    text = file.read_text() if file.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]
