"""Runs on demonstrations that their search makes, and the check of such runs."""

import json
import shutil
from pathlib import Path

import pytest

from cli_parts import status
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.extensions.search.index import build_index
from fieldcraft.extensions.search.server import create_app
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Answer, ToolCall
from retrieval_parts import FOUNDERS, make_question, write_lines, write_towns


def read_ids(path: Path) -> list[str]:
    return [json.loads(line)["id"] for line in path.read_text().splitlines()]


@pytest.fixture(scope="module")
def towns(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return write_towns(tmp_path_factory.mktemp("towns"))


@pytest.fixture(scope="module")
def finished(towns: list[str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    assert status("run", *towns, "--out", out) == 0
    return out


def test_a_stage_is_trained_on_what_the_search_found(finished: Path) -> None:
    folder = finished / "retrieved"
    found = read_demonstrations(folder / "demonstrations.jsonl")
    asked = read_ids(finished / "world/train.jsonl")
    reached = [town for town in asked if town != "Oakdale"]  # in the order of the questions
    assert [task.id for task, _ in found] == reached
    for task, steps in found:
        queries = [step.arguments["query"] for step in steps if isinstance(step, ToolCall)]
        assert queries[0] == task.question
        assert task.meta["searches"] == len(queries) == (2 if task.id == "Ironton" else 1)
        assert steps[-1] == Answer(FOUNDERS[task.id])
    report = json.loads((finished / "report.json").read_text())
    assert report["stages"][0]["name"] == "sft"
    assert report["retrieved"] == json.loads((folder / "summary.json").read_text())


def test_the_card_has_the_share_of_the_questions_and_the_ceiling(finished: Path) -> None:
    folder = finished / "retrieved"
    summary = json.loads((folder / "summary.json").read_text())
    assert summary == {
        "questions": 8,
        "demonstrations": 7,
        "by_searches": {"1": 6, "2": 1},
        "ceilings": {"1": 6 / 8, "2": 7 / 8},
        "left_out": {"no answer in the passages found": 1},
    }
    card = json.loads((folder / "card.json").read_text())
    [rule] = card["cuts"]
    assert (rule["before"], rule["after"], rule["dropped"]) == (8, 7, summary["left_out"])
    assert card["figures"]["1 search"]["retrieval ceiling"] == 6 / 8
    assert "answer found by the search" in (folder / "card.html").read_text()
    left_out = read_demonstrations(folder / "left_out.jsonl")
    assert [(task.id, task.meta["reason"]) for task, _ in left_out] == [
        ("Oakdale", "no answer in the passages found")
    ]


def test_a_seed_determines_the_demonstrations(
    finished: Path, towns: list[str], tmp_path: Path
) -> None:
    def run(name: str, *overrides: str) -> bytes:
        assert status("run", *towns, *overrides, "--out", tmp_path / name) == 0
        return (tmp_path / name / "retrieved/demonstrations.jsonl").read_bytes()

    first = (finished / "retrieved/demonstrations.jsonl").read_bytes()
    assert run("same") == first
    assert run("other", "seed=1") != first


def test_a_resumed_run_reads_what_it_has_retrieved(
    finished: Path, towns: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    for name in ("sft", "evaluations"):
        shutil.rmtree(out / name)
    demonstrations = out / "retrieved/demonstrations.jsonl"
    changed = demonstrations.read_text().replace("I look it up.", "Now.")
    demonstrations.write_text(changed)
    assert status("run", *towns, "--out", out) == 0
    assert demonstrations.read_text() == changed
    assert (out / "sft/model").exists()


def test_filters_apply_to_retrieved_demonstrations(towns: list[str], tmp_path: Path) -> None:
    """Chains with one search have too few interactions."""
    arguments = [*towns, "stages.sft.filters={complexity: {least: 2}}", "stages.sft.batch_size=1"]
    assert status("run", *arguments, "--out", tmp_path / "run") == 0
    kept = read_demonstrations(tmp_path / "run/sft/data/demonstrations.jsonl")
    assert [task.id for task, _ in kept] == ["Ironton"]


@pytest.mark.long
@pytest.mark.parametrize("name", ["nq", "two-hop"])
def test_the_recipes_have_all_rows(name: str, towns: list[str], tmp_path: Path) -> None:
    tiny = ["device=cpu", "budget.max_turn_tokens=12", "stages.sft.batch_size=2"]
    tiny += [f"stages.sft-longer.{key}" for key in ("steps=1", "batch_size=2")]
    for stage in ("rl-em", "rl-f1", "otc-grpo", "distil-wrong", "dgpo"):
        tiny += [f"stages.{stage}.{key}" for key in ("steps=1", "questions_per_step=1")]
        tiny.append(f"stages.{stage}.group_size=2")
    assert status("run", name, *towns[1:], *tiny, "--out", tmp_path / "run") == 0
    evaluations = json.loads((tmp_path / "run/report.json").read_text())["evals"]
    workflows = ["closed-book", "prompted-rag", "retrieval-ceiling", "search-ceiling"]
    sampled = ["rl-em", "rl-f1", "otc-grpo", "sft-longer", "distil-wrong", "dgpo"]
    assert [*evaluations] == ["base", *workflows, "sft", *sampled]
    assert {evaluations[row]["em"] for row in workflows[2:]} == {1.0}


# -- check --------------------------------------------------------------------------------------


def check(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    code = status("check", *arguments)
    captured = capsys.readouterr()
    return code, " ".join((captured.out + captured.err).split())


def test_check_makes_demonstrations_and_shows_them(
    towns: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = check(capsys, *towns, "--show", "7")
    assert code == 0
    assert "of the first 8: " in output
    assert "retrieval ceiling with 1, 2, ... searches" in output
    assert "retrieved (stage sft)" in output
    assert "stage sft" in output


def test_check_searches_with_the_server_of_the_run(
    towns: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Path(towns[-1].partition("=")[2])
    index = build_index(corpus, tmp_path / "index")
    with serve_in_thread(create_app(index)) as url:
        code, output = check(capsys, *towns[:-1], "required_paths=[]", f"search.url={url}")
    assert code == 0
    assert "of the first 8: " in output


@pytest.fixture
def unreachable(towns: list[str], tmp_path: Path) -> list[str]:
    questions = [make_question(town, "Nobody Known") for town in FOUNDERS]
    path = write_lines(tmp_path / "unreachable.jsonl", questions)
    return [*towns[:3], f"tasks={path}", *towns[4:]]


def test_no_reachable_answer_is_one_sentence(
    unreachable: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, output = check(capsys, *unreachable)
    assert code == 2
    sentence = "the search reaches the answer of none of the 8 questions"
    assert output.count(sentence) == 1
    assert "stage sft" not in output
    assert status("run", *unreachable, "--out", tmp_path / "run") == 2
    error = capsys.readouterr().err
    assert sentence in error
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dialect=torl"], "can only call `python`"),
        (["stages.sft.dataset=retreived"], "data set 'retreived' is unknown here"),
        (["retrieve.read_thought='{passage}'"], "unknown placeholder {passage}"),
        (["retrieve.read_thought='so {'"], "has a single brace"),
        (["retrieve.read_thought='{answer:x}'"], "unknown placeholder {answer}"),
        (["retrieve.serches=1"], "unknown key 'retrieve.serches'; did you mean"),
        (["retrieve.searches=0"], "greater than 0"),
        (["retrieve.searches=3"], "budget.max_calls=2"),
        (["tools=[]"], "give tasks=FILE and the tool search"),
        (["corpus=null"], "corpus=PATH on the command line, such as a file that 'fieldcraft"),
    ],
)
def test_mistakes_are_told_before_a_run(
    towns: list[str],
    overrides: list[str],
    message: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    code, output = check(capsys, *towns, *overrides)
    assert code == 2
    assert message in output
    assert status("run", *towns, *overrides, "--out", tmp_path / "run") == 2
    assert not (tmp_path / "run").exists()
