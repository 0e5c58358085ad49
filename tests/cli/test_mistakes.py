"""User errors end in one sentence and with status 2."""

import json
from pathlib import Path

import pytest

from cli_parts import TINY, demonstration, given, sentence, status
from fieldcraft.cli import runs
from fieldcraft.cli.main import main
from fieldcraft.runs import check as preflight
from fieldcraft.runs import run
from fieldcraft.types import UserError


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["run", "autocoa-mimi"], "did you mean 'autocoa-mini'?"),
        (["run", "smoke", "sede=1"], "unknown key 'sede'; did you mean 'seed'?"),
        (["run", "smoke", "world.poeple=9"], "did you mean 'world.people'?"),
        (["run", "smoke", "stages.rl2.grup=9"], "did you mean 'stages.rl2.group_size'?"),
        (["run", "smoke", "seed"], "'seed' is not an override: write key=value, as in seed=7."),
        (["run", "smoke", "seed=[1"], "the value of 'seed=[1' is not valid YAML ("),
        (["run", "smoke", "world.people=20"], "the world has no country in the region"),
        (["run", "smoke", "--out", "/dev/null/run"], "nothing can be written at /dev/null/run"),
        (["world", "atlas", "--out", "/dev/null/w"], "nothing can be written at /dev/null/w"),
        (["world", "atlas"], "give either --out FOLDER or --serve."),
        (["world", "atlas", "--serve", "--out", "w"], "give either --out FOLDER or --serve."),
        (
            ["world", "atlas", "--serve", "--with-model"],
            "writes a model into a folder: leave it out",
        ),
        (["world", "abacus", "--serve"], "the world has no passages to serve as pages: serve"),
        (["world", "atlas", "--out", "w", "--port", "8080"], "are for a server: leave them out"),
        (["world", "atlas", "--out", "w", "--host", "::1"], "are for a server: leave them out"),
        (["ask", "--model", "/none", "--seed", "5", "Why?"], "greedy sampling has no seed: leave"),
        (
            ["ask", "--model", "/none", "--seed", "5", "--temperature", "0", "Why?"],
            "greedy sampling has no seed: leave",
        ),
        (["eval", "--model", "/none", "--judge-votes", "5"], "give --judge-url and --judge-model."),
        (
            ["eval", "--model", "/none", "--benchmark", "bfcl-multiple", "--tool", "python"],
            "the benchmarks have their own questions and tools: leave out --tool.",
        ),
        (
            ["eval", "--model", "/none", "--suite", "bfcl", "--data", ".", "--index", "i"],
            "leave out --data and --index.",
        ),
        (["world", "atlas", "--serve", "--port", "70000"], "There is no port 70000; choose one"),
        (["show", "x" * 300], "File name too long"),
        (["run", "smoke", "seed=x"], "'seed' is wrong: it must be a whole number"),
        (
            ["run", "hotpotqa"],
            "recipe 'hotpotqa' needs model=PATH on the command line: the folder of a model,",
        ),
        (
            ["run", "smollm2", "model=my-model"],
            "give the folder of a model, a .gguf file, or a name",
        ),
        (
            ["run", "smollm2", "model=f/none.gguf"],
            "model=f/none.gguf does not exist: give the folder",
        ),
        (["ask", "--model", "f/missing.gguf", "Why?"], "f/missing.gguf holds no model: give the"),
        (["run", "smoke", "model=my-model"], "leave out model if that stage makes the model"),
        (["run", "smoke", "tasks=/none.jsonl"], "tasks=/none.jsonl does not exist"),
        (["ask", "--model", "/none", "Why?"], "/none holds no model: give the folder of a run"),
        (["eval", "--model", "/none", "--tasks", "/none.jsonl"], "/none.jsonl does not exist"),
        (
            ["run", "zebra"],
            "toolrl, torl, two-hop, unseen-code-mini, unseen-search-mini.",
        ),
        (["run", "."], ". is a folder, not a file; give the path of a YAML file."),
        (["run", "smoke", "stages={}"], "recipe 'smoke' does nothing: give it"),
        (["check", "smoke", "stages={}"], "recipe 'smoke' does nothing: give it stages, or a"),
        (["ask", "--model", "/none", ""], "the question is empty: write one"),
        (["eval", "--model", "/none", "--judge-model", "m"], "give --judge-url and --judge-model."),
        (["branch", "/none", "--index", "0"], "/none is not a run: give a folder that"),
        (["eval", "--model", "/none", "--suite", "nq"], "'nq' is a benchmark and no suite: give"),
        (["eval", "--model", "/none", "--benchmark", "bfcl"], "'bfcl' is a suite and no benchmark"),
        (["eval", "--model", "/none", "--suite", "nosuch"], "there is no suite 'nosuch', and a"),
        (
            ["eval", "--model", "/none", "--benchmark", "nq", "--data", "/no"],
            "/no is not a folder: give the one that has files such as nq.jsonl.",
        ),
        (
            ["eval", "--model", "/none", "--tasks", "/none", "--judge-url", "x", "--judge-model=m"],
            "--judge-url is wrong: 'x' is not an endpoint URL: write http://HOST:PORT/v1.",
        ),
        (
            ["agreement", "/none", "--judge-url", "x", "--judge-model", "m"],
            "--judge-url is wrong: 'x' is not an endpoint URL: write http://HOST:PORT/v1.",
        ),
        (["run", "smoke", "judge={url: x, model: m}"], "'x' is not an endpoint URL: write http://"),
        (["show", "/none"], "/none is not a run: give a folder that 'fieldcraft run' wrote."),
        (["index", "/none.jsonl", "--out", "/none"], "/none.jsonl does not exist"),
        (["serve", "search", "--index", "/none"], "/none holds no search index: rebuild it"),
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


@pytest.mark.parametrize("command", ["world atlas", "export m", "convert ../c --to openai"])
def test_a_folder_to_write_needs_a_name(
    command: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "c").write_text('{"text": "a"}\n')
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    assert status(*command.split(), "--out", ".") == 2
    assert sentence(capsys) == ". has no name of its own: give the name of a new folder in it."
    assert not list((tmp_path / "here").iterdir())


@pytest.mark.parametrize(
    ("key", "content", "complaint"),
    [
        ("corpus", '{"text": "a"}\nnot so\n', "line 2: the line is not JSON"),
        (
            "corpus",
            '{"text": "a"}\n{"words": "b"}\n',
            "line 2: the passage needs 'contents' or 'text'",
        ),
        ("tasks", '{"question": "Who?"}\n', "line 1: the question has no answer"),
        ("tasks", '{"question": "Who?", "answer": "I"}\n', "needs two questions or more"),
        ("demonstrations", '{"question": "Who?"}\n', "holds no demonstration, but a question"),
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
    """A run finds them before it starts any work, and leaves no files behind."""

    def execute(*_: object) -> None:
        raise AssertionError("a run over bad files begins")

    files[key].write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(run, "run_recipe", execute)
    before = {*tmp_path.iterdir()}
    for command in ("check", "run"):
        assert status(command, "hotpotqa", *given(files)) == 2
        assert complaint in sentence(capsys)
    assert {*tmp_path.iterdir()} == before


def test_a_run_with_settings_that_cannot_work_does_not_begin(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wrong = ["stages.rl2.group_size=1", "stages.sft2.dataset=pears"]
    assert status("run", "smoke", *TINY, *wrong, "--out", tmp_path / "run") == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith("fieldcraft: the world has no data set 'pears'")
    assert second.startswith("fieldcraft: stage 'rl2' has group_size=1")
    assert not (tmp_path / "run").exists()


def test_no_run_is_refused_over_an_estimate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(*_: object) -> None:
        raise UserError("it begins")

    monkeypatch.setattr(preflight, "read_free_memory", lambda _: 1)
    monkeypatch.setattr(run, "run_recipe", execute)
    assert status("run", "smoke", *TINY, "--out", tmp_path / "run") == 2
    assert sentence(capsys) == "it begins"
    assert status("check", "smoke", *TINY) == 2
    assert "of memory and cpu has 1e-09 GB" in sentence(capsys)


@pytest.mark.long
def test_moments_outside_of_a_gpu_are_refused_before_a_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    wish = ["device=cpu", "stages.rl2.optim.optimizer_state=cpu"]
    assert status("run", "smoke", *TINY, *wish, "--out", tmp_path / "run") == 2
    assert (
        "optimizer_state: cpu offloads the optimizer state from a GPU, and no GPU is in use"
        in sentence(capsys)
    )


def test_a_run_that_goes_on_is_not_checked_again(
    done: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def execute(*_: object) -> None:
        raise UserError("it goes on")

    def check(*_: object) -> None:
        raise AssertionError("checked again")

    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "recipe.json").symlink_to(done / "recipe.json")
    monkeypatch.setattr(preflight, "check_recipe", check)
    monkeypatch.setattr(run, "run_recipe", execute)
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
        assert f"{bare} contains no tokenizer: copy tokenizer.json" in sentence(capsys)
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_a_search_server_that_does_not_answer(
    files: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://127.0.0.1:9"  # the port "discard", on which no server listens
    for command in (["run", "--out", str(tmp_path / "run")], ["check"]):
        small = [
            "evaluation.splits.heldout=1",
            "evaluation.workflows=[]",
            "budget.max_turn_tokens=8",
        ]
        assert status(*command, "hotpotqa", *given(files), f"search.url={url}", *small) == 2
        assert f"No search server answers at {url} (the server cannot be" in sentence(capsys)
    assert not (tmp_path / "run").exists()
    options = ["--model", str(files["model"]), "--search-url", url, "--dialect", "autocoa"]
    assert status("ask", *options, "Why?") == 2
    assert f"No search server answers at {url}" in sentence(capsys)


def test_a_gpu_that_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    assert status("run", "smoke", "device=cuda", "--out", tmp_path / "run") == 2
    assert sentence(capsys) == "device=cuda is set, but torch finds no GPU: use device=cpu."
    assert not (tmp_path / "run").exists()


def test_an_unknown_command_is_a_mistake(capsys: pytest.CaptureFixture[str]) -> None:
    assert status("train") == 2
    assert "No such command 'train'" in capsys.readouterr().err


def test_a_defect_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> list[str]:
        raise ZeroDivisionError

    monkeypatch.setattr(runs, "list_builtin_recipes", broken)
    with pytest.raises(ZeroDivisionError):
        main(["recipes"])


def test_a_mistake_among_rollouts_is_still_one_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[str]:
        raise ExceptionGroup("rollouts", [ExceptionGroup("group", [UserError("fix it.")])])

    monkeypatch.setattr(runs, "list_builtin_recipes", broken)
    assert status("recipes") == 2
    assert sentence(capsys) == "fix it."


def test_fewer_questions_than_asked_for_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    small = ["world.people=30", "world.taught=0.4", "world.heldout=0.5"]
    small.append("evaluation.splits.heldout=5000")
    assert status("world", "atlas", *small, "--out", tmp_path / "world") == 0
    line = capsys.readouterr().out.splitlines()[0]
    assert line.startswith("evaluation.splits.heldout=5000, but the world has only ")


def test_a_cache_that_cannot_be_written_is_named_with_its_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    tmp_path.joinpath("file").write_text("")
    tmp_path.joinpath("model.gguf").write_bytes(b"GGUF")
    for cache in (tmp_path / "file", tmp_path / "file/cache"):
        monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
        assert status("check", "smoke", f"model={tmp_path / 'model.gguf'}") == 2
        assert sentence(capsys).endswith("set XDG_CACHE_HOME to a writable folder.")
