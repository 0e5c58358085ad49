"""One verdict for every use: answers that only a question's own grader judges correctly."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from chat_server import completion
from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from environment_parts import FunctionEnvironment
from fieldcraft.config.collection import CollectConfig
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import JudgeConfig
from fieldcraft.data.grading import Grader
from fieldcraft.data.sample_tallies import TallyJournal, sample_answers
from fieldcraft.data.steps_io import read_demonstrations, write_demonstrations
from fieldcraft.data.tasks import read_tasks
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.evaluation.evaluate import evaluate_tasks, make_verdict_rubric
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.evaluation.verifiers import pick_majority, record_picks
from fieldcraft.extensions.curation.collection import DemonstrationCollection
from fieldcraft.extensions.curation.filters import apply_filters
from fieldcraft.extensions.curation.react_agent import AgentAttempt, AttemptStatus
from fieldcraft.extensions.curation.teachers import AnswerMode
from fieldcraft.recipes.loading import load_recipe, parse_recipe
from fieldcraft.records.events import ignore_event
from fieldcraft.rewards.grading import resolve_grader
from fieldcraft.rewards.judge import JudgeReward
from fieldcraft.rewards.programs import StdinTestReward, UnitTestReward
from fieldcraft.runs.build import make_rubric, make_verdict_reward
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.file_inputs import FileData
from fieldcraft.tools.chat_client import ChatClient
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Answer, DemoStep, Reward, Status, Task, Thought, Trajectory
from unguarded import Unguarded

pytest.importorskip("math_verify", reason="mathematics needs the extra code")
RECORDS: list[dict[str, Any]] = [
    {"id": "plain", "question": "Where was Ada Lind born?", "answer": "Northport"},
    {"id": "math", "problem": "What is 1/2 of 3/2?", "answer": "\\frac{3}{4}", "level": 1},
    {
        "id": "stdin",
        "problem": "Print the sum of two numbers.",
        "tests": {"inputs": ["1 2\n", "4 5\n"], "outputs": ["3\n", "9\n"]},
    },
    {"task_id": "unit", "text": "Write twice(n).", "test_list": ["assert twice(4) == 8"]},
    {
        "id": "judged",
        "question": "Why is the sky blue?",
        "golden_answers": ["Rayleigh scattering"],
        "metadata": {"graded_by": "judge"},
    },
    {"id": "open", "question": "Name a good book.", "graded_by": "judge"},
]
GRADERS = {
    "plain": "em", "math": "math", "stdin": "stdin_tests", "unit": "unit_tests",
    "judged": "judge", "open": "judge",
}  # fmt: skip
# By words alone, only the answer of the plain question is correct.
RIGHT = {
    "plain": "the Northport",
    "math": "0.75",
    "stdin": "print(sum(map(int, input().split())))",
    "unit": "```python\ndef twice(n):\n    return n + n\n```",
    "judged": "Air scatters blue light more.",
    "open": "Middlemarch, as most say.",
}
WRONG = {
    "plain": "Southport",
    "math": "\\frac{4}{3}",
    "stdin": "print(3)",  # passes the first of two tests
    "unit": "def twice(n):\n    return n * n",
    "judged": "It mirrors the sea.",
    "open": "A stone.",
}
BY_WHAT_IT_ENDS_IN = {True: RIGHT, False: WRONG}
DIALECT = make_dialect("search-r1", tiny_tokenizer())


async def judge_of_the_test(request: Request) -> Response:
    """Judge an answer as correct if it contains the right text."""
    body = await request.json()
    message = body["messages"][0]["content"]
    right = any(RIGHT[name] in message for name in ("judged", "open"))
    return completion(f"Verdict: {'correct' if right else 'incorrect'}")


@dataclass(frozen=True)
class Graded:
    """Graders of the tests, all of one recipe."""

    recipe: Recipe
    tasks: dict[str, Task]
    judge: JudgeReward
    correct: Reward

    @property
    def grader(self) -> Grader:
        return Grader(self.correct)


@pytest.fixture(scope="module")
def judge_url() -> Iterator[str]:
    app = Starlette(routes=[Route("/v1/chat/completions", judge_of_the_test, methods=["POST"])])
    with serve_in_thread(app) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in RECORDS))
    tasks = read_tasks(folder / "tasks.jsonl")
    demonstrations = [(t, steps(text[t.id])) for text in (RIGHT, WRONG) for t in tasks]
    write_demonstrations(folder / "shown.jsonl", demonstrations)
    return {"tasks": folder / "tasks.jsonl", "demonstrations": folder / "shown.jsonl"}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model"), "qwen2")


@pytest.fixture(scope="module")
def graded(files: dict[str, Path], model: Path, judge_url: str) -> Graded:
    recipe = load_recipe(
        "torl",
        [
            *(f"{key}={path}" for key, path in files.items()),
            *(f"model={model}", "verdict_reward=auto", "dialect=search-r1", "tools=[]"),
            *(f"judge.url={judge_url}", "judge.model=m", "judge.votes=1"),
            *("budget.max_context_tokens=2000", "evaluation.splits.heldout=3"),
        ],
    )
    judge = JudgeReward(ChatClient(judge_url, "m"), votes=1)
    runner = Unguarded()
    correct = make_verdict_reward(recipe, judge, UnitTestReward(runner), StdinTestReward(runner))
    tasks = {task.id: task for task in read_tasks(files["tasks"])}
    return Graded(recipe, tasks, judge, correct)


def steps(answer: str) -> list[DemoStep]:
    return [Thought("I think."), Answer(answer)]


def answered(task: Task, right: bool) -> Trajectory:
    text = BY_WHAT_IT_ENDS_IN[right][task.id]
    return Trajectory(task, status=Status.ANSWERED, answer=text, well_formed=True)


# -- every use ---------------------------------------------------------------------------------

Verdicts = dict[tuple[str, bool], bool | None]  # task and its answer
Use = Callable[[Graded, Path], Awaitable[Verdicts]]


def asking_others(recipe: Recipe, folder: Path) -> Recipe:
    """Return the recipe with an evaluation of another question, so that it holds none out."""
    file = folder / "others.jsonl"
    file.write_text('{"question": "Who?", "answer": "Bo"}')
    evaluation = recipe.evaluation.model_copy(update={"tasks": {"others": file}, "splits": {}})
    return recipe.model_copy(update={"evaluation": evaluation})


async def evaluation(graded: Graded, folder: Path) -> Verdicts:
    found: Verdicts = {}
    for right in (True, False):

        async def run(task: Task, key: str, right: bool = right) -> Trajectory:
            return answered(task, right)

        rubric = make_verdict_rubric(graded.judge, graded.correct)
        done = await evaluate_tasks(
            [*graded.tasks.values()], FunctionEnvironment(run), None, rubric, 4, "it", ignore_event
        )
        assert {t.task.id: t.correct for t in done} == GRADERS
        found |= {(t.task.id, right): t.is_correct for t in done}
        summary = summarise_evaluation(done, None, (1.0, 1.0))
        assert (summary["em"], summary["correct"]) == (float(right), right * len(RECORDS))
        assert (summary["cost_per_success"] is None) == (not right)
    return found


async def selection(graded: Graded, folder: Path) -> Verdicts:
    found: Verdicts = {}
    for right in (True, False):

        async def is_right(task: Task, key: str, right: bool = right) -> bool | None:
            return await graded.grader.grade(task, steps(BY_WHAT_IT_ENDS_IN[right][task.id]))

        tallies = TallyJournal(folder / f"{right}.jsonl")
        tasks = [*graded.tasks.values()]
        await sample_answers(tallies, "it", tasks, 2, 2, is_right, lambda done: None)
        found |= {
            (name, right): {1.0: True, 0.0: False, None: None}[tally.rate]
            for name, tally in tallies.get_tallies("it").items()
        }
    return found


class Teacher:
    """A teacher that answers first wrong and then correctly."""

    async def attempt(self, task: Task, mode: AnswerMode, key: str) -> AgentAttempt:
        text = BY_WHAT_IT_ENDS_IN[key.endswith(":1")][task.id]
        return AgentAttempt(tuple(steps(text)), AttemptStatus.ANSWERED)

    def make_pairs(
        self, task: Task, thinking: Sequence[AgentAttempt], acting: Sequence[AgentAttempt]
    ) -> str:
        return "none"


async def collection(graded: Graded, folder: Path) -> Verdicts:
    settings = CollectConfig(questions=6, pair_questions=0, attempts=2)
    found = DemonstrationCollection(
        folder, [*graded.tasks.values()], settings, 0, (AnswerMode.COT,)
    )
    await found.run(Teacher(), graded.grader, 2, lambda ended, kept: None)
    found.write(Teacher())
    given = {t.id: t.meta["right"] for t, _ in read_demonstrations(folder / "demonstrations.jsonl")}
    left = read_demonstrations(folder / "rejected.jsonl")
    assert {task.meta["rejected"] for task, _ in left} == {"wrong answer"}
    return {
        **{(name, True): right for name, right in given.items()},
        **{(task.id, False): task.meta["right"] for task, _ in left},
    }


async def filtering(graded: Graded, folder: Path) -> Verdicts:
    tasks = [*graded.tasks.values()]
    chains = [(t, steps(text[t.id])) for text in (RIGHT, WRONG) for t in tasks]
    found = await apply_filters(chains, {"wrong": {}}, DIALECT, graded.grader, 0)
    assert {reason for _, _, reason in found.dropped} == {"a wrong answer"}
    accepted = {(chain.task.id, chain.answer) for chain in found.accepted}
    return {
        (task.id, right): (task.id, text[task.id]) in accepted
        for right, text in BY_WHAT_IT_ENDS_IN.items()
        for task in tasks
    }


async def training(graded: Graded, folder: Path) -> Verdicts:
    """Train on mathematics and programs in one step of reinforcement learning."""
    rewards = {"correct": 1.0, "answer_format": 1.0, "plus_minus": 1.0, "otc-grpo": 1.0}
    stage = Rl.model_validate({"steps": 1, "optim": {"lr": 1.0}, "rewards": rewards})
    runner: Any = Unguarded()
    rubric = make_rubric(stage, graded.recipe.budget, graded.judge, "auto", runner)
    found: Verdicts = {}
    for task in graded.tasks.values():
        group = [answered(task, True), answered(task, False)]
        await rubric.score_async_rewards(group)
        await rubric.score(group)
        scores = [[t.rewards[name] for name in [*rewards][1:]] for t in group]
        assert scores == [[1.0, 1.0, 1.0], [0.0, -1.0, 0.0]]
        assert [t.reward for t in group] == [4.0, -1.0]
        found |= {
            (task.id, right): t.is_correct for t, right in zip(group, (True, False), strict=True)
        }
    return found


async def importing(graded: Graded, folder: Path) -> Verdicts:
    inputs = FileData(asking_others(graded.recipe, folder))
    inputs.verdict_reward = graded.correct
    encoder = DemonstrationEncoder(DIALECT, [])
    usable, reasons = await asyncio.to_thread(inputs.load_usable_demonstrations, encoder)
    assert reasons == {"with a wrong answer": len(RECORDS)}
    read = {(t.task.id, t.answer) for t in usable}
    return {
        (name, right): (name, text[name]) in read
        for right, text in BY_WHAT_IT_ENDS_IN.items()
        for name in GRADERS
    }


async def best_of_three(graded: Graded, folder: Path) -> Verdicts:
    found: Verdicts = {}
    for task in graded.tasks.values():
        for right in (True, False):
            group = [answered(task, r) for r in (not right, right, right)]
            rubric = make_verdict_rubric(graded.judge, graded.correct)
            await rubric.score_async_rewards(group)
            await rubric.score(group)
            await record_picks(group, [3], pick_majority)
            [picked] = [t for t in group if t.rewards["picked"] == 1]
            assert summarise_evaluation(group)["sampled"]["best_of"]["mean"] == float(right)
            found[task.id, right] = picked.is_correct
    return found


@pytest.mark.parametrize(
    "use",
    [evaluation, selection, collection, filtering, training, importing, best_of_three],
    ids=lambda use: use.__name__,
)
def test_the_verdict_is_the_same_in_every_use(use: Use, graded: Graded, tmp_path: Path) -> None:
    found = asyncio.run(use(graded, tmp_path))
    assert found == {(name, right): right for name in GRADERS for right in (True, False)}


def test_each_task_carries_or_implies_its_grader(graded: Graded) -> None:
    assert {name: resolve_grader(task) for name, task in graded.tasks.items()} == GRADERS
    assert graded.tasks["math"].meta["graded_by"] == "math"  # by the fields of MATH
    assert "graded_by" not in graded.tasks["plain"].meta


# -- a check before a run, without a judge -----------------------------------------------------


def run_check(recipe: Recipe, tmp_path: Path) -> tuple[list[str], str]:
    """Return the problems and all notes of a check before the run."""
    notes: list[str] = []
    problems = check_recipe(recipe, tmp_path, lambda name, noted, found: notes.extend(noted))
    return problems, "; ".join(notes)


def test_a_look_before_a_run_says_who_grades_and_asks_nobody(
    graded: Graded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = {
        "type": "sft",
        "dataset": "demonstrations",
        "steps": 1,
        "batch_size": 2,
        "optim": {"lr": 1.0},
    }
    apart = asking_others(graded.recipe, tmp_path)
    recipe = parse_recipe({**dump_recipe(apart), "stages": {"sft": stage}})
    judged: list[str] = []

    async def ask(self: Any, trajectory: Trajectory) -> float:
        judged.append(trajectory.task.id)
        return 0.0

    for kind in (JudgeReward, UnitTestReward, StdinTestReward):
        monkeypatch.setattr(kind, "score_trajectory", ask)
    problems, notes = run_check(recipe, tmp_path)
    assert problems == []
    for note in ("2 graded by judge", "2 graded by em", "1 graded by math"):
        assert note in notes
    assert "4 are graded by judge in the run" in notes
    assert "2 left out: with a wrong answer" in notes  # of the question and of the mathematics
    assert judged == []
    nobody_there = recipe.model_copy(update={"judge": JudgeConfig()})
    problems, _ = run_check(nobody_there, tmp_path)
    assert problems[0].startswith(
        "2 of 7 questions are graded by a judge, but none is configured: set"
    )
    words = recipe.model_copy(update={"verdict_reward": "em"})
    [problem] = [p for p in run_check(words, tmp_path)[0] if "grades by" in p]
    assert "nothing that the reward 'em' grades by: set verdict_reward=auto" in problem


def test_what_nothing_can_grade_is_left_out_unless_it_is_trusted(
    graded: Graded, tmp_path: Path
) -> None:
    demonstrations = [
        (Task("known", "Who?", ("Ada",)), steps("Ada")),
        (Task("bare", "Who?", ()), steps("Bo")),
    ]
    write_demonstrations(tmp_path / "bare.jsonl", demonstrations)
    update = {"demonstrations": tmp_path / "bare.jsonl", "judge": JudgeConfig()}
    recipe = graded.recipe.model_copy(update=update)

    def usable(recipe: Recipe, correct: Reward | None = None) -> tuple[list[str], dict[str, int]]:
        (inputs := FileData(recipe)).verdict_reward = correct
        usable_demonstrations, reasons = inputs.load_usable_demonstrations(
            DemonstrationEncoder(DIALECT)
        )
        return [t.task.id for t in usable_demonstrations], reasons

    ungraded = {"with an answer that cannot be graded": 1}
    assert usable(recipe) == (["known"], ungraded)
    assert usable(recipe.model_copy(update={"ungraded": "trust"})) == (["known", "bare"], {})
    wrong = {"with a wrong answer": 1}  # the judge does not know the name
    assert usable(recipe, graded.correct) == (["known"], wrong)
