"""Runs that collect from a code team: the team of Abacus, or models behind an endpoint."""

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chat_server import completion
from checkpoints import tiny_tokenizer
from collecting_parts import status
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.extensions.curation.filters import Demonstration
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Answer, Observation, ToolCall
from source_files import lines

pytest.importorskip("datasketch", reason="near duplicates need the extra data")

MEMBERS = {  # the start of each prompt
    "You are the planner": "planner",
    "You think for a team": "thinker",
    "You are the code agent": "python",
    "You review the work": "reflection",
    "You write the answer": "suggested_answer",
    "You check the suggested": "double_check",
}


class FakeCodeTeam:
    """A team that solves all tasks except those about cubes, whose wrong programs it trusts. Its
    first program for input adds instead of multiplying, and its review reports that."""

    async def complete(self, request: Request) -> Response:
        content = (await request.json())["messages"][0]["content"]
        if content == "Say ok.":
            return completion("ok")
        [member] = [member for begin, member in MEMBERS.items() if content.startswith(begin)]
        _, _, chain = content.rpartition("Question: ")
        return completion(self.reply(member, chain))

    def reply(self, member: str, chain: str) -> str:
        program, stdin, answer = self.work(chain)
        match member:
            case "planner":
                return "Plan: Compute it, then answer."
            case "thinker":
                done = "tool_effectiveness : Good" in chain
                return f"Thought: I look.\nNext: {'answer' if done else 'python'}"
            case "python":
                return f"Thought: I run it.\nCode:\n```py\n{program}\n```\nStandard input: {stdin}"
            case "reflection":
                poor = "n + n" in chain and "n * n" not in chain
                return f"Review: Seen.\nTool effectiveness: {'Poor' if poor else 'Good'}"
            case "suggested_answer":
                return f"Thought: So.\nSuggested answer:\n```\n{answer}\n```"
        return "Thought: It fits.\nScore: 4"

    def work(self, chain: str) -> tuple[str, str, str]:
        """Return the next program, its input, and the answer of a task."""
        if found := re.match(r".*half of (\d+)", chain):
            return f"print({found[1]} / 2)", "none", rf"\frac{{{found[1]}}}{{2}}"
        if "function" in chain:
            name = re.search(r"double_(\d+)", chain)[0]
            program = f"def {name}(n):\n    return 2 * n"
            return f"{program}\n\nprint({name}(3))", "none", program
        right = "n = int(input())\nprint(n * n)"
        return (right if "Poor" in chain else right.replace("*", "+")), "7", right

    @property
    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/chat/completions", self.complete, methods=["POST"])])


@pytest.fixture
def url() -> Iterator[str]:
    pytest.importorskip("openai", reason="remote teachers need the extra openai")
    with serve_in_thread(FakeCodeTeam().app) as url:
        yield f"{url}/v1"


def program(question: str, power: int) -> dict[str, object]:
    outputs = [str(n**power) for n in (2, 5, 9)]
    return {"problem": question, "tests": {"inputs": ["2", "5", "9"], "outputs": outputs}}


SQUARES = (  # no two of them are near duplicates
    "Print the square of a number.",
    "Read n, and write to the standard output what n times n is, its square.",
    "A field is a square whose side comes from the input: print the area.",
    "Somebody counts the trees of a square garden with n rows. How many are there?",
)


def tasks(folder: Path) -> Path:
    """Return four tasks of each kind (results, programs that read, functions, tasks that the team
    gets wrong) and a proof."""
    records: list[dict[str, object]] = []
    for n in range(4):
        records += [
            {"problem": f"How much is half of {2 * n + 1}?", "answer": str(n + 0.5)},
            program(SQUARES[n], 2),
            {"text": f"Write a function double_{n}.", "test_list": [f"assert double_{n}(4) == 8"]},
            program(f"Print the cube of a number, number {n}.", 3),
        ]
    records.append({"problem": "Prove that half of 9 is 4.5.", "answer": "4.5"})
    return lines(folder / "tasks.jsonl", *records)


@pytest.mark.long
def test_mathematics_and_programs_are_graded_each_in_its_way(tmp_path: Path, url: str) -> None:
    out = tmp_path / "run"
    given = ["afm-code-data", f"teacher.url={url}", "teacher.model=fake", "collect.attempts=1"]
    given += [f"tasks={tasks(tmp_path)}", "evaluation.splits.heldout=1"]
    given += ["collect.filters.tests.least=1"]
    given += ["tools.0.libraries=[]"]
    assert status("check", *given) == 0
    assert status("run", *given, "--out", out) == 0
    demonstrations = read_demonstrations(out / "collect" / "demonstrations.jsonl")
    rejected = read_demonstrations(out / "collect" / "rejected.jsonl")
    assert {task.meta["rejected"] for task, _ in rejected} == {"wrong answer"}
    words = ("half", "square", "double", "cube")
    right, wrong = (
        Counter(word for task, _ in found for word in words if word in task.question)
        for found in (demonstrations, rejected)
    )
    assert wrong.keys() == {"cube"}
    assert right.keys() == {"half", "square", "double"}
    assert right.total() + wrong.total() == 16  # one question of 17 is held out
    assert right.total() >= 12
    dialect = make_dialect("afm-code", tiny_tokenizer())
    for task, steps in demonstrations:
        encoded = encode_demonstration(task, steps, dialect, [])
        assert (encoded.well_formed, encoded.answer) == (True, Demonstration(task, steps).answer)
        programs = [step for step in steps if isinstance(step, ToolCall)]
        square = "square" in task.question
        assert len(programs) == (2 if square else 1)
        assert ("stdin" in programs[0].arguments) == square
        assert task.meta["seats"]["python"]["requests"] == len(programs)
    printed = {s.text for _, steps in demonstrations for s in steps if isinstance(s, Observation)}
    assert {"14", "49", "6"} <= printed  # results of the real sandbox: 7 + 7, 7 * 7, twice 3
    accepted = read_demonstrations(out / "collect" / "filtered" / "demonstrations.jsonl")
    assert not [task for task, _ in accepted if "Prove" in task.question]
    squares = [task for task, _ in accepted if "square" in task.question]
    assert len(squares) == 2 * right["square"]  # they repaired an error
    cuts = json.loads((out / "collect" / "filtered" / "card.json").read_text())["cuts"]
    dropped = {cut["name"]: cut["dropped"] for cut in cuts if cut["dropped"]}
    assert dropped.keys() <= {"proofs"}  # unless the proof is held out


def test_the_team_of_abacus_and_its_filters(tmp_path: Path) -> None:
    out = tmp_path / "run"
    given = ["afm-code-data", "world.notes=40", "world.heldout_notes=10", "world.mistakes=1"]
    assert status("run", *given, "collect.questions=60", "--out", out) == 0
    demonstrations = read_demonstrations(out / "collect" / "demonstrations.jsonl")
    accepted = read_demonstrations(out / "collect" / "filtered" / "demonstrations.jsonl")
    assert len(accepted) == 2 * len(demonstrations) == 120  # each chain has repaired an error
    dialect = make_dialect("afm-code", tiny_tokenizer())
    for task, steps in demonstrations:
        assert steps[-1] == Answer(task.answers[0])
        assert encode_demonstration(task, steps, dialect, []).well_formed
    few = ["collect.filters={complexity: {least: 4, count: calls}}", "collect.questions=60"]
    assert status("run", *given, *few, "--out", tmp_path / "few") == 0
    filtered = tmp_path / "few" / "collect" / "filtered"
    left = read_demonstrations(filtered / "demonstrations.jsonl")
    assert 0 < len(left) < 60
    assert min(len(Demonstration(*each).calls) for each in left) == 4
    [cut] = json.loads((filtered / "card.json").read_text())["cuts"]
    assert cut["dropped"] == {"fewer than 4 calls": 60 - len(left)}
