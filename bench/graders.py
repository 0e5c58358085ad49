"""Check graders on known verdicts: gold solutions, and test cases of other projects.

    python bench/graders.py ../shared/data/math/math500.json ../shared/data/code/mbpp_974.jsonl

A FILE is one of the following, detected by its fields:

- questions with gold answers: the reward `math` grades each answer in a box. The box makes it
  different as text, so Math-Verify has to parse it;
- HumanEval or MBPP: the reward `unit_tests` runs each gold program in the sandbox;
- test cases of Math-Verify (gold, pred, expected) or OlympiadBench (GT, Ans): the reward `math`,
  and Math-Verify called directly for comparison.

Each row has the number of items and the number with the expected verdict. All others are listed
below the table.
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
from fieldcraft.extensions.math.reward import MathReward
from fieldcraft.extensions.sandbox.tool import GradingSandbox
from fieldcraft.rewards.programs import UnitTestReward
from fieldcraft.rewards.rubric import AsyncReward
from fieldcraft.types import Status, Task, Trajectory, UserError

AT_ONCE = 8


@dataclass(frozen=True)
class Case:
    """An answer, and its expected verdict."""

    task: Task
    answer: str
    right: bool = True


def read_cases(path: Path) -> list[Case]:
    """Read the cases of a file. Raises UserError for a file of another kind."""
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
    """Return the gold solution of a task. Raises UserError if it has none."""
    match record:
        case {"prompt": str(prompt), "canonical_solution": str(body)}:
            return prompt + body
        case {"code": str(code)}:
            return code
    if not task.answers:
        raise UserError(f"the task '{task.id}' has no gold solution: give another file.")
    return f"\\boxed{{{task.answers[0]}}}"


async def grade(reward: AsyncReward, cases: list[Case]) -> list[float | None]:
    """Return the scores of all cases."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(case: Case) -> float | None:
        async with gate:
            done = Trajectory(case.task, status=Status.ANSWERED, answer=case.answer)
            return await reward.score_trajectory(done)

    return list(await asyncio.gather(*map(one, cases)))


def directly(cases: list[Case]) -> list[float | None]:
    """Return the scores of Math-Verify, called as in its documentation."""
    return [float(verify(parse(c.task.answers[0]), parse(c.answer))) for c in cases]


def row(name: str, grader: str, cases: list[Case], scores: list[float | None]) -> Iterator[str]:
    """Yield a row of the table, and a line for each case with an unexpected verdict."""
    others = [(c, score) for c, score in zip(cases, scores, strict=True) if score != float(c.right)]
    good = len(cases) - len(others)
    yield f"| {name} | {grader} | {len(cases)} | {good} | {good / len(cases):.2%} |"
    for case, score in others:
        gold = f"gold {case.task.answers[0]!r}, " if case.task.answers else ""
        yield (
            f"{name}, {case.task.id}, {grader}: {score} for {gold}answer {case.answer[:120]!r},"
            f" expected {float(case.right)}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="+")
    parser.add_argument("--limit", type=int, help="number of items of each file, from the start")
    options = parser.parse_args()
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    print("| file | grader | items | as expected | share |\n|---|---|---|---|---|", flush=True)
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
