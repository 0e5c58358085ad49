"""The table of rules between recipe keys: each rule alone, in pairs, and on the command line."""

from collections.abc import Callable
from copy import deepcopy
from itertools import combinations
from pathlib import Path
from typing import Any

import pytest
import yaml

from fieldcraft.cli.main import main
from fieldcraft.config.rules import RULES, RUN_RULES, Rule, list_violations
from fieldcraft.config.validation_errors import InvalidRecipeError
from fieldcraft.recipes.files import apply_override, read_recipe
from fieldcraft.recipes.loading import build_recipe, load_recipe
from fieldcraft.types import UserError

Case = dict[str, Any]  # see rule_cases.yaml
RULES_BY_NAME = {rule.__name__: rule for rule in RUN_RULES}
BASES: dict[str, dict[str, Any]] = {
    "train": read_recipe("smoke"),
    "collect": read_recipe("autocoa-data"),
    "environment": {
        "name": "game",
        "environment": {"name": "blackbox", "agent": "os.path:join"},
        "world": {"name": "atlas"},
        "stages": {
            "rl": {"type": "rl", "steps": 4, "optim": {"lr": 1}},
            "distil": {
                "type": "distil",
                "steps": 4,
                "optim": {"lr": 1},
                "teacher": {"stage": "rl"},
            },
        },
    },
}


def read_cases() -> list[Case]:
    text = Path(__file__).with_name("rule_cases.yaml").read_text().replace("THIS_FILE", __file__)
    cases = yaml.safe_load(text)
    return [{"base": base, "reads": [], **case} for base in cases for case in cases[base]]


CASES = read_cases()


def violations(base: str, overrides: list[str], table: tuple[Rule, ...] = RUN_RULES) -> list[str]:
    data = deepcopy(BASES[base])
    for override in overrides:
        apply_override(data, override)
    return list_violations(build_recipe(data), table)


@pytest.mark.parametrize("base", BASES)
def test_a_valid_recipe_violates_no_rule(base: str) -> None:
    assert violations(base, []) == []


def test_every_rule_has_a_case() -> None:
    assert {case["rule"] for case in CASES} == RULES_BY_NAME.keys()
    assert len(RULES_BY_NAME) == len(RUN_RULES) > 30


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['rule']}-{case['says']}")
def test_each_rule_alone(case: Case) -> None:
    """One mistake is reported once, in a sentence, by its own rule."""
    [sentence] = violations(case["base"], case["set"])
    assert case["says"] in sentence
    assert sentence.endswith((".", "?"))
    assert "\n" not in sentence
    assert violations(case["base"], case["set"], (RULES_BY_NAME[case["rule"]],)) == [sentence]


def are_independent(case: Case, other: Case) -> bool:
    """Return whether neither case sets a key that the other one sets or reads."""

    def overlap(key: str, other_key: str) -> bool:
        return f"{key}.".startswith(f"{other_key}.") or f"{other_key}.".startswith(f"{key}.")

    keys, other_keys = ([text.partition("=")[0] for text in c["set"]] for c in (case, other))
    return not (
        any(overlap(key, o) for key in keys for o in (*other_keys, *other["reads"]))
        or any(overlap(key, o) for key in other_keys for o in case["reads"])
    )


@pytest.mark.parametrize("base", BASES)
def test_each_pair_of_independent_violations_is_reported(base: str) -> None:
    pairs = [
        (case, other)
        for case, other in combinations((case for case in CASES if case["base"] == base), 2)
        if are_independent(case, other)
    ]
    assert pairs
    for case, other in pairs:
        table = (RULES_BY_NAME[case["rule"]], RULES_BY_NAME[other["rule"]])
        found = violations(base, case["set"] + other["set"], table)
        for says in (case["says"], other["says"]):
            assert any(says in sentence for sentence in found), (case, other, found)


# -- the command line and the loader -----------------------------------------------------------

THREE = ("judge.model=m", "seeds=[1, 1]", "table_rows.All=r1")


def errors_of(capsys: pytest.CaptureFixture[str], *command: str) -> list[str]:
    """Return the sentences of a command that exits with status 2."""
    with pytest.raises(SystemExit) as ended:
        main(list(command))
    assert ended.value.code == 2
    lines = capsys.readouterr().err.splitlines()
    assert all(line.startswith("fieldcraft: ") for line in lines), lines
    return [line.removeprefix("fieldcraft: ") for line in lines]


def test_check_reports_all_violations_and_run_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = errors_of(capsys, "check", "smoke", *THREE)
    assert found == [
        "row 'All' shows 'r1', which is never evaluated: use one of base, workflow, sft2, rl2.",
        "seeds=[1, 1] names a seed twice: give each one once.",
        "a judge needs both a url and a model: set judge.url and judge.model.",
    ]
    assert errors_of(capsys, "run", "smoke", *THREE, "--out", str(tmp_path / "run")) == found[:1]
    assert not (tmp_path / "run").exists()
    assert len(errors_of(capsys, "plan", "smoke", *THREE)) == 1


def test_check_reports_missing_work_with_the_other_violations(
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = errors_of(capsys, "check", "smoke", "stages={}", "judge.model=m")
    assert len(found) == 2
    assert found[1] == "recipe 'smoke' does nothing: give it stages, or a model to evaluate."


def test_check_reports_all_errors_in_the_types_of_keys(capsys: pytest.CaptureFixture[str]) -> None:
    """Rules between keys need valid keys, so they are not reported here."""
    overrides = [
        *("sed=1", "budget.max_calls=0", "stages.new.type=sft", "stages.sft2.train_on=[us]"),
        *("stages.rl2.type=r", "stages.base.steps=x", "stages.base.optmi={}", "judge.model=m"),
    ]
    assert errors_of(capsys, "check", "smoke", *overrides) == [
        "unknown key 'stages.base.optmi'; did you mean 'stages.base.optim'?",
        "'stages.base.steps' is wrong: it must be a whole number, not 'x'.",
        "'stages.sft2.train_on.0' is wrong: it must be 'policy' or 'tool', not 'us'.",
        "unknown stage type 'r' (did you mean 'rl'?): use one of sft, contrastive, rl, distil, or"
        " your own module:Name.",
        "stage 'new' has no 'optim'; the other stages are base, sft2, rl2.",
        "stage 'new' has no 'dataset'; the other stages are base, sft2, rl2.",
        "unknown key 'sed'; did you mean 'seed'?",
        "'budget.max_calls' is wrong: it must be greater than 0, not 0.",
    ]


def errors(change: Callable[[dict[str, Any]], object]) -> list[str]:
    data = deepcopy(BASES["train"])
    change(data)
    with pytest.raises(InvalidRecipeError) as caught:
        build_recipe(data)
    assert str(caught.value) == str(caught.value.errors[0])
    return [str(error) for error in caught.value.errors]


def test_all_violations_within_a_section_are_reported() -> None:
    keys = {"simulator_stage": "sft2", "llds_coef": 0.1, "cot_questions": "known"}
    found = errors(lambda data: data["stages"]["rl2"].update(keys))
    assert [sentence.partition(":")[0] for sentence in found] == ["'stages.rl2' is wrong"] * 3
    assert [next(key for key in keys if key in sentence) for sentence in found] == [
        *("llds_coef", "cot_questions", "simulator_stage")
    ]
    [first, second] = errors(lambda data: data.update(teacher={"members": {"a": {"modle": 1}}}))
    assert "members needs a team" in first
    assert "the member 'a' has no key 'modle'" in second
    # a violation of the teacher itself is not repeated for its members
    own = {"team": "afm", "temperature": 0, "top_k": 5, "members": {"a": {"model": "m"}}}
    [only] = errors(lambda data: data.update(teacher=own))
    assert "would have no effect on greedy sampling" in only
    own = {"team": "afm", "members": {"a": {"sampling": "model"}}}
    [only] = errors(lambda data: data.update(teacher=own))
    assert only.startswith("'teacher' is wrong: the member 'a': sampling: model reads the folder")


@pytest.mark.parametrize(
    ("keys", "path"),
    [
        ({"keep_checkpoints": 0}, "stages.rl2.keep_checkpoints"),
        ({"where": {"hops": [2]}}, "stages.rl2.where.hops"),
        ({"rewards": {"em": "x"}}, "stages.rl2.rewards.em"),
        ({"rewards": {"em": {"weight": "x"}}}, "stages.rl2.rewards.em.weight"),
    ],
)
def test_a_value_that_fits_no_type_is_reported_once(keys: dict[str, Any], path: str) -> None:
    [sentence] = errors(lambda data: data["stages"]["rl2"].update(keys))
    assert sentence.startswith(f"'{path}' is wrong: ")


def test_a_misspelt_key_is_not_reported_as_missing() -> None:
    def misspell(data: dict[str, Any]) -> None:
        data["stages"]["rl2"]["otpim"] = data["stages"]["rl2"].pop("optim")

    assert errors(misspell) == [
        "unknown key 'stages.rl2.otpim'; did you mean 'stages.rl2.optim'?",
    ]


def test_all_renamed_keys_are_reported() -> None:
    former = {"max_rows": 3, "needs": []}
    assert errors(lambda data: data.update(former)) == [
        "max_rows is now called max_num_seqs.",
        "needs is now called required_paths.",
    ]


def test_a_rule_that_meets_an_unknown_world_does_not_hide_the_others() -> None:
    recipe = build_recipe({**BASES["train"], "world": {"name": "atals"}, "seeds": [1, 1]})
    first, second = list_violations(recipe, RULES)
    assert "names a seed twice" in first
    assert "unknown world 'atals' (did you mean 'atlas'?)" in second
    with pytest.raises(UserError, match="names a seed twice"):
        load_recipe("smoke", ["world.name=atals", "seeds=[1, 1]"])
