"""Former names of recipe keys: one sentence for a user's recipe, a translation for a stored one."""

import inspect
import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from fieldcraft.cli.main import main
from fieldcraft.config.components import ComponentKind
from fieldcraft.config.distil import Distil
from fieldcraft.config.names import resolve
from fieldcraft.config.recipe import Recipe, dump_recipe, list_added_keys
from fieldcraft.config.renamed_keys import (
    REMOVED_KEYS,
    RENAMED_KEYS,
    RENAMED_VALUES,
    builtin_added_keys,
    translate_stored,
)
from fieldcraft.config.rl import Rl
from fieldcraft.config.stages import Contrastive, Sft
from fieldcraft.recipes.files import BASE_KEY
from fieldcraft.recipes.loading import build_recipe, load_recipe
from fieldcraft.types import UserError
from former_keys import with_former_keys
from shipped_recipes import stand_ins

STAGE_TYPES: dict[str, type[BaseModel]] = {
    "sft": Sft,
    "contrastive": Contrastive,
    "rl": Rl,
    "distil": Distil,
}
FORMER_RECIPE = Path(__file__).with_name("former_recipe.json")
CURRENT_RECIPE = Path(__file__).with_name("current_recipe.yaml")
BUDGETS = ("stages.*.budget", "evaluation.budget")  # their keys are the keys of `budget`


def split(path: str) -> tuple[str, str]:
    parent, _, key = path.rpartition(".")
    return parent, key


def fields_at(path: str) -> dict[str, Any]:
    """Return the keys of a section as the table writes it, with their accepted values."""
    if scoped := re.fullmatch(r"(\w+)\[(\w+)\]", path):
        kind = ComponentKind.TOOL if scoped[1] == "tools" else ComponentKind(scoped[1])
        arguments = inspect.signature(resolve(kind, scoped[2])).parameters
        return {name: argument.annotation for name, argument in arguments.items()}
    for budget in BUDGETS:
        path = path.replace(budget, "budget")
    if path == "":
        return {BASE_KEY: str} | fields_of(Recipe)
    if path == "stages.*":
        return {k: v for settings in STAGE_TYPES.values() for k, v in fields_of(settings).items()}
    parent, key = split(path)
    return fields_of(section_in(fields_at(parent)[key]))


def fields_of(section: type[BaseModel]) -> dict[str, Any]:
    return {name: field.annotation for name, field in section.model_fields.items()}


def section_in(annotation: Any) -> type[BaseModel]:
    """Return the section in a key: alone, in a list or as one of several alternatives."""
    found = [kind for kind in all_kinds(annotation) if issubclass(kind, BaseModel)]
    assert len(found) == 1
    return found[0]


def all_kinds(annotation: Any) -> Iterator[type]:
    if isinstance(annotation, type) and not get_args(annotation):
        yield annotation
    for inner in get_args(annotation):
        yield from all_kinds(inner)


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return the contents of a recipe with a value at a path of the table, in a stage `one`."""
    parent, key = split(path)
    section: Any = {key: value}
    if scoped := re.fullmatch(r"(\w+)\[(\w+)\]", parent):
        parent, section = scoped[1], {"name": scoped[2], **section}
    for name in reversed(parent.split(".") if parent else []):
        section = [section] if name == "tools" else section
        section = {"one" if name == "*" else name: section}
    return section


def place_of(path: str) -> str:
    """Return a path of the table as a sentence names it."""
    return re.sub(r"\[\w+\]", "", path).replace("*", "one").replace("tools.", "tools.0.")


def complaint(folder: Path, data: Mapping[str, Any], *overrides: str) -> str:
    file = folder / "mine.yaml"
    file.write_text(yaml.safe_dump(dict(data)))
    with pytest.raises(UserError) as caught:
        load_recipe(str(file), list(overrides))
    return str(caught.value)


# -- the table ----------------------------------------------------------------------------------


@pytest.mark.parametrize("former", RENAMED_KEYS)
def test_a_former_key_is_gone_and_its_successor_is_there(former: str) -> None:
    parent, key = split(former)
    same_parent, successor = split(RENAMED_KEYS[former])
    assert same_parent == parent
    assert key not in fields_at(parent)
    assert successor in fields_at(parent)


@pytest.mark.parametrize("path", RENAMED_VALUES)
def test_a_former_value_is_gone_and_its_successor_is_there(path: str) -> None:
    parent, key = split(path)
    values = set(get_args(fields_at(parent)[key]))
    assert not values & RENAMED_VALUES[path].keys()
    assert values >= set(RENAMED_VALUES[path].values())


def test_no_place_of_the_table_is_listed_twice() -> None:
    assert len({*RENAMED_KEYS.values()}) == len(RENAMED_KEYS)


@pytest.mark.parametrize("path", REMOVED_KEYS)
def test_a_removed_key_is_gone_and_is_of_a_section(path: str) -> None:
    section, key = split(path)
    assert section in fields_at("")
    assert key not in fields_at(section)


# -- users' recipes -----------------------------------------------------------------------------


@pytest.mark.parametrize("former", RENAMED_KEYS)
def test_a_former_key_in_a_file_is_answered_with_the_new_one(tmp_path: Path, former: str) -> None:
    successor = split(RENAMED_KEYS[former])[1]
    expected = f"{place_of(former)} is now called {successor}."
    assert complaint(tmp_path, nested(former, 1)) == f"{tmp_path / 'mine.yaml'}: {expected}"


@pytest.mark.parametrize("former", [key for key in RENAMED_KEYS if "tools" not in key])
def test_a_former_key_in_an_override_is_answered_too(tmp_path: Path, former: str) -> None:
    parent = split(former)[0]
    component = re.fullmatch(r"(\w+)\[(\w+)\]", parent)
    data = {component[1]: {"name": component[2]}} if component else {}
    place = place_of(former)
    sentence = complaint(tmp_path, data, f"{place}=1")
    assert sentence == f"{place} is now called {split(RENAMED_KEYS[former])[1]}."


@pytest.mark.parametrize(
    ("path", "former", "current"),
    [(path, *pair) for path, pairs in RENAMED_VALUES.items() for pair in pairs.items()],
)
def test_a_former_value_is_answered_with_the_new_one(
    tmp_path: Path, path: str, former: str, current: str
) -> None:
    key, place = split(path)[1], place_of(path)
    expected = f"{place}={former} is now called {key}={current}."
    assert complaint(tmp_path, nested(path, former)) == f"{tmp_path / 'mine.yaml'}: {expected}"
    assert complaint(tmp_path, {}, f"{place}={former}") == expected


def test_a_former_key_with_a_former_value_is_answered_at_once(tmp_path: Path) -> None:
    sentence = complaint(tmp_path, {}, "stages.one.keep_groups=mixed-accuracy")
    assert sentence == "stages.one.keep_groups=mixed-accuracy is now called group_filter=accuracy."


def test_settings_of_the_default_engine_are_answered_without_its_name(tmp_path: Path) -> None:
    sentence = complaint(tmp_path, {}, "engine.step_tokens=9")
    assert sentence == "engine.step_tokens is now called max_batched_tokens."


def test_a_former_key_of_a_user_defined_algorithm_is_answered() -> None:
    stage = {"type": "rl", "algorithm": "former_keys:PRESET", "steps": 1, "optim": {"lr": 1}}
    with pytest.raises(UserError, match=r"sets 'kl_in', .*; it is now called 'kl_placement'\.$"):
        Rl.model_validate(stage)


def test_a_former_key_from_a_program_is_answered() -> None:
    with pytest.raises(UserError, match=r"^max_rows is now called max_num_seqs\.$"):
        build_recipe({"name": "mine", "stages": {}, "max_rows": 3})


def test_a_mistake_of_the_command_line_ends_with_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "mine.yaml").write_text("recipe: mine\n")
    with pytest.raises(SystemExit) as caught:
        main(["run", str(tmp_path / "mine.yaml")])
    assert caught.value.code == 2
    assert capsys.readouterr().err.endswith("mine.yaml: recipe is now called name.\n")


def test_a_file_over_another_recipe_is_answered_too(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    assert complaint(tmp_path, {"like": "smoke"}) == f"{file}: like is now called extends."


@pytest.mark.parametrize("path", REMOVED_KEYS)
def test_a_removed_key_is_answered_with_what_to_do_instead(tmp_path: Path, path: str) -> None:
    sentence = f"{path} no longer exists: {REMOVED_KEYS[path]}."
    assert complaint(tmp_path, nested(path, 0)) == f"{tmp_path / 'mine.yaml'}: {sentence}"
    assert complaint(tmp_path, {}, f"{path}=2") == sentence
    with pytest.raises(UserError, match=re.escape(sentence)):
        build_recipe({"name": "mine", "stages": {}, **nested(path, 1)})


# -- stored recipes -----------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["afm-mini", "autocoa-mini", "distil-mini", "otc-cost-mini"])
def test_a_stored_recipe_is_translated_to_current_keys(name: str) -> None:
    recipe = load_recipe(name, stand_ins(name))
    current = json.loads(json.dumps(dump_recipe(recipe)))
    stored = with_former_keys(current)
    assert {"recipe"} <= stored.keys() - current.keys()
    assert translate_stored(stored, builtin_added_keys) == current
    assert build_recipe(translate_stored(stored, list_added_keys)) == recipe
    assert translate_stored(current, builtin_added_keys) == current


def test_a_recipe_of_the_last_version_with_former_keys_is_read() -> None:
    stored = json.loads(FORMER_RECIPE.read_text())
    written = yaml.safe_load(CURRENT_RECIPE.read_text())
    assert build_recipe(translate_stored(stored, list_added_keys)) == build_recipe(written)


@pytest.mark.parametrize("path", REMOVED_KEYS)
def test_a_stored_recipe_loses_a_removed_key(path: str) -> None:
    recipe = load_recipe("smoke", [])
    stored = json.loads(json.dumps(dump_recipe(recipe)))
    section, key = split(path)
    stored[section][key] = 2
    assert build_recipe(translate_stored(stored, list_added_keys)) == recipe
    assert stored[section][key] == 2  # consent is given to the contents of the file
    assert translate_stored({section: [key]}, list_added_keys) == {section: [key]}


def test_keys_of_a_user_defined_stage_type_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "own")
    own = {
        "type": "own_parts:Rejection",
        "steps": 1,
        "questions": 2,
        "group": 2,
    }  # has the last two
    stage = own | {"start": "start", "optim": {"lr": 0.1}}
    stored = {"recipe": "mine", "stages": {"one": stage}}
    [read] = translate_stored(stored, list_added_keys)["stages"].values()
    assert read == own | {"start_from": "start", "optim": {"lr": 0.1}}
    [unknown] = translate_stored(stored, builtin_added_keys)["stages"].values()
    assert unknown == stage
    sentence = complaint(tmp_path, {"stages": {"one": stage}})
    assert sentence.endswith("mine.yaml: stages.one.start is now called start_from.")
    overrides = ["stages.one.questions=2", "stages.one.type=own_parts:Rejection"]  # in any order
    sentence = complaint(tmp_path, {}, *overrides)
    assert sentence == "stage 'one' has no 'optim'; the other stages are none."


def test_a_current_file_may_have_settings_by_former_names() -> None:
    tool = {"name": "mine:Tool", "waive": ["x"], "called": "y"}
    current = {"name": "mine", "stages": {}, "tools": [tool]}
    assert translate_stored(current, list_added_keys) == current
