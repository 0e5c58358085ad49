"""The programs that answer without a model."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.evaluation.evaluate import evaluate_tasks, make_verdict_rubric
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.extensions.search.index import build_index
from fieldcraft.extensions.search.tool import SearchTool
from fieldcraft.extensions.worlds.atlas.generation import generate_atlas
from fieldcraft.extensions.worlds.atlas.oracle import get_path
from fieldcraft.extensions.worlds.atlas.program import one_search, parse_question, program
from fieldcraft.extensions.worlds.atlas.questions import draw_evaluation_tasks
from fieldcraft.runs.evaluating import find_workflow
from fieldcraft.types import CallOutcome, Status, Task, Trajectory, UserError

WORLD = generate_atlas(people=60, taught=0.4, heldout=0.5, seed=0)
TOKENIZER = tiny_tokenizer()
DIALECT = make_dialect("autocoa", TOKENIZER, "")
SILENT = Policy(engine=ScriptedEngine(TOKENIZER, []))  # a model that must not be called

Workflow = Callable[[Task, Policy, ToolEnvironment, str], Awaitable[Trajectory]]


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> SearchTool:
    folder = tmp_path_factory.mktemp("search")
    corpus = folder / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(article) + "\n" for article in WORLD.make_passages()))
    return SearchTool(build_index(corpus, folder / "index"), topk=1)


def evaluate_workflow(
    workflow: Workflow, search: SearchTool, tasks: Sequence[Task], **budget: int
) -> list[Trajectory]:
    env = ToolEnvironment(DIALECT, [search], BudgetConfig(**budget), workflow=workflow)
    run = evaluate_tasks(
        tasks,
        env,
        SILENT,
        make_verdict_rubric(),
        concurrency=1,
        name="program",
        emit=lambda event: None,
    )
    return asyncio.run(run)


def test_the_program_answers_every_question(search: SearchTool) -> None:
    splits = {"heldout": 150, "known": 30, "four_hops": 60}
    tasks = draw_evaluation_tasks(WORLD, 0, splits)
    found = evaluate_workflow(program, search, tasks)
    summary = summarise_evaluation(found, "heldout")
    assert {name: part["em"] for name, part in summary["splits"].items()} == dict.fromkeys(
        splits, 1.0
    )
    for trajectory in found:  # one article per hop; a company's article also names the country
        read: set[tuple[str, str]] = set()
        searched = []
        for subject, relation, _ in WORLD.trace_path(get_path(trajectory.task)):
            if (subject, relation) not in read:
                searched.append(subject)
                read |= WORLD.get_article_facts(subject)
        assert [call.arguments["query"] for call in trajectory.calls] == searched
    assert summary["calls_mean"] == summary["calls_optimal_mean"] == 310 / 150
    known = summary["splits"]["known"]  # unlike a model, the program knows no facts
    assert known["calls_optimal_mean"] == 0.0 < 1.5 < known["calls_mean"]
    assert summary["tokens_mean"] == 0.0  # no model took part


def test_one_search_answers_what_one_article_tells(search: SearchTool) -> None:
    tasks = draw_evaluation_tasks(WORLD, 0, {"heldout": 150})
    found = evaluate_workflow(one_search, search, tasks)
    assert {len(trajectory.calls) for trajectory in found} == {1}
    right = {get_path(trajectory.task)[1:] for trajectory in found if trajectory.is_correct}
    assert {len(chain) for chain in right - {("headquarters", "country")}} == {1}
    by_hops = summarise_evaluation(found)["by_hops"]
    assert [by_hops[hops]["em"] for hops in "123"] == [1.0, 1 / by_hops["2"]["n"], 0.0]


def test_what_is_not_found_is_not_answered(search: SearchTool) -> None:
    task = WORLD.make_task(
        next(p for p in WORLD.iterate_paths(["heldout"], 3) if p[1] == "mentor"), "heldout"
    )
    [found] = evaluate_workflow(program, search, [task], max_calls=1)
    assert (found.status, found.answer, found.is_correct) == (Status.NO_ANSWER, None, False)
    assert [call.outcome for call in found.calls] == [CallOutcome.OK, CallOutcome.REFUSED]
    nobody = Task("?", "What is the mayor of Nobody Atall?", ("x",))
    [lost] = evaluate_workflow(program, search, [nobody])
    assert (lost.status, len(lost.calls)) == (Status.NO_ANSWER, 1)


def test_a_question_is_read() -> None:
    assert parse_question("What is the country of the employer of Bran Tel?") == (
        "Bran Tel",
        ["employer", "country"],
    )
    assert parse_question("What is the mayor of Kalo?") == ("Kalo", ["mayor"])
    with pytest.raises(UserError, match=r"of the world atlas alone, not 'Who wrote it\?'"):
        parse_question("Who wrote it?")


def test_a_recipe_names_them() -> None:
    for name in ("program", "one_search"):
        find_workflow(f"fieldcraft.extensions.worlds.atlas.program:{name}")
