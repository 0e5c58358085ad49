"""Recipes of tables over seeds: they have the differences that their rows claim."""

import re
import runpy
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure

from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.evaluation.seed_table import aggregate_seeds
from fieldcraft.extensions.studio.seeds_page import select_chart_rows, select_rival_rows
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.files import write_json
from fieldcraft.types import UserError
from script_modules import load_script
from seeds_parts import entry, recipe, report, rows
from shipped_recipes import ANY_FILE

# -- the recipe of the paper's comparison -----------------------------------------------------


def test_the_stages_of_the_comparison_are_those_of_the_mini_run() -> None:
    table, mini = load_recipe("autocoa-table", []), load_recipe("autocoa-mini", [])
    for name, stage in mini.stages.items():
        own = {"start_from": None, "evaluate": stage.evaluate}
        steps = {"steps": stage.steps} if isinstance(stage, Rl) else {}
        assert table.stages[name].model_copy(update=own | steps) == stage, name
    same = ("dialect", "instruction", "world", "tiny_model", "search")
    assert [getattr(table, key) for key in same] == [getattr(mini, key) for key in same]
    workflows = {"workflows": mini.evaluation.workflows}
    assert table.evaluation.model_copy(update=workflows) == mini.evaluation
    assert table.budget.model_copy(update={"max_calls": 6}) == mini.budget


def test_what_keeps_when_to_act_is_compared_from_one_model_at_equal_steps() -> None:
    frontier, mini = load_recipe("autocoa-frontier", []), load_recipe("autocoa-mini", [])
    for name in ("base", "sft1", "sft2", "sft3"):
        own = {"evaluate": mini.stages[name].evaluate}
        assert frontier.stages[name].model_copy(update=own) == mini.stages[name], name
    trained = [stage for stage in frontier.stages.values() if isinstance(stage, Rl)]
    assert {(stage.start_from, stage.steps) for stage in trained} == {("sft3", 40)}
    # with a different learning rate: the higher one shows the effect of the shares in fewer steps
    settings = {
        "steps": 40,
        "optim": trained[0].optim,
        "cot_share": 0.0,
        "cot_questions": "all",
        "otc_smoothing": None,
    }
    rewards = {"rewards": {"em": 1.0, "format_penalty": 0.2}}
    alike = [stage.model_copy(update=settings | rewards) for stage in trained]
    assert all(stage == alike[0] for stage in alike)
    start = {"start_from": None, "checkpoint_every": mini.stages["rl2"].checkpoint_every}
    assert alike[0].model_copy(update=start) == mini.stages["rl2"].model_copy(update=settings)


def test_the_frontier_of_the_pretrained_model_continues_from_the_stages_of_its_recipe() -> None:
    override = [f"model={ANY_FILE}"]
    frontier, single = load_recipe("smollm2-frontier", override), load_recipe("smollm2", override)
    for name in ("sft1", "sft2", "sft3", "rl1", "rl2"):
        assert frontier.stages[name] == single.stages[name], name
    assert frontier.stages["price-2"] == single.stages["rl2-otc"]
    assert frontier.stages["share-50"] == single.stages["rl2-free"]
    for key in ("dialect", "instruction", "world", "search", "budget", "dtype", "evaluation"):
        assert getattr(frontier, key) == getattr(single, key), key
    branches = [stage for stage in frontier.stages.values() if stage.start_from == "rl1"]
    own = {"cot_share": 0.0, "cot_questions": "all", "otc_smoothing": None}
    own |= {"rewards": {"em": 1.0, "format_penalty": 0.2}}
    assert len(branches) == 5
    assert all(stage.model_copy(update=own) == frontier.stages["rl2"] for stage in branches)


def test_simulators_are_compared_for_one_policy() -> None:
    compared = load_recipe("simulator-table", [])
    trained = {n: stage for n, stage in compared.stages.items() if isinstance(stage, Rl)}
    simulators = {n: (stage.simulator, stage.simulator_stage) for n, stage in trained.items()}
    assert simulators == {
        "rl1-own": ("policy", None),
        "rl1-mid": ("frozen", "sim-mid"),
        "rl1-long": ("frozen", "sim-long"),
        "rl1-real": ("policy", None),
    }
    plain = {"simulator": "policy", "simulator_stage": None, "observations": "simulated"}
    assert all(stage.model_copy(update=plain) == trained["rl1-own"] for stage in trained.values())


def test_settings_for_code_agents_are_compared_one_by_one() -> None:
    names = ("code-mini", "otc-code-mini", "code-table")
    mini, otc, table = (load_recipe(name, []) for name in names)
    given = {"name", "seeds", "parallel_seeds", "stages", "table_rows", "comparisons"}
    for name, stage in mini.stages.items():
        assert otc.stages[name].model_copy(update={"start_from": None}) == stage, name
    for name, stage in otc.stages.items():
        own = {"start_from": table.stages[name].start_from}
        assert table.stages[name] == stage.model_copy(update=own), name
    assert mini.model_dump(exclude=given) == otc.model_dump(exclude=given)
    given |= {"evaluation"}
    assert otc.model_dump(exclude=given) == table.model_dump(exclude=given)
    plain = table.stages["rl"].model_dump()
    assert {
        name: {key: value for key, value in stage.model_dump().items() if value != plain[key]}
        for name, stage in table.stages.items()
        if isinstance(stage, Rl) and name != "rl"
    } == {
        "void": {"train_void": False},
        "resampled": {"oversample_factor": 2},
        "repair": {"rewards": {"em": 1.0, "repair": 0.2}},
        "otc": {"rewards": {"otc-grpo": 1.0}, "otc_smoothing": 1.0},
        "otc-floor": {
            "rewards": {"otc-grpo": 1.0},
            "otc_smoothing": 1.0,
            "advantage_floor": "correct",
        },
    }


def test_the_rows_of_the_comparison_went_through_what_they_say() -> None:
    table = load_recipe("autocoa-table", [])
    seed = report(0.5)
    seed["evals"] = dict.fromkeys(table.table_rows.values(), seed["evals"]["base"])
    seed["stages"] = [{"name": name, "seconds": 1.0} for name in table.stages]
    found = rows(aggregate_seeds(table, {0: seed}))
    sft = {"1": "sft1", "2": "sft2", "3": "sft3"}
    for title, row in found.items():
        kinds = [re.sub("-.*", "", name) for name in row["stages"]]
        supervised = re.match(r"SFT-([\d&]+)", title)
        wanted = ["base"]
        if supervised:
            wanted += [sft[number] for number in supervised[1].split("&")]
        assert [kind for kind in kinds if kind[:2] != "rl"] == wanted, title
    worth = {title.rpartition(" of ")[2]: pair for title, pair in table.comparisons.items()}
    assert worth["SFT-1"] == ("SFT-2", "SFT-1&2")
    assert worth["SFT-3"] == ("SFT-1&2", "SFT-1&2&3")
    assert worth["RL-1 alone"] == ("SFT-1&2&3", "SFT-1&2&3 + RL-1")
    assert worth["real interaction"] == ("SFT-1&2&3 + RL-1", "SFT-1&2&3 + RL-1&2")
    assert worth["RL-2"] == ("SFT-1&2", "SFT-1&2 + RL-2")
    steps = {title: tuple(row["rl_steps"].values()) for title, row in found.items()}
    assert {title: both for title, both in steps.items() if any(both)} == {
        "RL-2 only": (0, 72),
        "SFT-1&2&3 + RL-1": (48, 0),
        "SFT-1&2&3 + RL-1&2": (40, 8),
        "SFT-1&2 + RL-2": (0, 48),
        "SFT-1&2 + RL-2 with tools always": (0, 48),
        "SFT-1&2 + RL-2 by OTC-GRPO": (0, 48),
        "SFT-1&2 + RL-2 by OTC-GRPO, some without tools": (0, 48),
    }
    assert [row["name"] for row in select_chart_rows(list(found.values()))] == [
        *("workflow", "sft3", "rl2")
    ]


def make_table(recipe: Recipe) -> list[dict[str, Any]]:
    """Return the rows of a recipe's table, all of whose evaluations are alike."""
    made = report(0.5)
    made["evals"] = dict.fromkeys(recipe.table_rows.values(), made["evals"]["base"])
    made["stages"] = [{"name": name, "seconds": 1.0} for name in recipe.stages]
    found: list[dict[str, Any]] = aggregate_seeds(recipe, {0: made})["rows"]
    return found


def test_the_rows_on_the_pretrained_model_went_through_what_they_say() -> None:
    table = load_recipe("smollm2-table", [f"model={ANY_FILE}"])
    found = {row["title"]: row for row in make_table(table)}
    sft = {"1": "sft1", "2": "sft2", "3": "sft3"}
    for title, row in found.items():
        kinds = [re.sub("-.*", "", name) for name in row["stages"]]
        named = re.match(r"SFT-([\d&]+)", title)
        wanted = [sft[number] for number in named[1].split("&")] if named else []
        trained = [kind for kind in kinds if kind.startswith("sft")]
        assert trained == wanted + ["sft2"] * title.count("as many demonstrations"), title
    steps = {title: tuple(row["rl_steps"].values()) for title, row in found.items()}
    assert {title: both for title, both in steps.items() if any(both)} == {
        "RL-2 only": (0, 36),
        "SFT-1&2&3 + RL-1 with a better simulator": (24, 0),
        "SFT-1&2&3 + RL-1": (24, 0),
        "SFT-1&2&3 + RL-1&2, known questions without tools": (20, 4),
        "SFT-1&2&3 + RL-1&2": (20, 4),
        "SFT-1&2 + RL-2": (0, 24),
        "SFT-1&2 + RL-2, known questions without tools": (0, 24),
        "SFT-1&2 + distillation": (0, 24),
        "SFT-1&2 + distillation on wrong rollouts": (0, 24),
        "SFT-1&2 + RL-2 and distillation on wrong rollouts": (0, 24),
    }
    charted = [row["name"] for row in select_chart_rows([*found.values()])]
    assert charted == ["prompted-react", "sft3", "rl2"]
    rivals = {row["name"] for row in select_rival_rows([*found.values()])}
    assert rivals == {"rl2-real", "rl2-real-free", "distil", "distil-wrong", "dgpo"}


def test_rows_on_the_pretrained_model_differ_in_what_they_say() -> None:
    table = load_recipe("smollm2-table", [f"model={ANY_FILE}"])
    stages = {name: stage.model_dump() for name, stage in table.stages.items()}

    def differences(first: str, second: str) -> dict[str, Any]:
        before, after = stages[first], stages[second]
        return {key: value for key, value in after.items() if before.get(key) != value}

    free = {"cot_share": 1.0, "cot_questions": "known"}
    assert differences("rl2-real", "rl2-real-free") == differences("rl2", "rl2-free") == free
    assert differences("rl2-real", "rl2") == {"start_from": "rl1", "steps": 4}
    teacher = {"stage": "sft2-longer", "checkpoint": None, "privileged": None}
    added = {"type": "distil", "algorithm": "distil", "teacher": teacher, "kl": "sampled"}
    added |= {"kl_rollouts": "all", "reward_weight": 0.0}
    assert differences("rl2-real", "distil") == added
    assert differences("distil", "distil-wrong") == {"kl_rollouts": "incorrect"}
    assert differences("distil-wrong", "dgpo") == {"reward_weight": 1.0}
    rollouts = stages["rl2-real"]["questions_per_step"] * stages["rl2-real"]["group_size"] * 24
    assert differences("sft2", "sft2-longer") == {"start_from": "sft2", "max_examples": rollouts}


def test_comparisons_name_two_rows_of_the_table() -> None:
    with pytest.raises(UserError) as caught:
        load_recipe(
            "smoke", ["table_rows.All=rl2", "table_rows.Half=sft2", "comparisons.worth=[Hal, All]"]
        )
    assert str(caught.value) == (
        "the comparison 'worth' names the row 'Hal', which the table does not have; did you mean"
        " 'Half'?"
    )
    for pair in ("All", "[All]", "[All, Half, All]", "1"):
        with pytest.raises(UserError) as caught:
            load_recipe("smoke", ["table_rows.All=rl2", f"comparisons.worth={pair}"])
        assert str(caught.value) == (
            "'comparisons' is wrong: 'worth' must name two rows, as in [the first, the second]."
        )
    named = load_recipe(
        "smoke", ["comparisons.worth=[sft2, rl2]"]
    )  # rows are evaluations by default
    assert named.comparisons == {"worth": ("sft2", "rl2")}


@pytest.fixture
def printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[[dict[str, Any]], list[str]]:
    """Return the output of scripts/table.py for a table, with options."""

    def lines(table: dict[str, Any], *options: str) -> list[str]:
        write_json(tmp_path / "report.json", table)
        script = Path(__file__).parents[2] / "scripts" / "table.py"
        monkeypatch.setattr(sys, "argv", [str(script), str(tmp_path), *options])
        runpy.run_path(str(script), run_name="__main__")
        return capsys.readouterr().out.splitlines()

    return lines


def test_the_script_prints_the_table_for_the_documents(
    printed: Callable[[dict[str, Any]], list[str]],
) -> None:
    table = aggregate_seeds(
        recipe(table_rows={"Model": "base", "All": "rl2"}),
        {0: report(0.2), 1: report(0.4, known=None)},
    )
    head, rule, model, trained = printed(table)
    assert head.count("|") == rule.count("|") == model.count("|") == trained.count("|")
    assert model.startswith("| Model | 0.300 [0.000, 1.000] | 0.200 to 0.400 | 0.150 | 1.50 (")
    assert model.endswith("| 0.50 | 0.20 |  | 1 |")
    assert "| 5 + 2 | 15 |" in trained
    assert "| 1.50 (1.00) | +50%, +50% to +50% | 0.50 |" in model
    cost = {"seconds": 12.4, "rollouts": 1600.0, "calls": 2400.0, "tokens": 72000.0}
    table["rows"][1]["training"] = cost
    table["rows"][0]["em"] = dict.fromkeys(("mean", "ci95", "min", "max"))
    assert printed(table)[2].startswith("| Model |  |  | 0.150 |")
    assert printed(table)[-1] == "| All | 12 | 1,600 | 2,400 | 72,000 |"


def test_the_script_prints_both_panels_of_the_figure_by_calls(
    printed: Callable[..., list[str]],
) -> None:
    """Three of seven answers with one call are correct, and one of three with ten calls."""
    parts = {"1": {"n": 7, "em": 3 / 7}, "10": {"n": 3, "em": 1 / 3}}
    found = report(0.4)
    found["evals"] |= {"base": entry(0.4, parts), "rl2": entry(0.0, {"0": {"n": 10, "em": 0.0}})}
    table = aggregate_seeds(recipe(table_rows={"Model": "base", "All": "rl2"}), {0: found})
    assert printed(table, "--calls") == [
        "| share of correct answers, by calls | 0 | 1 | 10 |",
        "|---|---|---|---|",
        "| Model |  | 0.750 | 0.250 |",
        "| All | 0.000 |  |  |",
        "",
        "| success rate, by calls | 0 | 1 | 10 |",
        "|---|---|---|---|",
        "| Model |  | 0.429 | 0.333 |",
        "| All | 0.000 |  |  |",
    ]


def test_the_script_prints_simulated_searches_and_saved_calls(
    printed: Callable[..., list[str]],
) -> None:
    step = {"seconds": 1.0, "rollouts": 8, "calls_mean": 1.0, "policy_tokens_mean": 9.0}
    rates = {"fidelity/n": 8, "fidelity/supports_answer": 0.25}
    rates |= {"fidelity/never/n": 6, "fidelity/never/supports_answer": 0.0}
    saved = {"title": "w", "model": "All", "rival": "R", "reached": 1, "em": 0.5}
    saved |= {"calls": 1200.0, "rival_calls": 3500.0}
    none = saved | {"reached": 0, "em": None, "calls": None, "rival_calls": None}
    settings = recipe(table_rows={"SFT": "sft", "All": "rl2"})
    curves = {"rl1": [[step | rates]], "rl2": [[step]]}
    table = aggregate_seeds(settings, {0: report(0.5)}, (), curves, [saved, none])
    lines = printed(table)
    assert lines[-2:] == ["| All | R | 0.500 | 1,200 | 3,500 | 1 |", "| All | R |  |  |  | 0 |"]
    head, rule, *found = lines[-9:-5]
    assert head.count("|") == rule.count("|") == found[0].count("|") == 7
    assert found == [
        "| All | 5 + 2 | all | 8 | 0.250 | +0.000 |",
        "| All | 5 + 2 | never | 6 | 0.000 | +0.000 |",
    ]
    assert lines[-5] == ""


def test_the_script_prints_comparisons(printed: Callable[[dict[str, Any]], list[str]]) -> None:
    found = {
        **{"title": "worth of all", "baseline": "Model", "model": "All", "gained": 12, "lost": 3},
        **{"em_difference": 0.225, "em_difference_ci95": [-0.0312, 0.4], "p_value": 0.0351},
    }
    none = {"em_difference": None, "em_difference_ci95": None, "p_value": None}
    settings = recipe(table_rows={"Model": "base", "All": "rl2"})
    compared = [found, found | {"p_value": 1e-9, "em_difference_ci95": None}, found | none]
    lines = printed(aggregate_seeds(settings, {0: report(0.2)}, compared))
    head, rule, *body = lines[lines.index("") + 1 :]
    assert head.count("|") == rule.count("|") == 7
    assert body == [
        "| worth of all | Model | All | +0.225 [-0.031, +0.400] | +12, -3 | 0.035 |",
        "| worth of all | Model | All | +0.225 | +12, -3 | < 0.001 |",
        "| worth of all | Model | All |  | +12, -3 |  |",
    ]


def test_the_script_prints_every_kind_of_question(
    printed: Callable[[dict[str, Any]], list[str]],
) -> None:
    splits = {"mixed": entry(0.5, {}), "four_hops": entry(0.25, {}, offloading_rate=None)}
    table = aggregate_seeds(
        recipe(table_rows={"Model": "base", "All": "rl2"}), {0: report(0.5, splits=splits)}
    )
    lines = printed(table)
    head, _, *found = lines[lines.index("") + 1 :]
    assert [line.split(" | ")[:2] for line in found] == [
        *(["| mixed", "Model"], ["| mixed", "All"]),
        *(["| four_hops", "Model"], ["| four_hops", "All"]),
    ]
    assert {line.count("|") for line in (head, *found)} == {10}
    wanted = "| 1.50 (1.00) | +50%, +50% to +50% | 1.00: 0.75 + 0.25 | 0.50 | 0.50 |"
    assert found[0].endswith(wanted)
    assert found[2].endswith("| 0.50 |  |")


# -- the recipe of OTC-PO ----------------------------------------------------------------------


def test_the_rivals_of_otc_table_go_on_from_one_model_and_differ_in_what_they_say() -> None:
    table = load_recipe("otc-table", [])
    rl = {name: stage for name, stage in table.stages.items() if isinstance(stage, Rl)}
    assert {stage.start_from for stage in rl.values()} == {"sft"}
    assert {name: dict(stage.rewards) for name, stage in rl.items()} == {
        "em-grpo": {"em": 1.0},
        "otc-grpo": {"otc-grpo": 1.0},
        "em-ppo": {"em": 1.0},
        "otc-ppo": {"otc-ppo": 1.0},
    }
    for algorithm in ("grpo", "ppo"):  # only the reward
        em, otc = (rl[f"{reward}-{algorithm}"] for reward in ("em", "otc"))
        assert (em.algorithm, em.model_copy(update={"rewards": otc.rewards})) == (algorithm, otc)
    assert table.stages["sft"].model_dump()["dataset"] == "wasteful"
    splits = table.evaluation.splits
    assert min(splits["mixed"], splits["four_hops"], splits["unseen_chains"]) >= 100
    assert table.evaluation.leading_split == "mixed"
    assert table.world is not None
    assert table.world.settings["reserved_chains"] > 0
    made = report(0.5)
    made["evals"] = dict.fromkeys(table.table_rows.values(), made["evals"]["base"])
    made["stages"] = [{"name": name, "seconds": 1.0} for name in table.stages]
    assert {r["name"] for r in select_rival_rows(aggregate_seeds(table, {0: made})["rows"])} == set(
        rl
    )


def test_the_picture_leaves_out_rows_without_a_gradable_answer(tmp_path: Path) -> None:
    found = report(0.4)
    mixed = entry(0.4, {})
    for name in ("sft", "rl2"):
        ungraded = {"em": None, "n_effective": 0} if name == "rl2" else {}
        found["evals"][name] |= {"splits": {"mixed": mixed, "known": mixed | ungraded}}
    table = aggregate_seeds(recipe(table_rows={"SFT": "sft", "All": "rl2"}), {0: found})
    axis = Figure().subplots()
    load_script("scripts/frontier.py").draw(table["rows"], "mixed", "known", axis)
    labels = [str(line.get_label()) for line in axis.lines]
    assert [label for label in labels if label.startswith(("a", "b"))] == ["a  SFT"]
