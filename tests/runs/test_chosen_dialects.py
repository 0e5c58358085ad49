"""The dialect of a model without a named one: chosen once, logged, stored and passed on."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

import fieldcraft as fc
from call_families import CALL_FAMILIES
from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from families import FAMILIES
from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.loading import load_recipe, parse_recipe
from fieldcraft.records.events import EventBus, LogMessage
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.dialects import choose_dialect, load_dialect
from fieldcraft.runs.export import export
from fieldcraft.runs.folder import find_run
from fieldcraft.runs.run import run_recipe
from fieldcraft.types import UserError

PYTHON, SEARCH = "python", "search"
FOLD = {"fold": {"trigger_tokens": 1500}}


def without_template() -> PreTrainedTokenizerFast:
    tokenizer = tiny_tokenizer()
    tokenizer.chat_template = None
    return tokenizer


TOKENIZERS = {
    "tools": tiny_tokenizer,
    "chat": FAMILIES["smollm2"].tokenizer,
    "base": without_template,
}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        name: write_tiny_checkpoint(folder / name, "llama", tokenizer=make())
        for name, make in TOKENIZERS.items()
    }


def recipe_of(model: Path | None, **keys: Any) -> Recipe:
    return Recipe(name="own", model=model, stages={}, **keys)


@pytest.mark.parametrize(
    ("model", "tools", "budget", "name", "why"),
    [
        ("tools", [SEARCH], {}, "hermes", "the chat template of {} writes tool calls"),
        ("tools", [PYTHON], {}, "hermes", "the chat template of {} writes tool calls"),
        ("chat", [SEARCH], {}, "autocoa", "the chat template of {} writes no tool calls"),
        ("chat", [], {}, "autocoa", "the chat template of {} writes no tool calls"),
        ("chat", [PYTHON], {}, "torl", "the chat template of {} writes no tool calls"),
        ("base", [SEARCH], {}, "autocoa", "{} has no chat template"),
        (
            "chat",
            [SEARCH, PYTHON],
            {},
            "hermes",
            "the chat template of {} writes no tool calls, and no dialect of text tags calls"
            " python, search",
        ),
        (
            "base",
            [{"name": SEARCH, "names": "find(words)"}],
            {},
            "hermes",
            "{} has no chat template, and no dialect of text tags calls find",
        ),
        (
            "chat",
            [{"mcp": {"command": ["server"]}}],
            {},
            "hermes",
            "the chat template of {} writes no tool calls, and no dialect of text tags calls mcp",
        ),
        ("base", [SEARCH], FOLD, "autocoa", "{} has no chat template"),
        (
            "base",
            [PYTHON],
            FOLD,
            "hermes",
            "{} has no chat template, and no dialect of text tags can be folded",
        ),
        (None, [SEARCH], {}, "autocoa", "the run creates the model, which learns one from scratch"),
    ],
)
def test_the_choice(
    models: dict[str, Path],
    model: str | None,
    tools: list[Any],
    budget: dict[str, Any],
    name: str,
    why: str,
) -> None:
    folder = models[model] if model else None
    recipe = recipe_of(folder, tools=tools, budget=budget)
    chosen = choose_dialect(recipe)
    assert (chosen.name, chosen.why) == (name, why.format(folder))
    assert chosen.message == (
        f"dialect: {name}, because {why.format(folder)}; dialect=NAME changes it"
    )
    if folder is not None:
        assert load_dialect(recipe, folder).name == name


@pytest.mark.parametrize("name", ["search-r1", "hermes"])
def test_a_dialect_with_a_name_is_no_choice(models: dict[str, Path], name: str) -> None:
    for folder in models.values():
        chosen = choose_dialect(recipe_of(folder, dialect=name))
        assert (chosen.name, chosen.why) == (name, "")
        assert load_dialect(recipe_of(folder, dialect=name), folder).name == name


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
@pytest.mark.parametrize("tools", [[], [SEARCH], [PYTHON], [SEARCH, PYTHON]])
def test_no_choice_is_refused(tmp_path: Path, family: Any, tools: list[str]) -> None:
    write_tiny_checkpoint(tmp_path, "llama", tokenizer=family.tokenizer())
    recipe = recipe_of(tmp_path, tools=tools)
    schemas = _schemas(tools)
    assert load_dialect(recipe, tmp_path).encode_prompt("Who?", schemas)


def _schemas(tools: list[str]) -> list[dict[str, Any]]:
    function = {"description": "It helps.", "parameters": {"type": "object", "properties": {}}}
    return [{"type": "function", "function": {"name": name, **function}} for name in tools]


# -- runs -----------------------------------------------------------------------------------------


def run_of(model: Path, folder: Path, **keys: Any) -> Recipe:
    write(folder / "q.jsonl", [{"question": f"Who is {i}?", "answer": "Ada"} for i in range(4)])
    write(folder / "c.jsonl", [{"text": "Ada is one."}])
    optim = {"lr": 1e-4, "micro_batch_tokens": 512}
    rl = {"type": "rl", "steps": 1, "questions_per_step": 1, "group_size": 2, "optim": optim}
    data = {
        "name": "own",
        "model": str(model),
        "tasks": str(folder / "q.jsonl"),
        "corpus": str(folder / "c.jsonl"),
        "budget": {"max_turn_tokens": 8, "max_context_tokens": 1500},
        "evaluation": {"splits": {"heldout": 1}, "workflows": []},
        "stages": {"rl": rl},
    }
    return parse_recipe({**data, **keys})


def write(file: Path, records: list[dict[str, Any]]) -> None:
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")


def lines_of(recipe: Recipe, out: Path) -> list[str]:
    messages: list[str] = []
    run_recipe(
        recipe,
        out,
        EventBus([lambda e: messages.append(e.text) if isinstance(e, LogMessage) else None]),
    )
    return [line for line in messages if line.startswith("dialect:")]


def test_a_run_says_its_choice_once_keeps_it_and_hands_it_on(
    tmp_path: Path, models: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, out = run_of(models["chat"], tmp_path), tmp_path / "run"
    [line] = lines_of(recipe, out)
    assert line.startswith("dialect: autocoa, because the chat template of")
    assert json.loads((out / "recipe.json").read_text())["dialect"] is None
    assert find_agent(out).recipe.dialect == "autocoa"

    choice = json.loads((out / "dialect.json").read_text()) | {"name": "search-r1", "why": "so"}
    (out / "dialect.json").write_text(json.dumps(choice))  # as if written by other rules
    assert lines_of(recipe, out) == ["dialect: search-r1, because so; dialect=NAME changes it"]
    assert find_agent(out / "rl").dialect.name == "search-r1"
    export(out, tmp_path / "out", "float32")
    assert json.loads((tmp_path / "out" / "fieldcraft.json").read_text())["dialect"] == "search-r1"
    again = run_of(tmp_path / "out", tmp_path)
    assert again.dialect == "search-r1"
    assert find_agent(tmp_path / "out").dialect.name == "search-r1"
    assert "dialect:" not in capsys.readouterr().err


def test_a_file_that_is_damaged_is_named(tmp_path: Path, models: dict[str, Path]) -> None:
    out = tmp_path / "run"
    lines_of(run_of(models["chat"], tmp_path, stages={}), out)
    (out / "dialect.json").write_text("[]")
    with pytest.raises(UserError, match=r"dialect\.json.*to choose again"):
        find_run(out)


def test_check_says_the_choice(tmp_path: Path, models: dict[str, Path]) -> None:
    notes: dict[str, list[str]] = {}
    recipe = run_of(models["tools"], tmp_path)
    assert (
        check_recipe(recipe, tmp_path, lambda name, found, _: notes.update({name: [*found]})) == []
    )
    why = f"the chat template of {models['tools']} writes tool calls"
    assert notes["dialect"] == [f"hermes, because {why} (dialect=)"]
    assert (
        check_recipe(
            recipe.model_copy(update={"dialect": "otc"}),
            tmp_path,
            lambda name, found, _: notes.update({name: [*found]}),
        )
        == []
    )
    assert notes["dialect"] == ["otc"]


def test_a_world_without_a_model_is_as_it_was() -> None:
    recipe = load_recipe("smoke", ["dialect=null"])
    assert recipe.dialect is None
    assert choose_dialect(recipe).name == "autocoa"


# -- agents ---------------------------------------------------------------------------------------


def test_ask_says_the_choice(
    models: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    agent = fc.load(models["tools"], budget={"max_turn_tokens": 8})
    agent.ask("Who?")
    agent.ask("Where?")
    why = f"the chat template of {models['tools']} writes tool calls"
    assert capsys.readouterr().err == f"dialect: hermes, because {why}; dialect=NAME changes it\n"
    fc.load(models["tools"], budget={"max_turn_tokens": 8}, dialect="otc").ask("Who?")
    assert capsys.readouterr().err == ""


def test_an_exported_checkpoint_has_the_name(tmp_path: Path, models: dict[str, Path]) -> None:
    export(models["base"], tmp_path / "out", "float32")
    assert json.loads((tmp_path / "out" / "fieldcraft.json").read_text())["dialect"] == "autocoa"


@pytest.mark.parametrize(
    ("model", "environment", "name"),
    [
        ("tools", "bfcl", "hermes"),
        ("chat", "bfcl", "hermes"),  # the tools of a question are described in its prompt
        ("base", "bfcl", "hermes"),
        ("chat", "text", "autocoa"),  # not used: a game has only the chat template
    ],
)
def test_an_environment_may_call_tools_in_the_dialect(
    models: dict[str, Path], model: str, environment: str, name: str
) -> None:
    recipe = recipe_of(models[model], environment={"name": environment})
    assert choose_dialect(recipe).name == name


def test_an_environment_that_calls_tools_follows_the_template(tmp_path: Path) -> None:
    tokenizer = CALL_FAMILIES["Llama 3.1"].tokenizer()
    model = write_tiny_checkpoint(tmp_path, "llama", tokenizer=tokenizer)
    names = {
        name: choose_dialect(recipe_of(model, environment={"name": name}, dialect="auto")).name
        for name in ("bfcl", "text")
    }
    assert names == {"bfcl": "auto", "text": "autocoa"}
