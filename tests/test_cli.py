"""The command line, run as a user runs it: what it prints, and with which status it ends."""

import functools
import json
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest
from rich.console import Console
from starlette.responses import PlainTextResponse

import fieldcraft
from chat_server import answering, completion
from checkpoints import write_tiny_checkpoint
from encoders import write_bert
from fieldcraft import cli
from fieldcraft.cli import main
from fieldcraft.evals import tables
from fieldcraft.records.trajectories import read_trajectories, write_trajectories
from fieldcraft.rollout.loop import rollout
from fieldcraft.runs import agent as inference
from fieldcraft.runs import check as preflight
from fieldcraft.runs import run as pipeline
from fieldcraft.train.stages import rl
from fieldcraft.types import Status, Task, Trajectory, UserError
from serving import serving

TINY = (
    "world.people=30",
    "world.variants=2",
    "scratch.layers=2",
    "scratch.width=16",
    "scratch.heads=1",
    "stages.base.steps=2",
    "stages.base.examples=40",
    "stages.sft2.steps=1",
    "stages.sft2.examples=40",
    "stages.rl2.steps=1",
    "stages.rl2.questions=2",
    "stages.rl2.group=2",
    "evaluation.splits.heldout=4",
    "evaluation.splits.train=2",
    "evaluation.splits.known=2",
    "budget.turn_tokens=40",
    "budget.total_tokens=200",
)


def status(*arguments: object) -> int:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(scope="module")
def done(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the recipe smoke, made as small as it can be."""
    out = tmp_path_factory.mktemp("runs") / "tiny"
    assert status("run", "smoke", *TINY, "--out", out) == 0
    return out


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"), "qwen3")


@pytest.fixture
def files(tmp_path: Path, checkpoint: Path) -> dict[str, Path]:
    """What the recipe hotpotqa needs."""
    tasks = [{"question": f"Who made film {i}?", "answer": f"Director {i}"} for i in range(4)]
    corpus = [{"title": f"Film {i}", "text": f"Director {i} made it."} for i in range(4)]
    return {
        "model": checkpoint,
        "tasks": lines(tmp_path / "tasks.jsonl", tasks),
        "corpus": lines(tmp_path / "corpus.jsonl", corpus),
        "demonstrations": lines(tmp_path / "demonstrations.jsonl", [demonstration("Ada")]),
    }


def demonstration(answer: str) -> dict[str, str]:
    search = "<|begin_of_query|> film 0 <|end_of_query|>"
    read = "<|begin_of_documents|>(1)Title: Film 0 Text: Ada made it.<|end_of_documents|>"
    written = f"I search. {search} {read} It is she. <answer> {answer} </answer>"
    return {"question": "Who made it?", "answer": "Ada", "gen_text_store": written}


def lines(path: Path, records: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def given(files: dict[str, Path]) -> list[str]:
    return [f"{key}={path}" for key, path in files.items()]


def sentence(capsys: pytest.CaptureFixture[str]) -> str:
    """The one line on stderr."""
    error = capsys.readouterr().err
    assert error.startswith("fieldcraft: ")
    assert error.count("\n") == 1
    return error.removeprefix("fieldcraft: ").rstrip()


# -- run ---------------------------------------------------------------------------------------


def test_nothing_heavy_is_loaded_before_a_command_needs_it() -> None:
    heavy = "{'torch', 'transformers', 'matplotlib', 'bm25s', 'uvicorn', 'pyarrow'}"
    code = f"import sys, fieldcraft.cli; sys.exit(str({heavy} & set(sys.modules) or ''))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ended.stderr.strip() == ""


def test_a_run_ends_with_its_numbers_and_how_to_go_on(
    done: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def execute(_: object) -> None:
        raise AssertionError("a finished run is not done again")

    monkeypatch.setattr(pipeline.Run, "execute", execute)
    assert status("run", "smoke", *TINY, "--out", done) == 0
    shown = capsys.readouterr().out
    for stage in ("base", "workflow", "sft2", "rl2"):
        assert re.search(rf"^ {stage} +\d\.\d{{3}} \[", shown, re.MULTILINE)
    question = read_trajectories(done / "evaluations" / "rl2.jsonl")[0].task.question
    assert shown.endswith(
        f"{done}/report.json\n{done}/report.html\nfieldcraft ask --model {done} '{question}'\n"
    )


def test_a_run_goes_by_default_to_a_folder_of_its_recipe_and_seed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders: list[Path] = []

    def start(_: object, recipe: object, out: Path, console: object) -> None:
        folders.append(out)
        raise UserError("that is all")

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(preflight, "check_recipe", lambda *_: [])
    monkeypatch.setattr(pipeline.Run, "__init__", start)
    assert status("run", "smoke") == 2
    assert status("run", "smoke", "seed=3") == 2
    assert folders == [Path("runs/smoke"), Path("runs/smoke-seed3")]


def test_the_folder_of_other_settings_is_refused(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("run", "smoke", *TINY, "seed=1", "--out", done) == 2
    assert "with other settings (seed=0 there, 1 here)" in sentence(capsys)


def test_a_folder_that_is_no_run_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "letter.txt").touch()
    assert status("run", "smoke", "--out", tmp_path) == 2
    assert sentence(capsys) == (
        f"{tmp_path} exists and is not a run: choose another folder with --out."
    )


def test_ctrl_c_ends_in_one_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "fieldcraft", "run", "smoke", *TINY, "stages.base.steps=9999"]
    process = subprocess.Popen(
        [*command, "--out", str(tmp_path / "run")],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # A shell starts background jobs with SIGINT ignored, and children inherit that.
        preexec_fn=functools.partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )
    metrics = tmp_path / "run" / "base" / "metrics.jsonl"
    try:
        while not metrics.exists():
            assert process.poll() is None
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        _, error = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 130
    assert error == "fieldcraft: stopped; the same command goes on where this one stopped.\n"


# -- mistakes ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "autocoa-mimi"], "did you mean 'autocoa-mini'?"),
        (["run", "smoke", "sede=1"], "unknown key 'sede'; did you mean 'seed'?"),
        (["run", "smoke", "world.poeple=9"], "did you mean 'world.people'?"),
        (["run", "smoke", "stages.rl2.grup=9"], "did you mean 'stages.rl2.group'?"),
        (["run", "smoke", "seed"], "'seed' is not an override: write key=value, as in seed=7."),
        (["run", "smoke", "seed=[1"], "the value of 'seed=[1' is not valid YAML; quote it."),
        (["run", "smoke", "seed=x"], "'seed' is wrong: input should be a valid integer"),
        (["run", "hotpotqa"], "recipe 'hotpotqa' needs model=PATH on the command line."),
        (["run", "smoke", "tasks=/none.jsonl"], "tasks=/none.jsonl does not exist"),
        (["ask", "--model", "/none", "Why?"], "/none holds no model: give the folder of a run"),
        (["eval", "--model", "/none", "--tasks", "/none.jsonl"], "/none.jsonl does not exist"),
        (["show", "/none"], "/none is not a run: give a folder that 'fieldcraft run' wrote."),
        (["index", "/none.jsonl", "--out", "/none"], "/none.jsonl does not exist"),
        (["serve", "search", "--index", "/none"], "/none holds no search index; build one"),
        (
            ["bench", "speed"],
            "there is no comparison 'speed': use one of answers, engine, fidelity, rankings,"
            " search, words.",
        ),
    ],
)
def test_mistakes(
    arguments: list[str],
    complaint: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert status(*arguments) == 2
    assert complaint in sentence(capsys)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("key", "content", "complaint"),
    [
        ("corpus", '{"text": "a"}\nnot so\n', "line 2 is not JSON"),
        ("corpus", '{"text": "a"}\n{"body": "b"}\n', "line 2 is not a passage"),
        ("tasks", '{"question": "Who?"}\n', "line 1: the question has no answer"),
        ("tasks", '{"question": "Who?", "answer": "I"}\n', "needs two questions or more"),
        ("demonstrations", '{"question": "Who?"}\n', "line 1: this is no trajectory"),
        ("demonstrations", json.dumps(demonstration("Bo")), "(1 with a wrong answer)"),
    ],
)
def test_mistakes_in_files(
    key: str,
    content: str,
    complaint: str,
    files: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A run finds them before it does anything, and leaves nothing behind."""

    def execute(_: object) -> None:
        raise AssertionError("a run over bad files begins")

    files[key].write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(pipeline.Run, "execute", execute)
    before = {*tmp_path.iterdir()}
    for command in ("check", "run"):
        assert status(command, "hotpotqa", *given(files)) == 2
        assert complaint in sentence(capsys)
    assert {*tmp_path.iterdir()} == before


def test_a_run_with_settings_that_cannot_work_does_not_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["stages.rl2.group=1", "stages.sft2.data=pears"]
    assert status("run", "smoke", *TINY, *wrong, "--out", tmp_path / "run") == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("fieldcraft: the world has no data set 'pears'")
    assert second.startswith("fieldcraft: stage 'rl2' has group=1")
    assert not (tmp_path / "run").exists()


def test_no_run_is_refused_over_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(_: object) -> None:
        raise UserError("it begins")

    monkeypatch.setattr(preflight, "free_memory", lambda _: 1)
    monkeypatch.setattr(pipeline.Run, "execute", execute)
    assert status("run", "smoke", *TINY, "--out", tmp_path / "run") == 2
    assert sentence(capsys) == "it begins"
    assert status("check", "smoke", *TINY) == 2
    assert "of memory and cpu has 1e-09 GB" in sentence(capsys)


def test_a_run_that_goes_on_is_not_checked_again(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(_: object) -> None:
        raise UserError("it goes on")

    def check(*_: object) -> None:
        raise AssertionError("checked again")

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").symlink_to(done / "recipe.json")
    monkeypatch.setattr(preflight, "check_recipe", check)
    monkeypatch.setattr(pipeline.Run, "execute", execute)
    assert status("run", "smoke", *TINY, "--out", tmp_path / "run") == 2
    assert sentence(capsys) == "it goes on"


def test_a_checkpoint_without_a_tokenizer(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        (bare / name).symlink_to(files["model"] / name)
    for command in (["run", "--out", str(tmp_path / "run")], ["check"]):
        assert status(*command, "hotpotqa", *given(files | {"model": bare})) == 2
        assert f"{bare} holds no tokenizer: copy tokenizer.json" in sentence(capsys)
    assert not (tmp_path / "run").exists()


def test_a_search_server_that_does_not_answer(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://127.0.0.1:9"  # the port "discard", on which nothing listens
    for command in (["run", "--out", str(tmp_path / "run")], ["check"]):
        small = ["evaluation.splits.heldout=1", "evaluation.workflows=[]", "budget.turn_tokens=8"]
        assert status(*command, "hotpotqa", *given(files), f"search.url={url}", *small) == 2
        assert f"No search server answers at {url} (the server cannot be" in sentence(capsys)
    assert not (tmp_path / "run").exists()
    options = ["--model", str(files["model"]), "--search-url", url]
    assert status("ask", *options, "Why?") == 2
    assert f"No search server answers at {url}" in sentence(capsys)


def test_a_gpu_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert status("run", "smoke", "device=cuda", "--out", tmp_path / "run") == 2
    assert sentence(capsys) == "device=cuda was asked for, but torch sees no GPU: use device=cpu."
    assert not (tmp_path / "run").exists()


def test_an_unknown_command_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("train") == 2
    assert "No such command 'train'" in capsys.readouterr().err


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setattr(cli, "shipped", broken)
    with pytest.raises(ZeroDivisionError):
        main(["recipes"])


def test_a_mistake_among_rollouts_is_still_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[str]:
        raise ExceptionGroup("rollouts", [ExceptionGroup("group", [UserError("mend it.")])])

    monkeypatch.setattr(cli, "shipped", broken)
    assert status("recipes") == 2
    assert sentence(capsys) == "mend it."


# -- agents ------------------------------------------------------------------------------------


def test_ask_shows_what_the_last_stage_writes(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = read_trajectories(done / "evaluations" / "rl2.jsonl")[0]
    assert status("ask", "--model", done, recorded.task.question) == 0
    shown = capsys.readouterr().out
    assert recorded.task.question in " ".join(shown.split())
    assert "not graded" in shown
    assert recorded.status.value in shown
    assert "gold" not in shown


def test_ask_a_bare_checkpoint_with_a_search_index(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    index = tmp_path / "index"
    assert status("index", files["corpus"], "--out", index) == 0
    assert capsys.readouterr().out == f"{index}: 4 passages\n"
    options = ["--model", files["model"], "--dialect", "hermes", "--index", index]
    assert status("ask", *options, "Who made film 1?") == 0
    assert "Who made film 1?" in capsys.readouterr().out


def test_ask_refuses_two_searches(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", files["model"], "--index", tmp_path, "--search-url", "http://h"]
    assert status("ask", *options, "Why?") == 2
    assert sentence(capsys) == ("there can be one search: give --index or --search-url, not both.")


def test_eval_compares_models(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = done / "world" / "evaluation.jsonl"
    models = ["--model", done / "rl2", "--model", done / "base"]
    assert status("eval", *models, "--tasks", tasks, "--limit", 3, "--out", tmp_path) == 0
    shown = capsys.readouterr().out
    report = json.loads((tmp_path / "eval.json").read_text())
    assert report["n"] == 3
    assert list(report["evals"]) == [str(done / "rl2"), str(done / "base")]
    recorded = read_trajectories(done / "evaluations" / "rl2.jsonl")[:3]
    found = report["evals"][str(done / "rl2")]
    assert found["n"] == 3
    assert found["em"] == sum(t.rewards["em"] or 0.0 for t in recorded) / 3
    assert found["seconds"] > 0
    [compared] = report["pairwise"]
    assert (compared["baseline"], compared["model"]) == tuple(report["evals"])
    assert compared["n"] == 3
    bare = report["evals"][str(done / "base")]
    assert compared["calls_saved_mean"] == found["calls_mean"] - bare["calls_mean"]
    assert compared["em_difference"] == bare["em"] - found["em"]
    assert "McNemar" in shown
    assert shown.rstrip().endswith("eval.json")
    assert "judge" not in shown
    assert "judge" not in report


def test_eval_asks_a_judge(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(task: Task, key: str) -> Trajectory:
        return Trajectory(task, answer=f"{task.answers[0]} it is", status=Status.ANSWERED)

    monkeypatch.setattr(inference.Agent, "start", lambda *_: answer)
    asked = [{"question": f"Who is {name}?", "answer": name} for name in ("Vir", "Ser")]
    app, got = answering(completion("Hello."), completion("Verdict: correct"))
    with serving(app) as url:
        given = ["--model", done / "base", "--tasks", lines(tmp_path / "tasks.jsonl", asked)]
        judge = ["--judge-url", f"{url}/v1", "--judge-model", "m", "--judge-votes", 2]
        assert status("eval", *given, *judge, "--out", tmp_path) == 0
    report = json.loads((tmp_path / "eval.json").read_text())
    assert report["judge"] == {
        "url": f"{url}/v1", "model": "m", "votes": 2, "api_key_env": "OPENAI_API_KEY"
    }  # fmt: skip
    [entry] = report["evals"].values()
    assert (entry["em"], entry["cover_em"]) == (0.0, 1.0)
    assert (entry["judge"], entry["judge_ungradable"]) == (1.0, 0)
    assert len(got) == 1 + 2 * 2  # the check, then two votes on each of two answers
    assert (tmp_path / "judge.sqlite").exists()


def test_a_judge_that_is_not_there_stops_an_eval_before_it_begins(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = lines(tmp_path / "tasks.jsonl", [{"question": "Who is Vir?", "answer": "Vir"}])
    given = ["eval", "--model", done / "base", "--tasks", tasks, "--judge-model", "m"]
    assert status(*given) == 2
    assert "a judge needs both a url and a model" in sentence(capsys)
    with serving(answering(PlainTextResponse("who?", 401))[0]) as url:
        assert status(*given, "--judge-url", f"{url}/v1") == 2
    assert "The model 'm' does not answer" in sentence(capsys)


def test_a_run_with_a_judge_as_its_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(*given: Any) -> Trajectory:
        trajectory = await rollout(*given)
        trajectory.answer = "Nobody"  # a model this small does not get so far
        return trajectory

    for module in (pipeline, rl):
        monkeypatch.setattr(module, "rollout", answered)
    app, got = answering(completion("Verdict: correct"))
    with serving(app) as url:
        judge = [f"judge.url={url}/v1", "judge.model=m", "judge.votes=1"]
        stage = ["stages.rl2.rewards={judge: 1.0}", "evaluation.workflows=[]"]
        assert status("run", "smoke", *TINY, *judge, *stage, "--out", tmp_path / "run") == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert "judge/verdict-1" in report["versions"]["rules"]
    assert {e["judge"] for e in report["evals"].values()} == {1.0}
    [row] = [json.loads(r) for r in (tmp_path / "run/rl2/metrics.jsonl").read_text().splitlines()]
    assert (row["reward_mean"], row["em"], row["ungradable_rate"]) == (1.0, 0.0, 0.0)
    # "Nobody" as the answer to one question is judged once, whoever gives it.
    judged = [text for text in (json.dumps(r["messages"]) for r in got) if "Say ok" not in text]
    assert len(set(judged)) == len(judged) > 0
    assert (tmp_path / "run" / "judge.sqlite").exists()


def test_eval_measures_simulators_against_the_world(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["--model", done / "rl2", "--model", done / "sft2"]
    assert status("eval", "--simulator", *models, "--limit", 3, "--out", tmp_path) == 0
    shown = capsys.readouterr().out
    assert shown.rstrip().endswith("simulator.json")
    report = json.loads((tmp_path / "simulator.json").read_text())
    assert (report["n"], list(report["simulators"])) == (3, [str(done / "rl2"), str(done / "sft2")])
    for entry in report["simulators"].values():
        assert (entry["n"], entry["temperature"], entry["seed"]) == (3, 1.0, 0)
        assert entry["fidelity"]["f1"] is None  # by the world, not by the search
        assert {0 <= entry[em] <= 1 for em in ("em_simulated", "em_real")} == {True}


def test_eval_measures_simulators_against_an_index(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("index", files["corpus"], "--out", tmp_path / "index") == 0
    options = ["--model", files["model"], "--tasks", files["tasks"], "--limit", 2]
    assert status("eval", "--simulator", *options) == 2
    assert "held against a search: give --index or --search-url" in capsys.readouterr().err
    index = ["--index", tmp_path / "index"]
    assert status("eval", "--simulator", "--model", files["model"], *index) == 2
    assert "no questions to simulate for: give a file with --tasks" in capsys.readouterr().err
    assert status("eval", "--simulator", *options, *index, "--out", tmp_path) == 0
    report = json.loads((tmp_path / "simulator.json").read_text())
    assert report["simulators"][str(files["model"])]["fidelity"]["taught"] is None


def test_eval_needs_questions(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("eval", "--model", done) == 2
    assert sentence(capsys) == "there are no questions to grade: give a file with --tasks."


# -- show --------------------------------------------------------------------------------------


@pytest.fixture
def graded(done: Path, tmp_path: Path) -> Path:
    """The run's folder with an evaluation in which only the first answer is right."""
    run = tmp_path / "graded"
    (run / "evaluations").mkdir(parents=True)
    (run / "recipe.json").symlink_to(done / "recipe.json")
    (run / "sft2").symlink_to(done / "sft2")
    trajectories = read_trajectories(done / "evaluations" / "sft2.jsonl")[:3]
    for index, trajectory in enumerate(trajectories):
        trajectory.rewards["em"] = float(index == 0)
    write_trajectories(run / "evaluations" / "sft2.jsonl", trajectories)
    return run


def test_a_row_of_results(capsys: pytest.CaptureFixture[str]) -> None:
    entry = {"em": 0.5, "em_ci95": [0.2, 0.8], "f1": 0.625, "calls_mean": 1.25, "seconds": 7.2}
    known = {"known": {"em": 1.0, "no_call_rate": 0.75}, "calls_optimal_mean": 1.0}
    bare = {"known": None, "calls_optimal_mean": None, "em": None, "em_ci95": None, "f1": None}
    rows = {"rl": entry | known, "bare": entry | bare}
    Console(width=80).print(tables.results_table(rows, {"rl": 61.7}))
    shown = [line.split() for line in capsys.readouterr().out.splitlines()[4:6]]
    assert shown == [
        ["rl", "0.500", "[0.200,", "0.800]", "0.625", "1.25/1.00", "1.00", "0.75", "62", "7"],
        ["bare", "not", "gradable", "1.25", "7"],
    ]
    rows["bare"] |= {"judge": 0.875}  # a column only where somebody was asked
    Console(width=80).print(tables.results_table(rows, {}))
    shown = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert shown[2][3:5] == ["F1", "judge"]
    assert ["bare", "not", "gradable", "0.875", "1.25", "7"] in shown


def test_tables_of_long_names_fit_into_a_terminal(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = json.loads((done / "report.json").read_text())
    evals = {f"/some/where/runs/tiny/{name}": entry for name, entry in report["evals"].items()}
    found = report["pairwise"][0]
    compared = [found | {"baseline": "/some/where/runs/a", "model": "/some/where/runs/b"}]
    for table, last in (
        (tables.results_table(evals, {}), "eval s"),
        (tables.tool_table(evals), "refused"),
        (tables.pairwise_table(compared), "saved"),
    ):
        Console(width=80).print(table)
        lines = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
        assert [line for line in lines[:3] if line.endswith(f" {last}")]
        assert not [line for line in lines if len(line) > 80 or "…" in line]
        assert [line for line in lines if line.startswith(" /some/where")]


def test_show_lists(graded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def marks(*options: object) -> list[str]:
        assert status("show", graded, *options) == 0
        return re.findall(r"right|wrong", capsys.readouterr().out)

    assert marks() == ["right", "wrong", "wrong"]
    assert marks("--wrong") == ["wrong", "wrong"]
    assert marks("--limit", 2) == ["right", "wrong"]


def test_show_one_in_full(graded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trajectories = read_trajectories(graded / "evaluations" / "sft2.jsonl")
    for options, index in ([["--number", 0], 0], [["--wrong", "--number", 1], 2]):
        assert status("show", graded, *options) == 0
        shown = " ".join(capsys.readouterr().out.split())
        assert trajectories[index].task.question in shown
        assert f"gold {trajectories[index].task.answers[0]}" in shown
    assert status("show", graded, "--number", 3) == 2
    assert sentence(capsys) == "there are 3 trajectories to show, counted from 0."


def test_show_what_is_trained(graded: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trajectory = read_trajectories(graded / "evaluations" / "sft2.jsonl")[1]
    policy = sum(len(s.ids) for s in trajectory.segments if s.author == "policy")
    assert status("show", graded, "--mask", "--number", 1) == 0
    assert capsys.readouterr().out.endswith(
        f"{policy} of {len(trajectory.ids)} tokens are trained (policy)\n"
    )


def test_show_the_report_and_unknown_stages(
    graded: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("show", graded, "--html") == 2
    assert sentence(capsys) == f"{graded} has no report yet: let 'fieldcraft run' go on."
    (graded / "report.html").touch()
    assert status("show", graded, "--html") == 0
    assert capsys.readouterr().out == f"{graded}/report.html\n"
    assert status("show", graded, "--stage", "rl9") == 2
    assert sentence(capsys) == f"{graded} has no evaluation of 'rl9': it has sft2."


# -- worlds, indexes, servers ------------------------------------------------------------------


def test_world_atlas_is_written_whole(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "world"
    settings = ["world.people=30", "evaluation.splits.heldout=5", "scratch.layers=2"]
    assert status("world", "atlas", *settings, "--model", "--out", out) == 0
    names = ["corpus.jsonl", "evaluation.jsonl", "model", "train.jsonl"]
    assert capsys.readouterr().out.splitlines() == [str(out / name) for name in names]
    corpus = (out / "corpus.jsonl").read_text().splitlines()
    assert len(corpus) == 30 + 6 + 6 + 3  # people, companies, cities, countries
    assert (out / "model" / "tokenizer.json").exists()
    assert status("world", "atlas", "--out", out) == 2
    assert "exists and is not empty" in sentence(capsys)


def test_index_takes_a_hotpotqa_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    record = {"context": [["Ada", ["Ada is a person. ", "So is Bo."]], ["Bo", ["Bo too."]]]}
    source = tmp_path / "hotpot.jsonl"
    source.write_text(json.dumps(record))
    assert status("index", source, "--out", tmp_path / "index") == 0
    assert capsys.readouterr().out == f"{tmp_path / 'index'}: 2 passages\n"


def test_index_by_vectors(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("sentence_transformers", reason="needs the extra dense")
    encoder = write_bert(tmp_path / "encoder", seed=0)
    for options, ranking in (([], "hybrid"), (["--ranking", "dense", "--hnsw"], "dense")):
        out = tmp_path / ranking
        assert status("index", files["corpus"], "--out", out, "--encoder", encoder, *options) == 0
        assert json.loads((out / "manifest.json").read_text())["ranking"] == ranking
    capsys.readouterr()
    assert status("index", files["corpus"], "--out", tmp_path / "no", "--hnsw") == 2
    assert sentence(capsys).startswith("Search by vectors needs an encoder")


def test_serve_search_answers(files: dict[str, Path], tmp_path: Path) -> None:
    index = tmp_path / "index"
    assert status("index", files["corpus"], "--out", index) == 0
    command = [sys.executable, "-m", "fieldcraft", "serve", "search", "--index", str(index)]
    server = subprocess.Popen([*command, "--port", "0"], stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    address = server.stdout.readline().split()[-1]
    found = httpx.post(f"{address}/retrieve", json={"queries": ["film 2"], "topk": 1}).json()
    server.send_signal(signal.SIGINT)
    server.communicate(timeout=30)
    assert server.returncode == 0
    assert found["result"][0][0]["contents"] == '"Film 2"\nDirector 2 made it.'


def test_bench_is_only_in_a_checkout(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("bench", "search", "--help") == 0
    monkeypatch.setattr(cli, "__file__", str(tmp_path / "a" / "b" / "cli.py"))
    assert status("bench", "search") == 2
    assert "run it from a checkout" in sentence(capsys)


def test_recipes_and_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("recipes") == 0
    assert re.search(r"^hotpotqa +Real questions, ", capsys.readouterr().out, re.MULTILINE)
    assert status("--version") == 0
    assert capsys.readouterr().out == f"fieldcraft {fieldcraft.__version__}\n"
