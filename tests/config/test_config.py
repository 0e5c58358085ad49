"""Recipes: accepted contents, overrides, and messages about errors."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import pytest
import yaml
from pydantic import BaseModel

from fieldcraft.config.components import BUILTIN_COMPONENTS, ComponentKind
from fieldcraft.config.distil import Distil, DistilTeacherConfig
from fieldcraft.config.names import list_registered, resolve
from fieldcraft.config.recipe import Recipe, dump_recipe, make_world_settings_model
from fieldcraft.config.rl import AsyncConfig, CriticConfig, Rl
from fieldcraft.config.sampling import SamplingConfig
from fieldcraft.config.sections import EndpointConfig, Optim
from fieldcraft.config.stage_rules import RESERVED_STAGE_NAMES
from fieldcraft.config.stages import BudgetPeriodConfig, Contrastive, Sft
from fieldcraft.recipes.files import list_builtin_recipes
from fieldcraft.recipes.loading import load_recipe, parse_recipe
from fieldcraft.types import UserError
from shipped_recipes import stand_ins

MOST_OPTIONS = 275  # adding one requires a decision
RECIPE: dict[str, Any] = {
    "name": "small",
    "world": {"name": "atlas"},
    "stages": {
        "sft1": {"type": "sft", "dataset": "demonstrations", "steps": 5, "optim": {"lr": 0.001}},
        "pairs": {"type": "contrastive", "dataset": "pairs", "steps": 5, "optim": {"lr": 0.001}},
        "rl1": {"type": "rl", "steps": 5, "optim": {"lr": 0.001}, "rewards": {"em": 1.0}},
    },
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    (tmp_path / "small.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    return str(tmp_path / "small.yaml")


def complaint(path: str, *overrides: str) -> str:
    """Return the only sentence that reports an error."""
    with pytest.raises(UserError) as caught:
        load_recipe(path, list(overrides))
    sentence = str(caught.value)
    assert sentence.endswith((".", "?"))
    assert "\n" not in sentence
    assert not re.search(r"[.?!] [A-Z]", sentence)
    return sentence


# -- accepted recipes ---------------------------------------------------------------------------


def test_every_shipped_recipe_parses() -> None:
    assert "autocoa-mini" in list_builtin_recipes()
    for name in list_builtin_recipes():
        recipe = load_recipe(name, stand_ins(name))
        assert recipe.name == name
        assert recipe.stages or recipe.collect or recipe.select


def test_what_is_written_down_parses_to_the_same(path: str) -> None:
    recipe = load_recipe(path, ["seed=3", "search.url=http://localhost:1", f"model={path}"])
    assert parse_recipe(dump_recipe(recipe)) == recipe
    kinds = [type(stage) for stage in recipe.stages.values()]
    assert kinds == [Sft, Contrastive, Rl]


def test_the_number_of_options_stays_small() -> None:
    """Each kind of section and each world is counted once, and so are the sampling keys that
    several sections share."""

    def keys(section: type[BaseModel]) -> set[tuple[str, str]]:
        shared = SamplingConfig.model_fields if issubclass(section, SamplingConfig) else ()
        found = {("" if n in shared else section.__name__, n) for n in section.model_fields}
        for field in section.model_fields.values():
            for kind in (field.annotation, *get_args(field.annotation)):
                if isinstance(kind, type) and issubclass(kind, BaseModel):
                    found |= keys(kind)
        return found

    stage_keys = {name for kind in (Sft, Contrastive, Rl, Distil) for name in kind.model_fields}
    sections = (
        Recipe,
        BudgetPeriodConfig,
        Optim,
        AsyncConfig,
        CriticConfig,
        EndpointConfig,
        DistilTeacherConfig,
    )
    worlds = map(make_world_settings_model, list_registered(ComponentKind.WORLD))
    count = len(set[tuple[str, str]]().union(*map(keys, sections))) + len(stage_keys)
    assert count + sum(len(world.model_fields) for world in worlds) <= MOST_OPTIONS


# -- overrides ----------------------------------------------------------------------------------


def test_overrides_reach_every_depth_as_yaml_values(path: str) -> None:
    recipe = load_recipe(
        path,
        [
            "seed=7",
            "world.people=40",
            "stages.sft1.optim.lr=2e-4",
            "stages.sft1.train_on=[policy, tool]",
            "stages.sft1.evaluate=false",
            "stages.rl1.sampler_is_cap=2.5",
            "stages.rl1.rewards={f1: 0.5, format: 1}",
            "search.url=null",
            "instruction=",
        ],
    )
    sft, rl = recipe.stages["sft1"], recipe.stages["rl1"]
    assert isinstance(sft, Sft)
    assert isinstance(rl, Rl)
    assert recipe.world is not None
    assert recipe.world.settings["people"] == 40
    assert (recipe.seed, sft.optim.lr) == (7, 2e-4)
    assert (sft.train_on, sft.evaluate) == (("policy", "tool"), False)
    assert (rl.sampler_is_cap, rl.rewards) == (2.5, {"f1": 0.5, "format": 1.0})
    assert (recipe.search.url, recipe.instruction) == (None, None)
    assert rl.optim.lr == 0.001  # unnamed keys are unchanged


def test_the_last_override_wins_and_sections_may_be_new(path: str) -> None:
    recipe = load_recipe(
        path, ["budget.max_calls=2", "budget={max_calls: 3}", "budget.max_calls=4"]
    )
    assert recipe.budget.max_calls == 4
    assert load_recipe(path, ['name="a=b.c"']).name == "a=b.c"


def test_the_chat_template_and_a_system_prompt_can_be_set(path: str) -> None:
    recipe = load_recipe(
        path, ["chat_template_kwargs.enable_thinking=false", "system_prompt=Be brief."]
    )
    assert (recipe.chat_template_kwargs, recipe.system_prompt) == (
        {"enable_thinking": False},
        "Be brief.",
    )
    assert parse_recipe(dump_recipe(recipe)) == recipe


# -- algorithms --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", BUILTIN_COMPONENTS[ComponentKind.ALGORITHM])
def test_an_algorithm_is_a_set_of_keys_that_the_recipe_may_override(path: str, name: str) -> None:
    named = load_recipe(path, [f"stages.rl1.algorithm={name}"])
    rl = named.stages["rl1"]
    assert isinstance(rl, Rl)
    algorithm = resolve(ComponentKind.ALGORITHM, name)
    keys = algorithm if isinstance(algorithm, Mapping) else algorithm.keys
    assert {key: getattr(rl, key) for key in keys} == keys
    # the recipe in the run's folder is complete, and has the same meaning
    assert parse_recipe(dump_recipe(named)) == named
    mine = load_recipe(path, [f"stages.rl1.algorithm={name}", "stages.rl1.baseline=none"])
    changed = mine.stages["rl1"]
    assert isinstance(changed, Rl)
    assert changed == rl.model_copy(update={"baseline": "none"})


# -- user errors --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("sed=1", "seed"),
        ("words.people=1", "world"),
        ("world.peple=1", "world.people"),
        ("search.top=1", "search.top_k"),
        ("stages.sft1.trainon=[policy]", "stages.sft1.train_on"),
        ("stages.rl1.clip_hi=0.3", "stages.rl1.clip_high"),
        ("stages.sft1.optim.lrr=1", "stages.sft1.optim.lr"),
        ("stages.rl1.optim={lr: 1, beta_1: 0.5}", "stages.rl1.optim.beta1"),
        ("stages.rl1.optim.warm.up=1", "stages.rl1.optim.warmup_steps"),
        ("stages.rl1.critic.lambda=0.9", "stages.rl1.critic.gae_lambda"),
        ("stages.rl1.critic={optim: {lr: 1, lrr: 1}}", "stages.rl1.critic.optim.lr"),
        ('stages.rl1.endpoint={url: "http://u", model: m, modl: m}', "stages.rl1.endpoint.model"),
        ("tiny_model={layer: 2}", "tiny_model.layers"),
        ("teacher.modle=x", "teacher.model"),
        ("collect.attempt=2", "collect.attempts"),
    ],
)
def test_an_unknown_key_is_answered_with_the_nearest(path: str, override: str, meant: str) -> None:
    key = override.partition("=")[0]
    sentence = complaint(path, override)
    assert sentence.endswith(f"did you mean '{meant}'?")
    assert f"'{key}" in sentence or f"'{key.rpartition('.')[0]}" in sentence


@pytest.mark.parametrize(
    ("override", "parts"),
    [
        ("seed=many", ["'seed'", "a whole number, not 'many'"]),
        ("world.people=0", ["'world.people'", "greater than 0"]),
        ("world.taught=1.0", ["'world.taught'", "less than 1"]),
        ("stages.sft1.steps=2.5", ["'stages.sft1.steps'", "a whole number, not 2.5"]),
        ("stages.sft1.optim.lr=fast", ["'stages.sft1.optim.lr'", "number"]),
        ("stages.sft1.optim.schedule=square", ["'stages.sft1.optim.schedule'", "'cosine'"]),
        ("stages.sft1.train_on=[policy, tol]", ["'stages.sft1.train_on.1'", "'tool'"]),
        ("stages.sft1.type=stf", ["stage type 'stf'", "did you mean 'sft'"]),
        ("stages.rl1.rewards={formt: 1.0}", ["reward 'formt'", "did you mean 'format'"]),
        ("stages.rl1.rewards={otc-gpo: 1}", ["reward 'otc-gpo'", "did you mean 'otc-grpo'"]),
        ("stages.rl1.rewards={em: x}", ["'stages.rl1.rewards.em'"]),
        ("verdict_reward=emm", ["reward 'emm'", "did you mean 'em'"]),
        ("verdict_reward=zzz", ["reward 'zzz'", "or your own module:Name"]),
        ("zzz=1", ["unknown key 'zzz'; use one of name,"]),
        ("evaluation.workflows=[ragg]", ["workflow 'ragg'", "did you mean 'rag'"]),
        ("dialect=autokoa", ["dialect 'autokoa'", "did you mean 'autocoa'"]),
        ("stages.sft2.steps=3", ["'sft2'", "'type'", "sft1, pairs, rl1"]),
        ("stages.sft2.type=sft", ["'sft2'", "'optim'", "sft1, pairs, rl1"]),
        ("stages.rl1.algorithm=grop", ["algorithm 'grop'", "did you mean 'grpo'"]),
        (
            "stages.sft1.optim.warmup_steps=1.5",
            ["'stages.sft1.optim.warmup_steps'", "a share", "not 1.5"],
        ),
        ("stages.rl1.overlong_buffer=9", ["'stages.rl1'", "need an overlong_penalty"]),
        ("stages.rl1.llds_coef=0.2", ["'stages.rl1'", "llds_coef acts", "raise minibatches"]),
        (
            "stages.rl1={type: rl, steps: 1, optim: {lr: 1}, clip_mode: cispo, dual_clip: 3}",
            ["'stages.rl1'", "dual_clip applies to clip_mode: ppo only"],
        ),
        (
            "stages.rl1={type: rl, steps: 1, optim: {lr: 1}, baseline: critic}",
            ["'stages.rl1'", "set advantage_scale to none or batch"],
        ),
        ("stages.rl1.observations=mix", ["'stages.rl1.observations'", "'mixed'"]),
        (
            "stages.rl1.simulator=frozen",
            ["'stages.rl1'", "has no effect with observations: real", "use simulated"],
        ),
        ("stages.rl1.simulated_share=0.5", ["'stages.rl1'", "applies to observations: mixed only"]),
        ("stages.rl1.simulator_stage=sft1", ["'stages.rl1'", "applies to simulator: frozen only"]),
        ('stages.rl1.endpoint={url: "http://u", model: m}', ["'stages.rl1'", "need each other"]),
        ("stages=3", ["'stages'", "a mapping, as in {key: value}"]),
        ("budget=null", ["'budget'", "a mapping, as in {key: value}"]),
        ("device=gpu", ["'device'", "'cuda'"]),
        ("seed", ["'seed'", "key=value"]),
        ("=3", ["key=value"]),
        ("seed.x=3", ["'seed'"]),
        ("seed=99999999999999999999", ["'seed'", "below 4294967296"]),
        ("stages.rl1.optim.lr=.inf", ["'stages.rl1.optim.lr'", "below 4294967296"]),
        ("tiny_model.heads=3", ["'tiny_model'", "width=64", "twice heads=3"]),
        ("dialect=klingon", ["dialect 'klingon'", "use one of autocoa"]),
        ("zzz=1", ["unknown key 'zzz'; use one of name, seed,"]),
        ("table_rows={a: 1, a: 2}", ["the key 'a' is repeated, line 1"]),
        ("table_rows={1: a}", ["the key 1 in 'table_rows' is not a string"]),
        (f"table_rows={'[' * 3000}", ["nested too deeply"]),
        ("budget.max_observation_tokens=8", ["'budget.max_observation_tokens'", "64"]),
        ("budget.call_timeout_seconds=0", ["'budget.call_timeout_seconds'", "greater than 0"]),
        ("chat_template_kwargs=3", ["'chat_template_kwargs'", "a mapping, as in {key: value}"]),
        ("stages.sft1.steps.x=3", ["'stages.sft1.steps.x'", "single value"]),
        ("search.url=[", ["search.url=[", "YAML"]),
        ("model=/does/not/exist", ["model=/does/not/exist", "does not exist"]),
        ("judge.model=m", ["judge.url", "judge.model"]),
        ("stages.rl1.rewards={judge: 1.0}", ["judge.url", "judge.model"]),
        ("verdict_reward=judge", ["judge.url", "judge.model"]),
        ("required_paths=[tasks]", ["'small'", "tasks=PATH"]),
    ],
)
def test_a_bad_value_is_named_in_one_sentence(path: str, override: str, parts: list[str]) -> None:
    sentence = complaint(path, override)
    for part in parts:
        assert part in sentence


def test_a_rollout_can_reach_the_limit_of_its_length_penalty(path: str) -> None:
    penalty = "stages.rl1.overlong_penalty=1"
    sentence = complaint(path, penalty, "stages.rl1.overlong_limit=4096")
    assert (
        "'rl1' a chain ends at budget.max_context_tokens=2048, before overlong_limit=4096"
        in sentence
    )
    sentence = complaint(path, penalty, "stages.rl1.overlong_buffer=4096")
    assert "overlong_buffer=4096 is more than its limit, 2048" in sentence
    load_recipe(path, [penalty, "stages.rl1.overlong_limit=2048"])


@pytest.mark.parametrize("name", [*RESERVED_STAGE_NAMES, "a/b", "..", ""])
def test_a_stage_cannot_take_a_name_that_the_run_uses(name: str) -> None:
    stages = {name: RECIPE["stages"]["sft1"]}
    with pytest.raises(UserError, match="a stage cannot be called"):
        parse_recipe({**RECIPE, "stages": stages})


def test_with_a_model_of_the_users_base_is_that_model(path: str) -> None:
    stages = {"base": RECIPE["stages"]["sft1"]}
    assert list(parse_recipe({**RECIPE, "stages": stages}).stages) == ["base"]
    with pytest.raises(UserError, match="the stage name 'base' is reserved"):
        parse_recipe({**RECIPE, "stages": stages, "model": path})


def test_a_recipe_that_collects_has_a_teacher_and_no_stages(path: str) -> None:
    assert "has no stages" in complaint(path, "collect.attempts=2")
    assert "only for a recipe with collect" in complaint(path, "teacher.model=x")
    assert "no name" in complaint("autocoa-data", f"tasks={path}")
    assert "no name" in complaint("autocoa-data", "teacher.url=http://127.0.0.1:1/v1")
    assert "'collect.pair_questions'" in complaint("autocoa-data", "collect.pair_questions=-1")
    priced = load_recipe("autocoa-data", ["teacher={model: m, prices: [1, 2.5]}"])
    assert priced.teacher.prices == (1.0, 2.5)


def test_a_recipe_has_a_world_or_questions_of_the_users(tmp_path: Path, path: str) -> None:
    (tmp_path / "x.yaml").write_text("name: x\nstages: {}")
    bare = str(tmp_path / "x.yaml")
    assert complaint(bare) == (
        "recipe 'x' has no questions: give tasks=FILE, or world.name= with one of"
        f" {', '.join(list_registered(ComponentKind.WORLD))}."
    )
    assert "'world.name' is missing" in complaint(bare, "world.people=40")
    assert "unknown world 'atals' (did you mean 'atlas'?): use one of abacus, atlas," in complaint(
        bare, "world.name=atals"
    )
    assert load_recipe(bare, [f"tasks={path}"]).world is None

    (tmp_path / "x.yaml").write_text(f"name: x\nstages: {{}}\ntasks: {path}")
    bare = str(tmp_path / "x.yaml")
    assert complaint(bare, "evaluation.splits.known=1").endswith(
        "use one of evaluation.splits.heldout."
    )
    assert "needs evaluation.splits.heldout=" in complaint(
        path, f"tasks={path}", "evaluation.splits={known: 1}"
    )
    # a recipe of a world keeps its splits when it is given questions
    mini = load_recipe("autocoa-mini", [f"tasks={path}"])
    assert list(mini.evaluation.splits) == ["heldout", "mixed", "known"]


def test_a_missing_recipe_is_answered_with_the_nearest(tmp_path: Path) -> None:
    assert complaint(str(tmp_path)).startswith(f"{tmp_path} is a folder, not a file")
    assert "no.yaml does not exist" in complaint(str(tmp_path / "no.yaml"))
    assert complaint("collected").endswith("unseen-search-mini.")  # similar to none of them
    assert complaint("autocoa-mni").endswith("did you mean 'autocoa-mini'?")


@pytest.mark.parametrize("text", [b"[1, 2]", b"", b"text", b"a: [1", b"a: 1\n b: 2", b"\xff\x00"])
def test_a_file_that_is_no_recipe(tmp_path: Path, text: bytes) -> None:
    (tmp_path / "x.yaml").write_bytes(text)
    assert "YAML" in complaint(str(tmp_path / "x.yaml"))


def test_a_recipe_without_stages(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("name: x")
    assert complaint(str(tmp_path / "x.yaml")).startswith("'stages' is missing")


def test_a_stage_starts_from_an_earlier_one_or_from_the_first_model() -> None:
    recipe = load_recipe("smoke", ["stages.rl2.start_from=start"])
    assert recipe.stages["rl2"].start_from == "start"
    with pytest.raises(UserError, match="stage 'base' starts from 'rl2', which does not come"):
        load_recipe("smoke", ["stages.base.start_from=rl2"])


def test_a_frozen_simulator_is_a_model_that_is_there_by_then() -> None:
    frozen = ["stages.rl2.observations=simulated", "stages.rl2.simulator=frozen"]
    for name in ("start", "base", "sft2"):
        stage = load_recipe("smoke", [*frozen, f"stages.rl2.simulator_stage={name}"]).stages["rl2"]
        assert isinstance(stage, Rl)
        assert stage.simulator_stage == name
    for name in ("rl2", "sft9"):
        with pytest.raises(
            UserError, match=f"'rl2' reads the model of '{name}', which does not come"
        ):
            load_recipe("smoke", [*frozen, f"stages.rl2.simulator_stage={name}"])


def test_a_row_of_a_table_shows_something_that_is_evaluated() -> None:
    assert (
        load_recipe("smoke", ["table_rows.All=rl2", "table_rows.ReAct=workflow"]).table_rows[
            "ReAct"
        ]
        == "workflow"
    )
    with pytest.raises(UserError, match="row 'All' shows 'r1', which is never evaluated"):
        load_recipe("smoke", ["table_rows.All=r1"])


def test_a_supervised_stage_is_as_long_as_its_epochs_or_its_steps() -> None:
    stage = load_recipe("autocoa-mini", []).stages["sft2"]
    assert isinstance(stage, Sft)
    assert stage.count_steps(19_440) == 227  # 6,804 examples in batches of 30
    longer = stage.model_copy(update={"epochs": 1.5})
    assert longer.count_steps(100) == 5
    with pytest.raises(UserError, match=r"'stages.sft2' is wrong: .* either steps or epochs"):
        load_recipe("autocoa-mini", ["stages.sft2.steps=3"])
    fixed = load_recipe("autocoa-mini", ["stages.sft2.steps=3", "stages.sft2.epochs=null"])
    assert isinstance(fixed.stages["sft2"], Sft)
    assert fixed.stages["sft2"].count_steps(14_400) == 3
