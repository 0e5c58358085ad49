"""Compare ways to grade answers with Math-Verify.

They are the workers of the reward `math`, a session of the sandbox, and a new sandboxed
interpreter for each answer.

    python bench/math_answers.py [--rounds 3]
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable

import typer

from fieldcraft.extensions.math.reward import MathReward
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from fieldcraft.types import Task, Trajectory

PAIRS = [
    (rf"\frac{{{a}}}{{{b}}}", f"{2 * a}/{2 * b}") for a in range(1, 11) for b in (3, 7, 11, 13, 17)
]
Grader = Callable[[str, str], Awaitable[bool]]


def make_program(gold: str, answer: str) -> str:
    """Return a program that prints the verdict."""
    check = f"print(verify(parse({gold!r}), parse({answer!r})))"
    return f"from math_verify import parse, verify\n{check}"


async def measure(grade: Grader) -> float:
    """Return the median of the milliseconds per answer. The first answer is not counted."""
    durations = []
    for gold, answer in [PAIRS[0], *PAIRS]:
        started = time.perf_counter()
        assert await grade(gold, answer)
        durations.append(1e3 * (time.perf_counter() - started))
    return statistics.median(durations[1:])


async def compare(rounds: int) -> None:
    """Print the medians of each round."""
    reward, sandbox = MathReward(), Sandbox(libraries=("sympy", "math_verify"))

    async def grade_by_reward(gold: str, answer: str) -> bool:
        trajectory = Trajectory(Task("q", "?", (gold,)), answer=answer)
        return await reward.score_trajectory(trajectory) == 1.0

    async def grade_by_program(gold: str, answer: str) -> bool:
        result = await sandbox.run(make_program(f"${gold}$", f"${answer}$"))
        return result.stdout == "True\n"

    async with sandbox.open_session() as session:

        async def grade_by_session(gold: str, answer: str) -> bool:
            result = await session.run(make_program(f"${gold}$", f"${answer}$"))
            return result.stdout == "True\n"

        ways = {"workers": grade_by_reward, "session": grade_by_session, "run": grade_by_program}
        for _ in range(rounds):
            medians = {name: await measure(grade) for name, grade in ways.items()}
            print("  ".join(f"{name} {ms:.1f} ms" for name, ms in medians.items()), flush=True)
    sandbox.close()


def main(rounds: int = 3) -> None:
    """Measure each way in turn, `rounds` times."""
    asyncio.run(compare(rounds))


if __name__ == "__main__":
    typer.run(main)
