"""Runs of several seeds: concurrent, resumed, and stopped together."""

import functools
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from rich.console import Console

from fieldcraft.cli.main import main
from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs import seeds as module
from fieldcraft.runs.folder import RunFolder
from fieldcraft.runs.seeds import divide_threads, run_seeds
from fieldcraft.types import UserError

# Stand-in for `fieldcraft run FILE --out OUT`: records its start and end, and follows the file
# `orders` next to the runs, which configures its seed.
CHILD = """
import json, os, signal, subprocess, sys, time, yaml
file, _, out = sys.argv[1:]
recipe = yaml.safe_load(open(file))
folder, seed = os.path.dirname(out), recipe["seed"]
order = json.load(open(os.path.join(folder, "..", "orders"))).get(str(seed), "")
events = os.path.join(folder, "..", "events")
def note(what):
    with open(events, "a") as log:
        log.write(f"{what} {seed} {os.getpid()} {os.environ['OMP_NUM_THREADS']}\\n")
def begun():
    return sum(line.startswith("begin") for line in open(events))
def clean_up(number, frame):
    note("stopped")
    sys.exit(130)
if order == "clean up":
    signal.signal(signal.SIGTERM, clean_up)
if order == "refuse":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
note("begin")
print("step 1", flush=True)
if order.startswith("wait for"):
    while begun() < int(order.split()[-1]):
        time.sleep(0.01)
if order == "fail":
    while begun() < 2:
        time.sleep(0.01)
    sys.exit("fieldcraft: fix it.")
if order == "crash":
    os.kill(os.getpid(), 9)
if order in ("hang", "clean up", "refuse"):
    time.sleep(600)
if order == "long line":
    print("x" * 200_000)
if order == "leave a process":
    subprocess.Popen(["sh", "-c", "sleep 60; echo late >> " + events])
evaluation = dict(n=4, n_effective=4, tokens_mean=9.0, em=0.5 + seed / 8, f1=0.5,
    calls_mean=1.0, calls_optimal_mean=None,
    tool_productivity=0.5, offloading_rate=None, needless_calls_mean=None, missing_calls_mean=None,
    calls_regret_mean=None, known=None, by_calls={"1": dict(n=4, em=0.5 + seed / 8)})
names = ["workflow", *recipe["stages"]]
report = dict(device="cpu", seconds=1.0, versions={}, evals={n: evaluation for n in names},
    stages=[dict(name=n, seconds=1.0, metrics={}) for n in recipe["stages"]])
for part in ("evaluations", "index"):
    os.makedirs(os.path.join(out, part), exist_ok=True)
for name in names:  # the last one is right where the seed is at most the question's number
    with open(os.path.join(out, "evaluations", f"{name}.jsonl"), "w") as file:
        for i in range(4):
            task = dict(id=str(i), question="?", answers=["a"], meta={})
            right = float(name == names[-1] and i >= seed)
            print(json.dumps(dict(task=task, rewards=dict(em=right))), file=file)
    with open(os.path.join(out, "evaluations", f"{name}.json"), "w") as file:
        json.dump(dict(seconds=1.0, summary=dict(n=4)), file)
json.dump(report, open(os.path.join(out, "report.json"), "w"))
open(os.path.join(out, "report.html"), "w").close()
note("end")
"""


@pytest.fixture
def child(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder in which the stand-in for a run has its orders and events."""
    (tmp_path / "child.py").write_text(CHILD)
    monkeypatch.setattr(module, "RUN_COMMAND", (sys.executable, str(tmp_path / "child.py")))
    order(tmp_path, {})
    return tmp_path


def order(folder: Path, orders: dict[int, str]) -> None:
    (folder / "orders").write_text(json.dumps(orders))


def events(folder: Path) -> list[list[str]]:
    file = folder / "events"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def started_seeds(folder: Path) -> list[int]:
    return sorted(int(event[1]) for event in events(folder) if event[0] == "begin")


def recipe(*overrides: str) -> Recipe:
    return load_recipe("smoke", ["seeds=[0,1,2]", *overrides])


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_every_seed_is_an_ordinary_run(child: Path) -> None:
    output = io.StringIO()
    rows = (
        "table_rows.All=rl2",
        "table_rows.ReAct=workflow",
        "comparisons.worth of it=[ReAct, All]",
    )
    settings = recipe(*rows, "world.people=50")
    table = run_seeds(settings, child / "out", Console(file=output, width=40))
    assert started_seeds(child) == [0, 1, 2]
    assert sorted(output.getvalue().splitlines()) == [f"seed {seed}  step 1" for seed in range(3)]
    for seed in range(3):
        alone = load_recipe(str(child / "out" / f"seed-{seed}.yaml"), [])
        own = {"seed": seed, "seeds": (), "table_rows": {}, "comparisons": {}}
        assert alone == settings.model_copy(update=own)
    assert [row["title"] for row in table["rows"]] == ["All", "ReAct"]
    assert table["rows"][0]["em"]["values"] == [0.5, 0.625, 0.75]
    [compared] = table["comparisons"]
    names = [compared[key] for key in ("title", "baseline", "model")]
    assert names == ["worth of it", "ReAct", "All"]
    assert compared["em_differences"] == [1.0, 0.75, 0.5]
    assert json.loads((child / "out" / "report.json").read_text()) == table
    assert "seed-2/report.html" in (child / "out" / "report.html").read_text()


def test_at_most_so_many_run_at_once(child: Path) -> None:
    order(child, dict.fromkeys(range(3), "wait for 2"))  # both must be running at the same time
    run_seeds(recipe("parallel_seeds=2"), child / "out", Console(file=io.StringIO()))
    running = most = 0
    for what, *_ in events(child):
        running += 1 if what == "begin" else -1
        most = max(most, running)
    assert most == 2
    assert len(events(child)) == 6


def test_threads_are_shared(child: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "7")
    assert divide_threads(1) == 7
    assert divide_threads(8) == 1
    run_seeds(recipe("parallel_seeds=2"), child / "out", Console(file=io.StringIO()))
    assert {threads for *_, threads in events(child)} == {"3"}
    monkeypatch.delenv("OMP_NUM_THREADS")
    monkeypatch.setattr(os, "cpu_count", lambda: 12)
    assert divide_threads(3) == 4


def test_one_that_fails_ends_all_and_the_same_command_goes_on(child: Path) -> None:
    order(child, {0: "hang", 1: "fail"})
    with pytest.raises(UserError, match=r"^the run of seed 1 failed: fix it\.$"):
        run_seeds(recipe("parallel_seeds=2"), child / "out", Console(file=io.StringIO()))
    assert started_seeds(child) == [0, 1]
    assert not any(alive(int(pid)) for _, _, pid, _ in events(child))
    assert not (child / "out" / "report.json").exists()

    order(child, {2: "crash"})
    with pytest.raises(UserError, match=r"^the run of seed 2 failed: .*signal 9"):
        run_seeds(recipe("parallel_seeds=1"), child / "out2", Console(file=io.StringIO()))
    (child / "events").unlink()
    order(child, {})
    run_seeds(recipe("parallel_seeds=1"), child / "out2", Console(file=io.StringIO()))
    assert started_seeds(child) == [2]  # the others were finished


def test_the_folder_is_that_of_one_sweep(child: Path) -> None:
    run_seeds(recipe(), child / "out", Console(file=io.StringIO()))
    with pytest.raises(UserError, match="holds a run of recipe 'smoke' with other settings"):
        run_seeds(recipe("world.people=41"), child / "out", Console(file=io.StringIO()))
    before = (child / "out" / "recipe.json").read_text()
    with (
        RunFolder(child / "out", recipe()).lock(),
        pytest.raises(UserError, match="is locked by another process"),
    ):
        run_seeds(recipe("max_num_seqs=7"), child / "out", Console(file=io.StringIO()))
    assert (child / "out" / "recipe.json").read_text() == before


def test_the_others_clean_up_before_they_end(child: Path) -> None:
    order(child, {0: "clean up", 1: "fail"})
    with pytest.raises(UserError, match="seed 1 failed"):
        run_seeds(recipe("parallel_seeds=2"), child / "out", Console(file=io.StringIO()))
    assert [event[1] for event in events(child) if event[0] == "stopped"] == ["0"]


def test_a_run_that_does_not_end_is_killed(child: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "EXIT_TIMEOUT_SECONDS", 0.1)
    order(child, {0: "refuse", 1: "fail"})
    with pytest.raises(UserError, match="seed 1 failed"):
        run_seeds(recipe("parallel_seeds=2"), child / "out", Console(file=io.StringIO()))
    assert not any(alive(int(pid)) for _, _, pid, _ in events(child))


def test_a_line_of_any_length_is_printed(child: Path) -> None:
    order(child, {1: "long line"})
    output = io.StringIO()
    run_seeds(recipe(), child / "out", Console(file=output))
    assert output.getvalue().count("x") == 200_000


def test_a_process_that_a_run_leaves_is_ended_and_not_waited_for(child: Path) -> None:
    order(child, {1: "leave a process"})
    run_seeds(recipe(), child / "out", Console(file=io.StringIO()))
    assert [event for event in events(child) if event[0] == "late"] == []


def test_ctrl_c_ends_every_run(child: Path) -> None:
    order(child, dict.fromkeys(range(3), "hang"))
    program = (
        "import sys; from fieldcraft.cli import main, runs;"
        "from fieldcraft.runs import seeds as sweep;"
        f"sweep.RUN_COMMAND = {module.RUN_COMMAND!r};"
        "runs._check_before_run = lambda recipe: None;"
        "main.main(sys.argv[1:])"
    )
    command = ["run", "smoke", "seeds=[0,1,2]", "parallel_seeds=2", "--out", str(child / "out")]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,  # so that only the parent receives the signal
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    try:
        while len(events(child)) < 2:
            assert process.poll() is None, process.communicate()
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=300)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error.startswith("fieldcraft: stopped; resume with: fieldcraft run smoke ")
    assert not any(alive(int(pid)) for _, _, pid, _ in events(child))


# -- the command -------------------------------------------------------------------------------

TINY = (
    *(
        "world.people=30",
        "world.variants=2",
        "budget.max_context_tokens=250",
        "budget.max_turn_tokens=40",
    ),
    *("tiny_model.layers=2", "tiny_model.width=16", "tiny_model.heads=1"),
    *("stages.base.steps=2", "stages.base.max_examples=40"),
    *("stages.sft2.steps=1", "stages.sft2.max_examples=40"),
    *("stages.rl2.steps=1", "stages.rl2.questions_per_step=2", "stages.rl2.group_size=2"),
    *("evaluation.splits.heldout=4", "evaluation.splits.train=2", "evaluation.splits.known=2"),
)


def status(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


def without_clocks(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: without_clocks(v) for k, v in value.items() if "second" not in k}
    return [without_clocks(entry) for entry in value] if isinstance(value, list) else value


@pytest.mark.slow  # autocoa-table, which the tests of documents run, is also such a command
def test_the_command_from_end_to_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    out = tmp_path / "out"
    command = ["run", "smoke", *TINY, "seeds=[1,4]", "parallel_seeds=2", "--out", out]
    assert status(*command) == 0
    output = capsys.readouterr().out
    assert "seed 4  base  2/2" in output
    assert f"fieldcraft ask --model {out}/seed-1 " in output
    assert {"recipe.json", "report.json", "report.html"} <= {path.name for path in out.iterdir()}

    # the same numbers as a run of that seed alone
    assert status("run", "smoke", *TINY, "seed=4", "--out", tmp_path / "alone") == 0
    alone, one = (
        json.loads((path / "report.json").read_text())
        for path in (tmp_path / "alone", out / "seed-4")
    )
    assert without_clocks(one["evals"]) == without_clocks(alone["evals"])
    table = json.loads((out / "report.json").read_text())
    assert [row["em"]["values"][1] for row in table["rows"] if row["name"] == "rl2"] == [
        alone["evals"]["rl2"]["em"]
    ]

    # finished work is not repeated, and messages about one run name its seed
    monkeypatch.setattr(module, "RUN_COMMAND", ("false",))
    capsys.readouterr()
    assert status(*command) == 0
    assert "seed 4" not in capsys.readouterr().out
    tasks = out / "seed-1" / "world" / "evaluation.jsonl"
    for about in (["show"], ["ask", "Why?", "--model"], ["eval", "--tasks", tasks, "--model"]):
        assert status(*about, out) == 2
        assert capsys.readouterr().err == (
            f"fieldcraft: {out} contains one run per seed: give one of them, such as"
            f" {out}/seed-1.\n"
        )
    assert status("show", out / "seed-1") == 0
    assert yaml.safe_load((out / "seed-4.yaml").read_text())["seed"] == 4
