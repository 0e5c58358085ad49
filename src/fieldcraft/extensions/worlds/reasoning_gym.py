"""Puzzles of the package reasoning-gym as a world, and its verifiers as a reward.

A generator makes puzzles of one kind from settings, a seed and an index; a task stores only these.
A curriculum of a generator has numbered levels of difficulty. A verifier may accept other answers
than the generator's own one, and give a part of the score.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from typing import Any

from pydantic import NonNegativeInt, PositiveFloat, TypeAdapter, ValidationError

from fieldcraft.data.world import Demonstration, World
from fieldcraft.extensions.sandbox.limits import ProgramStatus, SandboxLimits
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from fieldcraft.records.meta import GRADED_BY_KEY
from fieldcraft.rewards.rubric import AsyncReward
from fieldcraft.tools.killable_pool import KillablePool
from fieldcraft.types import Answer, Task, Trajectory, UserError

PACKAGE = "reasoning_gym"
WORKER = "fieldcraft.extensions.worlds.reasoning_gym_worker"
PUZZLE_KEY = "puzzle"  # of `meta`: generator, settings, seed and index
WEIGHT_KEY = "weight"
HARDER_SPLIT = "harder"
SPLITS = {"heldout": "Puzzles that do not occur in training", HARDER_SPLIT: "The next level"}
HELDOUT_SHARE = 0.2  # of all puzzles
NUM_TOKENIZER_PUZZLES = 400
DEFAULT_DEMONSTRATIONS = 1000
MAX_CACHED_SCORES = 1 << 16
VERIFIER = "fieldcraft.extensions.worlds.reasoning_gym_verifier"
NUM_VERIFIERS = 2  # processes
VERIFIER_SECONDS = 10.0  # of CPU time per answer
SANDBOX_LIMITS = SandboxLimits(wall_seconds=120.0, cpu_seconds=60)  # with the import
_WEIGHT: TypeAdapter[float] = TypeAdapter(PositiveFloat)


class ReasoningGymWorld(World):
    """World of puzzles from generators of reasoning-gym."""

    splits = SPLITS
    datasets = ("demonstrations",)
    toolless_datasets = ("demonstrations",)

    def __init__(
        self,
        seed: int,
        generators: Mapping[str, dict[str, Any] | None],
        levels: Sequence[NonNegativeInt] = (),
    ) -> None:
        """Check the generators.

        Args:
            seed: seed of the run.
            generators: settings by name of the generator, and `weight`, its share among them.
            levels: levels of the generators' curricula; none: the settings alone. `level` in the
                metadata of a question is its level, so a stage with `where: {level: 0}` asks only
                these.
        """
        super().__init__(seed)
        if not generators:
            raise UserError(
                "the world reasoning-gym needs generators, as in generators={chain_sum: {}}."
            )
        self.weights = {name: _parse_weight(name, keys or {}) for name, keys in generators.items()}
        self.levels = tuple(levels)
        self._settings = {
            name: {key: value for key, value in (keys or {}).items() if key != WEIGHT_KEY}
            for name, keys in generators.items()
        }
        self._draw("train", 0, self.levels)

    def passages(self) -> list[dict[str, str]]:
        """Return no passages, because this world has no search."""
        return []

    def training_questions(self, count: int) -> list[Task]:
        return self._draw("train", count, self.levels)

    def evaluation_questions(self, splits: Mapping[str, int]) -> list[Task]:
        found: list[Task] = []
        for split, size in splits.items():
            levels = self._get_next_levels() if split == HARDER_SPLIT and size else self.levels
            found += self._draw(split, size, levels)
        return found

    def demonstrations(self, dataset: str, count: int | None) -> list[Demonstration]:
        tasks = self.training_questions(count or DEFAULT_DEMONSTRATIONS)
        return [(task, [Answer(task.answers[0])]) for task in tasks if task.answers]

    def tokenizer_texts(self, tags: Sequence[str]) -> Iterator[str]:
        yield from tags
        for task in self.training_questions(NUM_TOKENIZER_PUZZLES):
            yield from (task.question, *task.answers)

    def _get_next_levels(self) -> tuple[int, ...]:
        if not self.levels:
            raise UserError(
                f"the split '{HARDER_SPLIT}' has the next level of the curricula: set world.levels,"
                f" or leave out evaluation.splits.{HARDER_SPLIT}."
            )
        return (max(self.levels) + 1,)

    def _draw(self, split: str, count: int, levels: Sequence[int]) -> list[Task]:
        """Return distinct puzzles of a split, fewer if the generators repeat themselves."""
        request = {
            "generators": self._settings,
            "weights": self.weights,
            "levels": list(levels),
            "seed": 3 * self.seed + ["train", *self.splits].index(split),
            "heldout": HELDOUT_SHARE,
            "is_heldout": split != "train",
            "count": count,
        }
        return [_make_task(puzzle, split) for puzzle in _draw_puzzles(json.dumps(request))]


def _parse_weight(name: str, keys: Mapping[str, Any]) -> float:
    try:
        return _WEIGHT.validate_python(keys.get(WEIGHT_KEY, 1.0))
    except ValidationError as error:
        raise UserError(f"the weight of the generator '{name}' must be a number > 0.") from error


@lru_cache(maxsize=16)
def _draw_puzzles(request: str) -> list[dict[str, Any]]:
    """Return the puzzles of a request to the worker. Raises UserError for invalid settings, and if
    reasoning-gym is missing or fails."""
    require_package()
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-W", "ignore", "-m", WORKER]
    ended = subprocess.run(command, input=request, capture_output=True, text=True, env=environment)
    if ended.returncode:
        cause = ended.stderr.strip().rpartition("\n")[2]
        raise UserError(f"reasoning-gym failed ({cause}): change the settings of its generators.")
    reply = json.loads(ended.stdout.strip().rpartition("\n")[2])
    if "error" in reply:
        raise UserError(reply["error"])
    puzzles: list[dict[str, Any]] = reply["puzzles"]
    return puzzles


def _make_task(puzzle: Mapping[str, Any], split: str) -> Task:
    """Return the question of a puzzle, with all that its verifier needs."""
    name, index, level = puzzle["generator"], puzzle["index"], puzzle["level"]
    keys = ("generator", "settings", "seed", "index")
    meta = {"split": split, "type": name, GRADED_BY_KEY: ReasoningGymReward.name}
    meta |= {PUZZLE_KEY: {key: puzzle[key] for key in keys}}
    meta |= {} if level is None else {"level": level}
    answers = () if puzzle["answer"] is None else (puzzle["answer"],)
    task_id = f"{name}-{puzzle['seed']}-{index}" + ("" if level is None else f"-level{level}")
    return Task(task_id, puzzle["question"], answers, meta)


def require_package() -> None:
    """Raise UserError if reasoning-gym is not installed."""
    if find_spec(PACKAGE) is None:
        raise UserError(
            "the world reasoning-gym needs the package: pip install 'fieldcraft[reasoning-gym]'."
        )


# -- verifiers ---------------------------------------------------------------------------------

# Most verifiers compare texts, in a process that is killed if it takes too long. Some evaluate an
# answer as a formula, which can run any code; these run in the sandbox, for seconds per answer.
_PROGRAM = """
import json, sys
from reasoning_gym.factory import create_dataset
request = json.loads(sys.stdin.read())
puzzles = create_dataset(request["generator"], seed=request["seed"], **request["settings"])
puzzle = puzzles[request["index"]]
if puzzle["question"].strip() == request["question"]:
    try:
        print(float(puzzles.score_answer(request["answer"], puzzle)))
    except Exception:
        print(0.0)
"""


class ReasoningGymReward(AsyncReward):
    """Score that the verifier of a puzzle's generator gives to an answer, from 0 to 1. A missing
    answer scores 0, and so does one that the verifier cannot read or that exceeds its time. None
    for a task that is no puzzle of the installed version, and if the sandbox lost the verifier."""

    name = "reasoning_gym"

    def __init__(self) -> None:
        require_package()
        self._scores: dict[str, float] = {}

    async def score_trajectory(self, trajectory: Trajectory) -> float | None:
        task, answer = trajectory.task, (trajectory.answer or "").strip()
        if PUZZLE_KEY not in task.meta:
            return None
        if not answer:
            return 0.0
        puzzle = task.meta[PUZZLE_KEY] | {"question": task.question, "answer": answer}
        request = json.dumps(puzzle, sort_keys=True)
        if request not in self._scores:
            score = await _verify(puzzle, request)
            if score is None:
                return None
            if len(self._scores) >= MAX_CACHED_SCORES:
                self._scores.clear()
            self._scores[request] = score
        return self._scores[request]


async def _verify(puzzle: Mapping[str, Any], request: str) -> float | None:
    pool = _open_pool()
    reply = await asyncio.wrap_future(pool.submit(lambda: _request_score(pool, puzzle)))
    if not reply.get("sandboxed"):
        score = reply.get("score", 0.0)
        return None if score is None else _clip(score)
    result = await _open_sandbox().run(_PROGRAM, stdin=request)
    if result.status in (ProgramStatus.TIMEOUT, ProgramStatus.MEMORY, ProgramStatus.OUTPUT):
        return 0.0
    try:
        return _clip(float(result.stdout.rpartition("\n")[0].rpartition("\n")[2]))
    except ValueError:
        return None


def _request_score(pool: KillablePool, puzzle: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply of the process; it may once have been killed externally."""
    return pool.request(dict(puzzle)) or pool.request(dict(puzzle))


def _clip(score: float) -> float:
    return min(1.0, max(0.0, score))


@lru_cache
def _open_pool() -> KillablePool:
    return KillablePool(VERIFIER, NUM_VERIFIERS, VERIFIER_SECONDS)


@lru_cache
def _open_sandbox() -> Sandbox:
    return Sandbox(SANDBOX_LIMITS, libraries=("numpy", "sympy"))
