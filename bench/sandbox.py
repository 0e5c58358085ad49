"""Measure the speed of the sandbox, compared with a plain `python -c`.

    python bench/sandbox.py [--rounds 5] [--runs 100]

Each round has sequential runs in the sandbox, plain runs, and concurrent runs in the sandbox. The
output is the median over the rounds, so that temporary load of the machine affects one round and
not the comparison.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import subprocess
import sys
import time

from fieldcraft.extensions.sandbox.sandbox import Sandbox

PROGRAM = "print(sum(range(100)))"
FUNCTION = "def double(values):\n    return [2 * v for v in values]\n"
TESTS = "\n".join(f"assert double([{n}, 1]) == [{2 * n}, 2]" for n in range(10))
WITH_LIBRARIES = "import numpy, sympy\nprint(sum(range(100)))"


async def one_after_the_other(sandbox: Sandbox, runs: int, program: str) -> list[float]:
    """Return the seconds of each run."""
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        done = await sandbox.run(program)
        seconds.append(time.perf_counter() - began)
        assert done.stdout == "4950\n", done
    return seconds


async def tested(sandbox: Sandbox, runs: int, apart: bool) -> list[float]:
    """Return the seconds of each run with tests, in a separate process or after the program."""
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        tests = sandbox.test(FUNCTION, TESTS) if apart else sandbox.run(FUNCTION + TESTS)
        assert (await tests).ok
        seconds.append(time.perf_counter() - began)
    return seconds


async def all_at_once(sandbox: Sandbox, runs: int) -> float:
    """Return the runs per second."""
    began = time.perf_counter()
    done = await asyncio.gather(*(sandbox.run(WITH_LIBRARIES) for _ in range(runs)))
    assert all(run.stdout == "4950\n" for run in done)
    return runs / (time.perf_counter() - began)


def plain(runs: int, program: str) -> list[float]:
    """Return the seconds of each run in a new interpreter."""
    seconds = []
    for _ in range(runs):
        began = time.perf_counter()
        subprocess.run([sys.executable, "-I", "-c", program], check=True, capture_output=True)
        seconds.append(time.perf_counter() - began)
    return seconds


def percentile(seconds: list[float], share: float) -> float:
    """Return a percentile in milliseconds."""
    return 1000 * sorted(seconds)[min(int(share * len(seconds)), len(seconds) - 1)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--runs", type=int, default=100, help="per round and kind")
    options = parser.parse_args()
    columns: dict[str, list[float]] = {}

    def note(name: str, value: float) -> None:
        columns.setdefault(name, []).append(value)

    with Sandbox() as sandbox:
        asyncio.run(one_after_the_other(sandbox, 5, WITH_LIBRARIES))
        for _ in range(options.rounds):
            found = asyncio.run(one_after_the_other(sandbox, options.runs, WITH_LIBRARIES))
            note("sandbox, numpy and sympy loaded: p50, ms", percentile(found, 0.5))
            note("sandbox: p95, ms", percentile(found, 0.95))
            behind = asyncio.run(tested(sandbox, options.runs, apart=False))
            apart = asyncio.run(tested(sandbox, options.runs, apart=True))
            note("ten tests after their program, forgeable: p50, ms", percentile(behind, 0.5))
            note("ten tests in a separate process: p50, ms", percentile(apart, 0.5))
            bare = plain(max(options.runs // 5, 1), PROGRAM)
            note("python -c, nothing imported: p50, ms", percentile(bare, 0.5))
            note("python -c: p95, ms", percentile(bare, 0.95))
            loaded = plain(1, WITH_LIBRARIES)
            note("python -c, numpy and sympy imported: ms", percentile(loaded, 0.5))
            note(
                "p50 of python -c / p50 of the sandbox",
                statistics.median(bare) / statistics.median(found),
            )
            note("sandbox, concurrent: runs/s", asyncio.run(all_at_once(sandbox, 2 * options.runs)))
    print("| measured | median | minimum | maximum |\n|---|---|---|---|")
    for name, values in columns.items():
        cells = (statistics.median(values), min(values), max(values))
        print(f"| {name} | {' | '.join(f'{value:.2f}' for value in cells)} |")


if __name__ == "__main__":
    main()
