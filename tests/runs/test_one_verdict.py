"""One verdict for every use: answers that only a question's own grader tells right from wrong."""

import ast
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

import fieldcraft
from chat_server import completion
from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.agents.prompted import Attempt, End
from fieldcraft.config.collection import Collect
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import JudgeModel
from fieldcraft.data.collect import Collection
from fieldcraft.data.filters import apply_filters
from fieldcraft.data.grading import Grader
from fieldcraft.data.selection import Tallies, sample
from fieldcraft.data.sources import read_tasks
from fieldcraft.data.steps_io import read_demonstrations, write_demonstrations
from fieldcraft.data.teachers import Way
from fieldcraft.dialects import get_dialect
from fieldcraft.endpoints.openai import ChatEndpoint
from fieldcraft.evals.metrics import summarise
from fieldcraft.evals.run import answer_rubric, evaluate
from fieldcraft.evals.verifiers import note_picks, vote
from fieldcraft.recipes.loading import load_recipe, parse_recipe
from fieldcraft.records.events import nobody
from fieldcraft.rewards.grading import grader_of
from fieldcraft.rewards.judge import Judge
from fieldcraft.rewards.programs import StdinTests, UnitTests
from fieldcraft.runs.build import make_correct, make_rubric
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.file_inputs import FileInputs
from fieldcraft.tools.serving import serving
from fieldcraft.types import Answer, Reward, Status, Step, Task, Thought, Trajectory
from syntax_trees import tree_of
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
# Only that of the plain question is right by words alone.
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
EQUALITY = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)
PACKAGE = Path(fieldcraft.__file__).parent
BY_WHAT_IT_ENDS_IN = {True: RIGHT, False: WRONG}
DIALECT = get_dialect("search-r1", tiny_tokenizer())


async def judge_of_the_test(request: Request) -> Response:
    """Calls correct what it reads of a right answer."""
    body = await request.json()
    message = body["messages"][0]["content"]
    right = any(RIGHT[name] in message for name in ("judged", "open"))
    return completion(f"Verdict: {'correct' if right else 'incorrect'}")


@dataclass(frozen=True)
class Graded:
    """What the tests grade with, all of one recipe."""

    recipe: Recipe
    tasks: dict[str, Task]
    judge: Judge
    correct: Reward

    @property
    def grader(self) -> Grader:
        return Grader(self.correct)


@pytest.fixture(scope="module")
def judge_url() -> Iterator[str]:
    app = Starlette(routes=[Route("/v1/chat/completions", judge_of_the_test, methods=["POST"])])
    with serving(app) as url:
        yield f"{url}/v1"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "tasks.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in RECORDS))
    tasks = read_tasks(folder / "tasks.jsonl")
    shown = [(t, steps(text[t.id])) for text in (RIGHT, WRONG) for t in tasks]
    write_demonstrations(folder / "shown.jsonl", shown)
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
            *(f"model={model}", "correct=auto", "dialect=search-r1", "tools=[]"),
            *(f"judge.url={judge_url}", "judge.model=m", "judge.votes=1"),
            *("budget.total_tokens=2000", "evaluation.splits.heldout=3"),
        ],
    )
    judge = Judge(ChatEndpoint(judge_url, "m"), votes=1)
    runner = Unguarded()
    correct = make_correct(recipe, judge, UnitTests(runner), StdinTests(runner))
    tasks = {task.id: task for task in read_tasks(files["tasks"])}
    return Graded(recipe, tasks, judge, correct)


def steps(answer: str) -> list[Step]:
    return [Thought("I think."), Answer(answer)]


def answered(task: Task, right: bool) -> Trajectory:
    text = BY_WHAT_IT_ENDS_IN[right][task.id]
    return Trajectory(task, status=Status.ANSWERED, answer=text, well_formed=True)


# -- every use ---------------------------------------------------------------------------------

Verdicts = dict[tuple[str, bool], bool | None]  # task and what it was answered with
Use = Callable[[Graded, Path], Awaitable[Verdicts]]


def asking_others(recipe: Recipe, folder: Path) -> Recipe:
    """The recipe with an evaluation of another question, so that none is held out of training."""
    file = folder / "others.jsonl"
    file.write_text('{"question": "Who?", "answer": "Bo"}')
    asked = recipe.evaluation.model_copy(update={"tasks": {"others": file}, "splits": {}})
    return recipe.model_copy(update={"evaluation": asked})


async def evaluation(graded: Graded, folder: Path) -> Verdicts:
    found: Verdicts = {}
    for right in (True, False):

        async def run(task: Task, key: str, right: bool = right) -> Trajectory:
            return answered(task, right)

        rubric = answer_rubric(graded.judge, graded.correct)
        done = await evaluate([*graded.tasks.values()], run, rubric, 4, "it", nobody)
        assert {t.task.id: t.correct for t in done} == GRADERS
        found |= {(t.task.id, right): t.right for t in done}
        summary = summarise(done, None, (1.0, 1.0))
        assert (summary["em"], summary["correct"]) == (float(right), right * len(RECORDS))
        assert (summary["cost_per_success"] is None) == (not right)
    return found


async def selection(graded: Graded, folder: Path) -> Verdicts:
    found: Verdicts = {}
    for right in (True, False):

        async def is_right(task: Task, key: str, right: bool = right) -> bool | None:
            return await graded.grader.right(task, steps(BY_WHAT_IT_ENDS_IN[right][task.id]))

        tallies = Tallies(folder / f"{right}.jsonl")
        tasks = [*graded.tasks.values()]
        await sample(tallies, "it", tasks, 2, 2, is_right, lambda done: None)
        found |= {
            (name, right): {1.0: True, 0.0: False, None: None}[tally.rate]
            for name, tally in tallies.of("it").items()
        }
    return found


class Teacher:
    """Answers wrong, and then right."""

    async def attempt(self, task: Task, way: Way, key: str) -> Attempt:
        text = BY_WHAT_IT_ENDS_IN[key.endswith(":1")][task.id]
        return Attempt(tuple(steps(text)), End.ANSWERED)

    def pairs(self, task: Task, thinking: Sequence[Attempt], acting: Sequence[Attempt]) -> str:
        return "none"


async def collection(graded: Graded, folder: Path) -> Verdicts:
    settings = Collect(questions=6, contrast=0, tries=2)
    found = Collection(folder, [*graded.tasks.values()], settings, 0, (Way.COT,))
    await found.run(Teacher(), graded.grader, 2, lambda ended, kept: None)
    found.write(Teacher())
    kept = {t.id: t.meta["right"] for t, _ in read_demonstrations(folder / "demonstrations.jsonl")}
    left = read_demonstrations(folder / "rejected.jsonl")
    assert {task.meta["rejected"] for task, _ in left} == {"wrong answer"}
    return {
        **{(name, True): right for name, right in kept.items()},
        **{(task.id, False): task.meta["right"] for task, _ in left},
    }


async def filtering(graded: Graded, folder: Path) -> Verdicts:
    tasks = [*graded.tasks.values()]
    chains = [(t, steps(text[t.id])) for text in (RIGHT, WRONG) for t in tasks]
    found = await apply_filters(chains, {"wrong": {}}, DIALECT, graded.grader, 0)
    assert {reason for _, _, reason in found.dropped} == {"a wrong answer"}
    kept = {(chain.task.id, chain.answer) for chain in found.kept}
    return {
        (task.id, right): (task.id, text[task.id]) in kept
        for right, text in BY_WHAT_IT_ENDS_IN.items()
        for task in tasks
    }


async def training(graded: Graded, folder: Path) -> Verdicts:
    """Mathematics and programs in one step of reinforcement learning."""
    rewards = {"correct": 1.0, "answer_format": 1.0, "plus_minus": 1.0, "otc-grpo": 1.0}
    stage = Rl.model_validate({"steps": 1, "optim": {"lr": 1.0}, "rewards": rewards})
    runner: Any = Unguarded()
    rubric = make_rubric(stage, graded.recipe.budget, graded.judge, "auto", runner)
    found: Verdicts = {}
    for task in graded.tasks.values():
        group = [answered(task, True), answered(task, False)]
        await rubric.prepare(group)
        await rubric.score(group)
        scores = [[t.rewards[name] for name in [*rewards][1:]] for t in group]
        assert scores == [[1.0, 1.0, 1.0], [0.0, -1.0, 0.0]]
        assert [t.reward for t in group] == [4.0, -1.0]
        found |= {(task.id, right): t.right for t, right in zip(group, (True, False), strict=True)}
    return found


async def importing(graded: Graded, folder: Path) -> Verdicts:
    inputs = FileInputs(asking_others(graded.recipe, folder))
    inputs.correct = graded.correct
    kept, reasons = await asyncio.to_thread(inputs.usable_demonstrations, DIALECT, [])
    assert reasons == {"with a wrong answer": len(RECORDS)}
    read = {(t.task.id, t.answer) for t in kept}
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
            rubric = answer_rubric(graded.judge, graded.correct)
            await rubric.prepare(group)
            await rubric.score(group)
            await note_picks(group, [3], vote)
            [picked] = [t for t in group if t.rewards["picked"] == 1]
            assert summarise(group)["sampled"]["best_of"]["mean"] == float(right)
            found[task.id, right] = picked.right
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
    assert {name: grader_of(task) for name, task in graded.tasks.items()} == GRADERS
    assert graded.tasks["math"].meta["graded_by"] == "math"  # by the fields of MATH
    assert "graded_by" not in graded.tasks["plain"].meta


# -- a run, before it and without a judge ------------------------------------------------------


def told(recipe: Recipe, tmp_path: Path) -> tuple[list[str], str]:
    """Problems, and all notes, of a look before the run."""
    notes: list[str] = []
    problems = check_recipe(recipe, tmp_path, lambda name, noted, found: notes.extend(noted))
    return problems, "; ".join(notes)


def test_a_look_before_a_run_says_who_grades_and_asks_nobody(
    graded: Graded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = {"type": "sft", "data": "demonstrations", "steps": 1, "batch": 2, "optim": {"lr": 1.0}}
    apart = asking_others(graded.recipe, tmp_path)
    recipe = parse_recipe({**dump_recipe(apart), "stages": {"sft": stage}})
    asked: list[str] = []

    async def ask(self: Any, trajectory: Trajectory) -> float:
        asked.append(trajectory.task.id)
        return 0.0

    for kind in (Judge, UnitTests, StdinTests):
        monkeypatch.setattr(kind, "ask", ask)
    problems, notes = told(recipe, tmp_path)
    assert problems == []
    for note in ("2 graded by judge", "2 graded by em", "1 graded by math"):
        assert note in notes
    assert "4 are graded by judge in the run" in notes
    assert "2 left out: with a wrong answer" in notes  # of the question and of the mathematics
    assert asked == []
    nobody_there = recipe.model_copy(update={"judge": JudgeModel()})
    problems, _ = told(nobody_there, tmp_path)
    assert problems[0].startswith("2 of 7 questions are graded by a judge, and there is none: set")
    words = recipe.model_copy(update={"correct": "em"})
    [problem] = [p for p in told(words, tmp_path)[0] if "grades by" in p]
    assert "nothing that the reward 'em' grades by: set correct=auto" in problem


def test_what_nothing_can_grade_is_left_out_unless_it_is_trusted(
    graded: Graded, tmp_path: Path
) -> None:
    shown = [
        (Task("known", "Who?", ("Ada",)), steps("Ada")),
        (Task("bare", "Who?", ()), steps("Bo")),
    ]
    write_demonstrations(tmp_path / "bare.jsonl", shown)
    update = {"demonstrations": tmp_path / "bare.jsonl", "judge": JudgeModel()}
    recipe = graded.recipe.model_copy(update=update)

    def usable(recipe: Recipe, correct: Reward | None = None) -> tuple[list[str], dict[str, int]]:
        (inputs := FileInputs(recipe)).correct = correct
        kept, reasons = inputs.usable_demonstrations(DIALECT, [])
        return [t.task.id for t in kept], reasons

    ungraded = {"with an answer that nothing can grade": 1}
    assert usable(recipe) == (["known"], ungraded)
    assert usable(recipe.model_copy(update={"ungraded": "trust"})) == (["known", "bare"], {})
    wrong = {"with a wrong answer": 1}  # the judge does not know her
    assert usable(recipe, graded.correct) == (["known"], wrong)


def test_no_other_module_compares_answers() -> None:
    """Only rewards do. The exceptions compare accepted answers, or texts of observations."""
    comparing = {"exact_match", "f1", "cover_em", "compared", "normalise"}
    found: set[str] = set()
    for path in PACKAGE.rglob("*.py"):
        name = path.relative_to(PACKAGE).as_posix()
        if name.startswith("rewards/"):
            continue
        for node in ast.walk(tree_of(path)):
            match node:
                case ast.ImportFrom(module="fieldcraft.rewards.answers", names=names):
                    if comparing & {alias.name for alias in names}:
                        found.add(name)
                case ast.Compare(ops=ops) if any(isinstance(op, EQUALITY) for op in ops):
                    attributes = (n.attr for n in ast.walk(node) if isinstance(n, ast.Attribute))
                    if {"answer", "answers"} & {*attributes}:
                        found.add(name)
    assert found == {
        "data/decontamination.py",
        "data/other_names.py",
        "data/rules.py",
        "data/synthesis.py",
        "evals/fidelity.py",
        "runs/examples.py",
    }
