"""Python API of fieldcraft: load, train, ask, evaluate, in a script, a notebook or a test."""

import asyncio
import json
import re
import runpy
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import fieldcraft as fc
from checkpoints import write_tiny_checkpoint
from cli_parts import sentence, status
from fieldcraft.engine.threads import ThreadCounts
from fieldcraft.records.events import EvaluationCompleted, StepCompleted
from fieldcraft.runs import context

CITIES = ("Turin", "Rome", "Oslo", "Bern", "Lima", "Nice")
TASKS = [fc.Task(city, f"How many people live in {city}?", ("7",)) for city in CITIES]
BUDGET = {"max_calls": 2, "max_turn_tokens": 8, "max_context_tokens": 800}
SMALL: dict[str, Any] = {
    "seed": 1,
    "device": "cpu",
    "evaluation": {"splits": {"heldout": 2}, "workflows": []},
}


@fc.tool
def population(city: str) -> str:
    """How many people live in a city.

    Args:
        city: its name.
    """
    return f"7 live in {city}."


class Placed(fc.StatelessReward):
    """Reward that differs for every rollout of a group, so that every step trains."""

    name = "placed"

    def __init__(self, step: float = 1.0) -> None:
        self.step = step

    def __call__(self, group: Sequence[fc.Trajectory]) -> list[float | None]:
        return [self.step * place for place, _ in enumerate(group)]


def settings(steps: int = 2, **keys: Any) -> fc.Rl:
    given = {
        "questions_per_step": 2,
        "group_size": 2,
        "checkpoint_every": 1,
        "optim": fc.Optim(lr=1e-3),
    }
    return fc.Rl(**{"steps": steps, "rewards": {Placed: 1.0}, **given, **keys})


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("model") / "tiny", "qwen2")


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    before = torch.get_num_threads()
    monkeypatch.setattr(context, "find_fastest_threads", lambda _: ThreadCounts(1, 1))
    yield
    torch.set_num_threads(before)


@pytest.fixture
def agent(model: Path) -> fc.Agent:
    return fc.load(model, dialect="hermes", tools=[population], budget=BUDGET)


def weights(agent: fc.Agent) -> dict[str, torch.Tensor]:
    return load_file(agent.model / "model.safetensors")


def same(one: fc.Agent, other: fc.Agent) -> bool:
    found = weights(other)
    return all(torch.equal(tensor, found[name]) for name, tensor in weights(one).items())


# -- end to end ----------------------------------------------------------------------------------

PROGRAM = """\
import fieldcraft as fc
from own_tools import Placed, population
agent = fc.load({model!r}, dialect="hermes", tools=[population], budget={budget})
size = {{"questions_per_step": 2, "group_size": 2}}
rl = fc.Rl(steps=2, **size, rewards={{Placed: 1.0}}, optim=fc.Optim(lr=1e-3))
tasks = [fc.Task(c, f"How many people live in {{c}}?", ("7",)) for c in {cities}]
trained = agent.train(tasks, {{"rl": rl}}, out="runs/population", **{small})
print(trained.ask("How many people live in Turin?").status)
print(trained.evaluate(tasks)["n"])
"""


def parts() -> str:
    """Provide the tool and the reward above as a module."""
    source = Path(__file__).read_text("utf-8")
    written = source[source.index("@fc.tool") : source.index("def settings")]
    return f"import fieldcraft as fc\nfrom collections.abc import Sequence\n\n{written}"


@pytest.mark.long
def test_a_program_of_twelve_lines(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A program with components in a neighbouring module works, and so do later commands on its
    folder."""
    (tmp_path / "own_tools.py").write_text(parts())
    program = PROGRAM.format(model=str(model), budget=BUDGET, cities=CITIES, small=SMALL)
    assert program.count("\n") <= 12
    (tmp_path / "program.py").write_text(program)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.chdir(tmp_path)
    runpy.run_path("program.py", run_name="__main__")
    assert capsys.readouterr().out.split()[-2:] == ["truncated", "6"]
    run = tmp_path / "runs" / "population"
    assert (run / "report.html").exists()
    assert status("ask", "--model", run, "How many?") == 0
    capsys.readouterr()

    monkeypatch.delitem(sys.modules, "own_tools")
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place != str(tmp_path)])
    monkeypatch.chdir(tmp_path / "runs")
    assert status("ask", "--model", run, "How many?") == 2
    assert "the import of 'own_tools' failed (ModuleNotFoundError" in sentence(capsys)


@pytest.mark.long
def test_parts_of_a_script(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Components of a script work while the script runs; a later command reports that they are
    missing."""
    program = PROGRAM.format(model=str(model), budget=BUDGET, cities=CITIES, small=SMALL)
    _, second, rest = program.split("\n", 2)
    assert "own_tools" in second
    (tmp_path / "program.py").write_text(parts() + rest)
    monkeypatch.chdir(tmp_path)
    runpy.run_path("program.py", run_name="__main__")
    capsys.readouterr()
    assert status("ask", "--model", tmp_path / "runs" / "population", "How many?") == 2
    assert sentence(capsys) == (
        "'__main__:population' cannot be used, because it is defined in a script that is not"
        " running: move it to a module and import it in the script."
    )


@pytest.mark.long
def test_the_same_call_again_trains_nothing(agent: fc.Agent, tmp_path: Path) -> None:
    stages = {"rl": settings(rewards={Placed: {"weight": 2.0, "step": 0.5}})}
    steps: list[int] = []

    def follow(event: Any) -> None:
        if isinstance(event, StepCompleted):
            steps.append(event.row["step"])

    out = tmp_path / "run"
    trained = agent.train(TASKS, stages, out=out, on_event=follow, **SMALL)
    assert steps == [0, 1]
    assert not same(trained, agent)
    again = agent.train(TASKS, stages, out=out, on_event=follow, **SMALL)
    assert steps == [0, 1]
    assert (again.model, again.recipe) == (trained.model, trained.recipe)
    assert trained.ask("How many people live in Rome?").task.id == "asked"
    assert trained.evaluate(TASKS)["n"] == 6

    with pytest.raises(fc.UserError, match="holds a run with other questions: choose another"):
        agent.train(TASKS[1:], stages, out=out, **SMALL)
    with pytest.raises(
        fc.UserError, match=r"other settings \(stages.rl.steps=2 in the folder, 3 in this recipe\)"
    ):
        agent.train(TASKS, {"rl": settings(3)}, out=out, **SMALL)


@pytest.mark.long
def test_interrupted_and_resumed(agent: fc.Agent, tmp_path: Path) -> None:
    def die(event: Any) -> None:
        if isinstance(event, StepCompleted) and event.row["step"] == 1:
            raise KeyboardInterrupt

    stages = {"rl": settings(3)}
    whole = agent.train(TASKS, stages, out=tmp_path / "whole", **SMALL)
    with pytest.raises(KeyboardInterrupt):
        agent.train(TASKS, stages, out=tmp_path / "killed", on_event=die, **SMALL)
    assert not (tmp_path / "killed" / "rl" / "model").exists()
    resumed = agent.train(TASKS, stages, out=tmp_path / "killed", **SMALL)
    assert same(resumed, whole)
    assert not same(resumed, agent)


@pytest.mark.long
def test_a_callback_ends_the_training_and_the_same_call_resumes(
    agent: fc.Agent, tmp_path: Path
) -> None:
    def stop(event: Any) -> fc.EarlyStop | None:
        is_second = isinstance(event, fc.StepCompleted) and event.row["step"] == 1
        return fc.EarlyStop("two are enough") if is_second else None

    stages, out = {"rl": settings(4, checkpoint_every=4)}, tmp_path / "stopped"
    whole = agent.train(TASKS, stages, out=tmp_path / "whole", **SMALL)
    stopped = agent.train(TASKS, stages, out=out, on_event=stop, **SMALL)
    assert stopped.model == out / "rl" / "step-000002"
    assert stopped.report["stopped"] == (
        "an event handler ended the training of stage 'rl' after step 2 of 4: two are enough"
    )
    assert "two are enough" in (out / "report.html").read_text("utf-8")
    assert not same(stopped, agent)
    resumed = agent.train(TASKS, stages, out=out, **SMALL)
    assert same(resumed, whole)
    assert "stopped" not in resumed.report
    compared = fc.compare(out, tmp_path / "whole")
    assert (compared["pairwise"][0]["n"], compared["pairwise"][0]["em_difference"]) == (2, 0.0)
    assert "stopped/rl" in compared._repr_html_()


@pytest.mark.long
def test_a_stop_between_stages_leaves_out_the_rest(agent: fc.Agent, tmp_path: Path) -> None:
    def stop(event: Any) -> fc.EarlyStop | None:
        is_of_rl = isinstance(event, EvaluationCompleted) and event.phase == "rl"
        return fc.EarlyStop("good") if is_of_rl else None

    stages = {"rl": settings(1), "more": settings(1)}
    trained = agent.train(TASKS, stages, out=tmp_path / "run", on_event=stop, **SMALL)
    assert trained.model == tmp_path / "run" / "rl" / "model"
    assert trained.report["stopped"].endswith("ended the training after stage 'rl': good")
    assert not (tmp_path / "run" / "more" / "metrics.jsonl").exists()


def test_an_agent_without_a_run_has_no_report(agent: fc.Agent) -> None:
    with pytest.raises(fc.UserError, match="belongs to no run with a report: train the agent"):
        agent.report  # noqa: B018


@pytest.mark.long
def test_commands_read_its_folder(
    agent: fc.Agent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    agent.train(TASKS, {"rl": settings(1)}, out=out, **SMALL)
    for command in (("show", out), ("show", out, "--mask"), ("ask", "--model", out, "How many?")):
        capsys.readouterr()
        assert status(*command) == 0
        assert "How many" in capsys.readouterr().out.replace("|", "")


def test_records_of_a_file_that_are_not_asked_are_told(
    agent: fc.Agent, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "questions.jsonl"
    lines = [{"question": f"How many live in {n}?", "answer": "7"} for n in range(10)]
    file.write_text("\n".join(map(json.dumps, [*lines, {"question": "And here?"}])))
    evaluated = agent.evaluate(file)
    assert (evaluated["n"], evaluated["left_out"]) == (10, {"no answer": 1})
    line = "".join(capsys.readouterr().out.split())  # lines may break anywhere in the path
    assert re.search(r"1of\S*questions.jsonlleftout:noanswer", line)
    with pytest.raises(fc.UserError, match=r"allow it with max_left_out=0.1"):
        agent.evaluate(file, max_left_out=0.05)
    assert "left_out" not in agent.evaluate(TASKS[:1])


@pytest.mark.long
def test_in_a_running_loop(agent: fc.Agent, tmp_path: Path) -> None:
    """The API works in a running event loop, as in a notebook."""

    async def main() -> tuple[fc.Agent, dict[str, Any], fc.Trajectory]:
        trained = agent.train(TASKS, {"rl": settings(1)}, out=tmp_path / "run", **SMALL)
        return trained, trained.evaluate(TASKS[:2]), trained.ask("How many?")

    trained, evaluated, asked = asyncio.run(main())
    assert not same(trained, agent)
    assert (evaluated["n"], asked.reward) == (2, None)
    assert "<table>" in evaluated._repr_html_()


@pytest.mark.long
def test_other_work_goes_on_during_awaited_training(agent: fc.Agent, tmp_path: Path) -> None:
    """A coroutine of the same loop lets the training continue after its first step."""
    first_step, may_go_on = threading.Event(), threading.Event()

    def wait(event: Any) -> None:
        if isinstance(event, StepCompleted):
            first_step.set()
            assert may_go_on.wait(300)

    async def main() -> fc.Agent:
        async with asyncio.TaskGroup() as tasks:
            out = tmp_path / "run"
            training = agent.atrain(TASKS, settings(1), out=out, on_event=wait, **SMALL)
            trained = tasks.create_task(training)
            await asyncio.to_thread(first_step.wait, 300)
            may_go_on.set()
        return trained.result()

    assert not same(asyncio.run(main()), agent)
    with pytest.raises(fc.UserError, match="give the path of a folder"):
        asyncio.run(agent.atrain(TASKS, settings(1), out=""))


# -- light imports and types ---------------------------------------------------------------------


def test_its_import_is_light() -> None:
    code = (
        "import sys, fieldcraft; dir(fieldcraft);"
        " print({'torch', 'transformers', 'pydantic'} & set(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_everything_that_it_offers_is_there() -> None:
    assert [name for name in fc.__all__ if getattr(fc, name) is None] == []
    with pytest.raises(AttributeError, match="module 'fieldcraft' has no attribute 'lod'"):
        fc.lod  # type: ignore[attr-defined]  # noqa: B018


# -- mistakes ------------------------------------------------------------------------------------


def test_wrong_folders_and_keys(model: Path, tmp_path: Path) -> None:
    for load, message in (
        (lambda: fc.load(tmp_path / "none"), "none holds no model: give the folder of a run"),
        (lambda: fc.load(model, dialct="hermes"), "unknown key 'dialct'; did you mean 'dialect'?"),
        (lambda: fc.load(model, dialect="herms"), "did you mean 'hermes'"),
        (lambda: fc.load(model, budget={"calls": 1}), "'budget.calls'; did you mean 'budget.max"),
        (lambda: fc.load(model, tools=["serch"]), "unknown tool 'serch' (did you mean 'search'?)"),
    ):
        with pytest.raises(fc.UserError) as caught:
            load()
        assert message in str(caught.value)
        assert str(caught.value).count("\n") == 0


def test_a_search_over_nothing_is_refused_where_a_program_asked_for_it(model: Path) -> None:
    agent = fc.load(model, dialect="hermes", tools=["search", population], budget=BUDGET)
    with pytest.raises(fc.UserError, match="nothing to search: train it with corpus=FILE first"):
        agent.ask("How many people live in Turin?")
    assert fc.load(model, dialect="hermes", budget=BUDGET).ask("Who?").segments


def test_a_tool_within_a_function(model: Path) -> None:
    @fc.tool
    def inner(city: str) -> str:
        """Not to be found again.

        Args:
            city: its name.
        """
        return city

    with pytest.raises(fc.UserError, match="inner must be defined at module level"):
        fc.load(model, tools=[inner])


def test_wrong_training(agent: fc.Agent, tmp_path: Path) -> None:
    out = tmp_path / "run"
    (tmp_path / "other").touch()
    stages = {"rl": settings(1)}
    for keys, message in (
        ({"sed": 1}, "unknown key 'sed'; did you mean 'seed'?"),
        ({"out": tmp_path}, "exists and is not a run: choose another folder"),
        ({"tasks": "none.jsonl"}, "tasks=none.jsonl does not exist"),
        ({"tasks": TASKS[:1]}, "needs two questions or more"),
        ({"stages": {"evaluation": settings(1)}}, "a stage cannot be called 'evaluation'"),
    ):
        given: dict[str, Any] = {"tasks": TASKS, "stages": stages, "out": out, **SMALL, **keys}
        with pytest.raises(fc.UserError) as caught:
            agent.train(given.pop("tasks"), given.pop("stages"), **given)
        assert message in str(caught.value)
        assert sorted(tmp_path.iterdir()) == [tmp_path / "other"]


def test_commands_say_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("ask", "--model", tmp_path, "How many?") == 2
    assert "holds no model" in sentence(capsys)
