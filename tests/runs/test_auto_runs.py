"""Models whose templates write calls in other formats than Hermes: check, and a step of each
kind."""

import json
from pathlib import Path
from typing import Any

import pytest

from call_families import CALL_FAMILIES, QWEN_HERMES
from checkpoints import write_tiny_checkpoint
from fieldcraft.config.recipe import Recipe
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.records.events import EventBus, LogMessage
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.dialect_choice import (
    DialectChoice,
    read_dialect_choice,
    with_recorded_dialect,
    write_dialect_choice,
)
from fieldcraft.runs.dialects import choose_dialect
from fieldcraft.runs.run import run_recipe
from fieldcraft.types import Author, UserError

EVERY = pytest.mark.parametrize("name", CALL_FAMILIES)
NAMES = ("Ada", "Bo", "Cy", "Di")


def model_of(family: Any, folder: Path) -> Path:
    tokenizer = family.tokenizer()
    model = write_tiny_checkpoint(folder / "model", "llama", tokenizer=tokenizer)
    settings = model / "generation_config.json"
    ends = {"eos_token_id": list(family.ends(tokenizer))}
    settings.write_text(json.dumps(json.loads(settings.read_text()) | ends))
    return model


def recipe_of(model: Path, folder: Path, **keys: Any) -> Recipe:
    """Return a recipe with a step of SFT on demonstrations that search, and one of RL."""
    steps = [
        {
            "id": name,
            "metadata": {},
            "question": f"Where was {name} born?",
            "golden_answers": [f"{name}port"],
            "steps": [
                {"thought": "I look."},
                {"action": "search", "arguments": {"query": name}},
                {"observation": f"{name}: port"},
                {"answer": f"{name}port"},
            ],
        }
        for name in NAMES
    ]
    for file, records in (
        ("shown", steps),
        ("tasks", [{"question": s["question"], "answer": s["golden_answers"][0]} for s in steps]),
        ("corpus", [{"text": f"{name}: {name}port"} for name in NAMES]),
    ):
        (folder / f"{file}.jsonl").write_text("".join(f"{json.dumps(r)}\n" for r in records))
    optim = {"lr": 1e-3, "micro_batch_tokens": 2048}
    sft = {"type": "sft", "dataset": "demonstrations", "steps": 1, "batch_size": 2, "optim": optim}
    rl = {"type": "rl", "start_from": "sft", "steps": 1, "questions_per_step": 1, "group_size": 2}
    data = {
        "name": "auto",
        "model": str(model),
        "device": "cpu",
        "tasks": str(folder / "tasks.jsonl"),
        "corpus": str(folder / "corpus.jsonl"),
        "demonstrations": str(folder / "shown.jsonl"),
        "budget": {"max_turn_tokens": 8, "max_context_tokens": 2000, "max_calls": 1},
        "evaluation": {"splits": {"heldout": 1}, "workflows": []},
        "max_num_seqs": 4,
        "stages": {
            "sft": sft,
            "rl": {**rl, "optim": optim, "rewards": {"auto_parts:rank_rollouts": 1.0, "em": 1.0}},
        },
    }
    return parse_recipe({**data, **keys})


@pytest.mark.long
@EVERY
def test_a_model_is_checked_and_trained(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family, out, lines = CALL_FAMILIES[name], tmp_path / "run", []
    model = model_of(family.family, tmp_path)
    recipe = recipe_of(model, tmp_path)
    notes: dict[str, list[str]] = {}
    assert (
        check_recipe(recipe, tmp_path, lambda part, found, _: notes.update({part: [*found]})) == []
    )
    why = f"the chat template of {model} writes tool calls in the format {family.call_format}"
    assert notes["dialect"] == [f"auto, because {why} (dialect=)"]
    run_recipe(
        recipe, out, EventBus([lambda e: lines.append(e.text) if isinstance(e, LogMessage) else 0])
    )
    assert f"dialect: auto, because {why}; dialect=NAME changes it" in lines
    assert find_agent(out).dialect.template_format == family.call_format
    assert "dialect:" not in capsys.readouterr().err
    [trajectory] = read_trajectories(out / "evaluations" / "rl.jsonl", "")
    assert trajectory.segments[1].author is Author.POLICY
    for stage in ("sft", "rl"):
        metrics = json.loads((out / stage / "stage.json").read_text())["metrics"]
        assert metrics["grad_norm"] > 0


# -- the choice -----------------------------------------------------------------------------------


@EVERY
def test_a_recipe_without_a_dialect_follows_the_template(name: str, tmp_path: Path) -> None:
    family = CALL_FAMILIES[name]
    model = model_of(family.family, tmp_path)
    for named in (None, "auto"):
        choice = choose_dialect(Recipe(name="r", model=model, dialect=named, stages={}))
        assert choice.name == "auto"
        assert choice.why.endswith(f"writes tool calls in the format {family.call_format}")


def test_hermes_stays_hermes_unless_auto_is_named(tmp_path: Path) -> None:
    model = model_of(QWEN_HERMES, tmp_path)
    choice = choose_dialect(Recipe(name="r", model=model, stages={}))
    assert (choice.name, choice.why) == (
        "hermes",
        f"the chat template of {model} writes tool calls",
    )
    named = choose_dialect(Recipe(name="r", model=model, dialect="auto", stages={}))
    assert (named.name, named.why) == (
        "auto",
        f"the chat template of {model} writes tool calls in the format hermes",
    )


def test_auto_without_a_known_format_is_the_choice_for_such_templates(tmp_path: Path) -> None:
    family = CALL_FAMILIES["Gemma 3"].family
    tokenizer = family.tokenizer()
    tokenizer.chat_template = "{% for m in messages %}{{ m.content + eos_token }}{% endfor %}"
    model = write_tiny_checkpoint(tmp_path / "model", "llama", tokenizer=tokenizer)
    for named in (None, "auto"):
        choice = choose_dialect(Recipe(name="r", model=model, dialect=named, stages={}))
        assert choice.name == "autocoa"
        assert choice.why.endswith("writes no tool calls")
    assert choose_dialect(Recipe(name="r", dialect="auto", stages={})).name == "autocoa"


@pytest.mark.parametrize("arguments", ["c.arguments | tojson", "c.arguments + ''"])
def test_a_template_of_an_unknown_family_names_the_dialect(arguments: str, tmp_path: Path) -> None:
    tokenizer = CALL_FAMILIES["Gemma 3"].family.tokenizer()
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.content }}{% for t in m.tool_calls or [] %}"
        f"{{% set c = t.function %}}{{{{ '@' + c.name + ' ' + {arguments} }}}}"
        "{% endfor %}{{ eos_token }}{% endfor %}"
    )
    model = write_tiny_checkpoint(tmp_path / "model", "llama", tokenizer=tokenizer)
    for named in (None, "auto"):
        choice = choose_dialect(Recipe(name="r", model=model, dialect=named, stages={}))
        assert choice == DialectChoice(
            name="autocoa",
            why=f"the chat template of {model} writes tool calls in an unknown format"
            " (dialect=hermes writes them as JSON in <tool_call> tags)",
        )


def test_a_program_in_place_of_a_template_is_named(tmp_path: Path) -> None:
    tokenizer = CALL_FAMILIES["DeepSeek V3.2"].tokenizer()
    template, tokenizer.chat_template = tokenizer.chat_template, None
    model = write_tiny_checkpoint(tmp_path / "model", "llama", tokenizer=tokenizer)
    for named in (None, "auto"):
        with pytest.raises(UserError, match=r"save a template with the same text as .*jinja"):
            choose_dialect(Recipe(name="r", model=model, dialect=named, stages={}))
    assert choose_dialect(Recipe(name="r", model=model, dialect="autocoa", stages={})).why == ""
    (model / "chat_template.jinja").write_text(template)
    choice = choose_dialect(Recipe(name="r", model=model, stages={}))
    assert (choice.name, choice.why[-13:]) == ("auto", "deepseek-v3.2")


def test_a_run_keeps_what_auto_chose(tmp_path: Path) -> None:
    model = model_of(CALL_FAMILIES["Magistral"].family, tmp_path)
    recipe = Recipe(name="r", model=model, dialect="auto", stages={})
    assert read_dialect_choice(recipe, tmp_path) is None
    write_dialect_choice(choose_dialect(recipe), tmp_path)
    assert with_recorded_dialect(recipe, tmp_path).dialect == "auto"
    write_dialect_choice(DialectChoice(name="search-r1", why="so"), tmp_path)  # of other rules
    assert with_recorded_dialect(recipe, tmp_path).dialect == "search-r1"
    other = recipe.model_copy(update={"dialect": "otc"})
    assert with_recorded_dialect(other, tmp_path).dialect == "otc"
