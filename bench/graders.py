"""What graders say where the verdict is known: gold solutions, and cases from tests of others.

    python bench/graders.py ../shared/data/math/math500.json ../shared/data/code/mbpp_974.jsonl

A FILE is one of these, and its fields say which:

- questions with gold answers: the reward `math` grades each answer in a box. So it is not equal as
  text, and Math-Verify has to read it;
- HumanEval or MBPP: the reward `unit_tests` runs each gold program in the sandbox;
- cases of Math-Verify's tests (gold, pred, expected), or OlympiadBench's (GT, Ans): the reward
  `math`, and beside it Math-Verify called directly.

Each row has how many items there are and how many have the verdict they should have. All others are
listed below the table.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from math_verify import parse, verify

from fieldcraft.data.records import Record, read_records
from fieldcraft.data.tasks import read_tasks
from fieldcraft.rewards.mathematics import MathReward
from fieldcraft.rewards.programs import UnitTestReward
from fieldcraft.rewards.rubric import AsyncReward
from fieldcraft.tools.python.tool import GradingSandbox
from fieldcraft.types import Status, Task, Trajectory, UserError

AT_ONCE = 8


@dataclass(frozen=True)
class Case:
    """An answer, and whether it is right."""

    task: Task
    answer: str
    right: bool = True


def read_cases(path: Path) -> list[Case]:
    """Raises UserError for a file of another kind."""
    found = [record for _, record in read_records(path)]
    match found[0] if found else {}:
        case {"gold": _, "pred": _, "expected": _}:
            return [
                Case(Task(str(i), "", (r["gold"],)), r["pred"], bool(r["expected"]))
                for i, r in enumerate(found)
            ]
        case {"GT": _, "Ans": _}:
            return [
                Case(Task(f"{i}.{j}", "", (r["GT"],)), said["answer"], said["equal"])
                for i, r in enumerate(found)
                for j, said in enumerate(r["Ans"])
            ]
    tasks = read_tasks(path)
    return [
        Case(task, gold_solution(task, record)) for task, record in zip(tasks, found, strict=True)
    ]


def gold_solution(task: Task, record: Record) -> str:
    """Raises UserError for a task without one."""
    match record:
        case {"prompt": str(prompt), "canonical_solution": str(body)}:
            return prompt + body
        case {"code": str(code)}:
            return code
    if not task.answers:
        raise UserError(f"the task '{task.id}' has no gold solution; give another file.")
    return f"\\boxed{{{task.answers[0]}}}"


async def grade(reward: AsyncReward, cases: list[Case]) -> list[float | None]:
    """The score of every case."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case) -> float | None:
        async with gate:
            done = Trajectory(case.task, status=Status.ANSWERED, answer=case.answer)
            return await reward.score_trajectory(done)

    return list(await asyncio.gather(*map(one, cases)))


def directly(cases: list[Case]) -> list[float | None]:
    """What Math-Verify says, called as its documentation shows."""
    return [float(verify(parse(c.task.answers[0]), parse(c.answer))) for c in cases]


def row(name: str, grader: str, cases: list[Case], scores: list[float | None]) -> Iterator[str]:
    """A row of the table, and a line for each case with another verdict than it should have."""
    others = [(c, score) for c, score in zip(cases, scores, strict=True) if score != float(c.right)]
    good = len(cases) - len(others)
    yield f"| {name} | {grader} | {len(cases)} | {good} | {good / len(cases):.2%} |"
    for case, score in others:
        gold = f"gold {case.task.answers[0]!r}, " if case.task.answers else ""
        yield (
            f"{name}, {case.task.id}, {grader}: {score} for {gold}answer {case.answer[:120]!r},"
            f" should be {float(case.right)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="+")
    parser.add_argument("--limit", type=int, help="items of each file, the first")
    options = parser.parse_args()
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    print("| file | grader | items | as it should be | share |\n|---|---|---|---|---|", flush=True)
    notes: list[str] = []
    for path in options.file:
        cases = read_cases(path)[: options.limit]
        by_tests = "unit_tests" in cases[0].task.meta
        reward = UnitTestReward(GradingSandbox()) if by_tests else MathReward()
        graded = {reward.name: asyncio.run(grade(reward, cases))}
        if not all(case.right for case in cases):
            graded["Math-Verify"] = directly(cases)
        for grader, scores in graded.items():
            line, *others = row(path.name, grader, cases, scores)
            print(line, flush=True)
            notes += others
    print(*["", *notes], sep="\n")


if __name__ == "__main__":
    main()
