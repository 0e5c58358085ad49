"""Tests of the commands ask, eval and export."""

import json
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import PlainTextResponse

from chat_server import answering, completion
from cli_parts import TINY, lines, sentence, status
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.tools.addresses import find_free_port
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Status, Task, Trajectory, UserError

pytestmark = pytest.mark.long


def test_ask_shows_what_the_last_stage_writes(
    done: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorded = next(read_trajectories(done / "evaluations" / "rl2.jsonl"))
    assert status("ask", "--model", done, recorded.task.question) == 0
    output = capsys.readouterr().out
    assert recorded.task.question in " ".join(output.split())
    assert "not graded" in output
    assert recorded.status.value in output
    assert "gold" not in output


def test_index_says_which_passages_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, index = tmp_path / "corpus.jsonl", tmp_path / "index"
    corpus.write_text('{"text": "a"}\n{"picture": "b"}\n')
    assert status("index", corpus, "--out", index) == 2
    assert "1 of the 2 records of" in sentence(capsys)
    assert status("index", corpus, "--out", index, "--max-left-out", 0.5) == 0
    message = f"1 of {corpus} left out: no passage\n{index}: 1 passages\n"
    assert capsys.readouterr().out == message


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
    assert sentence(capsys) == (
        "only one search is supported: give --index or --search-url, not both."
    )


def test_a_search_that_no_tool_uses_is_refused(
    files: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--model", files["model"], "--dialect", "hermes", "--tasks", files["tasks"]]
    options += ["--search-url", "http://127.0.0.1:9"]
    assert status("eval", *options, "--tool", "python") == 2
    assert sentence(capsys).endswith("has no tool search: leave out --index and --search-url.")


def test_eval_samples_each_question_several_times(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Samples of a question differ; repeating the command gives the same samples."""
    given = ["--model", done / "rl2", "--tasks", done / "world" / "evaluation.jsonl", "--limit", 3]
    reports = []
    for folder in ("one", "two"):
        options = ["--samples", 4, "--temperature", 1.0, "--out", tmp_path / folder]
        assert status("eval", *given, *options) == 0
        found = json.loads((tmp_path / folder / "eval.json").read_text())["evals"][str(given[1])]
        reports.append((found["n"], found["tokens_mean"], found["sampled"]))
    assert reports[0] == reports[1]
    assert (reports[0][0], reports[0][2]["samples"]) == (12, 4)
    assert "avg@4" in capsys.readouterr().out
    assert status("eval", *given, "--samples", 2) == 2
    assert "set temperature" in sentence(capsys)


def test_eval_says_which_questions_are_left_out(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "q.jsonl"
    file.write_text('{"question": "Who made film 1?", "answer": "Ada"}\n{"question": "Who?"}\n')
    given = ["--model", done / "rl2", "--tasks", file]
    assert status("eval", *given) == 2
    assert "1 of the 2 records of" in sentence(capsys)
    assert status("eval", *given, "--max-left-out", 0.5) == 0
    assert f"1 of {file} left out: no answer" in capsys.readouterr().out


def test_an_evaluation_is_kept_before_it_is_shown(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*tables: object) -> None:
        raise UserError("it cannot be shown.")

    monkeypatch.setattr("fieldcraft.cli.agents.build_results_table", broken)
    given = ["--model", done / "rl2", "--tasks", done / "world" / "evaluation.jsonl", "--limit", 1]
    assert status("eval", *given, "--out", tmp_path) == 2
    assert json.loads((tmp_path / "eval.json").read_text())["n"] == 1


def test_eval_compares_models(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = done / "world" / "evaluation.jsonl"
    models = ["--model", done / "rl2", "--model", done / "base"]
    assert status("eval", *models, "--tasks", tasks, "--limit", 3, "--out", tmp_path) == 0
    output = capsys.readouterr().out
    report = json.loads((tmp_path / "eval.json").read_text())
    assert report["n"] == 3
    assert list(report["evals"]) == [str(done / "rl2"), str(done / "base")]
    recorded = list(read_trajectories(done / "evaluations" / "rl2.jsonl"))[:3]
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
    assert "McNemar" in output
    assert output.rstrip().endswith("eval.json")
    assert "judge" not in output
    assert "judge" not in report


async def lookup(word: str) -> str:
    """Look a word up.

    Args:
        word: what to look up.
    """
    return f"{word} is a word"


def test_eval_offers_other_tools(
    files: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    offered = []

    async def answer(env: ToolEnvironment, task: Task, *_: object) -> Trajectory:
        offered.append([tool.name for tool in env.tools])
        return Trajectory(task, answer="x", status=Status.ANSWERED)

    monkeypatch.setattr(ToolEnvironment, "run", answer)
    tasks = lines(tmp_path / "tasks.jsonl", [{"question": "Who?", "answer": "x"}])
    given = ["--model", files["model"], "--dialect", "hermes", "--tasks", tasks]
    assert status("eval", *given, "--tool", f"{__name__}:lookup", "--tool", "python") == 0
    assert offered == [["lookup", "python"]]
    capsys.readouterr()
    assert status("eval", *given, "--tool", "serch") == 2
    assert "unknown tool 'serch'" in sentence(capsys)


def test_eval_asks_a_judge(done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answer(env: ToolEnvironment, task: Task, *_: object) -> Trajectory:
        return Trajectory(task, answer=f"{task.answers[0]} it is", status=Status.ANSWERED)

    monkeypatch.setattr(ToolEnvironment, "run", answer)
    tasks = [{"question": f"Who is {name}?", "answer": name} for name in ("Vir", "Ser")]
    app, got = answering(completion("Hello."), completion("Verdict: correct"))
    with serve_in_thread(app) as url:
        given = ["--model", done / "base", "--tasks", lines(tmp_path / "tasks.jsonl", tasks)]
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
    with serve_in_thread(answering(PlainTextResponse("who?", 401))[0]) as url:
        assert status(*given, "--judge-url", f"{url}/v1") == 2
    assert "The model 'm' does not answer" in sentence(capsys)


def test_a_run_with_a_judge_as_its_reward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def answered(env: ToolEnvironment, *given: Any) -> Trajectory:
        trajectory = await run_rollout(*given[:2], env, given[2])
        trajectory.answer = "Nobody"  # such a small model does not get that far
        return trajectory

    monkeypatch.setattr(ToolEnvironment, "run", answered)
    app, got = answering(completion("Verdict: correct"))
    with serve_in_thread(app) as url:
        judge = [f"judge.url={url}/v1", "judge.model=m", "judge.votes=1"]
        stage = ["stages.rl2.rewards={judge: 1.0}", "evaluation.workflows=[]"]
        assert status("run", "smoke", *TINY, *judge, *stage, "--out", tmp_path / "run") == 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert "judge/verdict-1" in report["versions"]["rules"]
    assert {e["judge"] for e in report["evals"].values()} == {1.0}
    [row] = [json.loads(r) for r in (tmp_path / "run/rl2/metrics.jsonl").read_text().splitlines()]
    assert (row["reward_mean"], row["em"], row["ungradable_rate"]) == (1.0, 0.0, 0.0)
    # "Nobody" as the answer to a question is judged once, regardless of the model that gives it.
    judged = [text for text in (json.dumps(r["messages"]) for r in got) if "Say ok" not in text]
    assert len(set(judged)) == len(judged) > 0
    assert (tmp_path / "run" / "judge.sqlite").exists()


def test_eval_measures_simulators_against_the_world(
    done: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    models = ["--model", done / "rl2", "--model", done / "sft2"]
    assert status("eval", "--simulator", *models, "--limit", 3, "--out", tmp_path) == 0
    output = capsys.readouterr().out
    assert output.rstrip().endswith("simulator.json")
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
    assert "compared with a real search: give --index or --search-url" in capsys.readouterr().err
    index = ["--index", tmp_path / "index"]
    for option in (("--temperature", 1), ("--samples", 2), ("--sampling", "recipe")):
        assert status("eval", "--simulator", *options, *index, *option) == 2
        assert "--simulator samples once, as the run does" in capsys.readouterr().err
    assert status("eval", "--simulator", "--model", files["model"], *index) == 2
    assert "no questions to simulate for: give a file with --tasks" in capsys.readouterr().err
    assert status("eval", "--simulator", *options, *index, "--out", tmp_path) == 0
    report = json.loads((tmp_path / "simulator.json").read_text())
    assert report["simulators"][str(files["model"])]["fidelity"]["taught"] is None


def test_eval_needs_questions(done: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert status("eval", "--model", done) == 2
    assert sentence(capsys) == "there are no questions to grade: give a file with --tasks."


def test_a_judge_that_does_not_answer_leaves_no_file(
    checkpoint: Path, files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    judge = ["--judge-url", f"http://127.0.0.1:{find_free_port('127.0.0.1')}/v1"]
    given = ["--tasks", files["tasks"], "--dialect", "hermes", "--out", tmp_path / "out"]
    assert status("eval", "--model", checkpoint, *given, *judge, "--judge-model", "m") == 2
    assert "does not answer at" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
