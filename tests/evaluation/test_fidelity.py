"""Verdicts on simulated observations: by hand, by a world's facts and by a real search."""

import asyncio
import io
import json
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from fieldcraft.data.world import SimulationVerdict
from fieldcraft.evaluation.fidelity import (
    build_fidelity_table,
    compute_fidelity_metrics,
    find_recall_band,
    judge_against_tool,
    summarise_fidelity,
)
from fieldcraft.extensions.search.index import build_index
from fieldcraft.extensions.search.tool import SearchTool
from fieldcraft.extensions.studio.training_charts import draw_learning_curves
from fieldcraft.extensions.worlds.atlas.facts import RELATIONS, Atlas, Entity
from fieldcraft.extensions.worlds.atlas.fidelity import judge_atlas_simulations
from fieldcraft.extensions.worlds.atlas.generation import generate_atlas
from fieldcraft.types import (
    CallOutcome,
    CallRecord,
    Task,
    ToolError,
    ToolUnavailableError,
    Trajectory,
    UserError,
)
from training_parts import FixedTool

ENTITIES = {
    **{name: Entity(name, "person", "train") for name in ("Ada Lin", "Bo Ber", "Cy Dal")},
    "AcMe": Entity("AcMe", "company", "train"),
    "NorPor": Entity("NorPor", "city", "taught"),
    "EasPor": Entity("EasPor", "city", "heldout"),
    "WesLan": Entity("WesLan", "country", "taught"),
    "OdLan": Entity("OdLan", "country", "train"),
}
FACTS = {
    ("Ada Lin", "employer"): "AcMe",
    ("Ada Lin", "birthplace"): "EasPor",
    ("Ada Lin", "mentor"): "Bo Ber",
    ("AcMe", "headquarters"): "NorPor",
    ("AcMe", "founder"): "Cy Dal",
    ("NorPor", "country"): "WesLan",
    ("NorPor", "mayor"): "Cy Dal",
    ("EasPor", "country"): "OdLan",
    ("EasPor", "mayor"): "Bo Ber",
}
WORLD = Atlas(ENTITIES, FACTS, {})
PATH = ("Ada Lin", "employer", "headquarters", "country")
TRUTH = partial(judge_atlas_simulations, WORLD)
ADA = (
    'result 1: "Ada Lin"\n'
    "Ada Lin is a person with the employer {}, the birthplace {}, the mentor {}."
)
ACME = 'result 1: "AcMe"\nAcMe is a company with the headquarters {}, in {}, the founder {}.'
DEALT = [generate_atlas(people=40, taught=0.4, heldout=0.5, seed=seed) for seed in range(4)]
REAL_ADA = ADA.format("AcMe", "EasPor", "Bo Ber")
REAL_ACME = ACME.format("NorPor", "WesLan", "Cy Dal")


def simulation(*calls: tuple[object, str], path: tuple[str, ...] | None = PATH) -> Trajectory:
    """Return a rollout whose searches (query, observation) were simulated."""
    meta = {} if path is None else {"path": list(path)}
    made = [
        CallRecord("search", {"query": q}, text, CallOutcome.OK, 0.0, True) for q, text in calls
    ]
    return Trajectory(Task("t", "?", ("WesLan",), meta), calls=made)


def verdicts(*calls: tuple[object, str], path: tuple[str, ...] | None = PATH) -> list[object]:
    """Return (holds, contradicts, well-formed) of each call; None if it has no verdict."""
    found = judge_atlas_simulations(WORLD, simulation(*calls, path=path))
    return [v and (v.supports_answer, v.contradicts, v.well_formed) for v in found]


# -- against the truth of a world ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "verdict"),
    [
        (REAL_ADA, (True, False, True)),
        # the step needs only the employer
        (ADA.format("AcMe", "NorPor", "Bo Ber"), (True, True, True)),
        (ADA.format("SkaTen", "EasPor", "Bo Ber"), (False, True, True)),
        # a value that only starts like the true one
        (ADA.format("AcMe Bo", "EasPor", "Bo Ber"), (False, True, True)),
        # true, but about another person
        (REAL_ACME, (False, False, True)),
        ("No result.", (False, False, True)),
        # a person whom the world does not contain cannot be contradicted
        (REAL_ADA.replace("Ada Lin", "Ada Lan"), (False, False, True)),
        # truncated after the fact, and before it
        (REAL_ADA[:-2], (True, True, False)),  # "Bo Be" is a different person
        (REAL_ADA[: REAL_ADA.index(", the mentor")], (True, False, False)),
        (REAL_ADA[: REAL_ADA.index(" AcMe")], (False, False, False)),
        # a different form: of the title, the relations, the kind, the rank, the whole
        (REAL_ADA.replace('"Ada Lin"', '"Bo Ber"'), (True, False, False)),
        (REAL_ADA.replace(", the mentor Bo Ber", ""), (True, False, False)),
        (REAL_ADA.replace("person", "city"), (True, False, False)),
        (REAL_ADA.replace("result 1", "result 2"), (True, False, False)),
        (f"Here you are. {REAL_ADA}", (True, False, False)),
        ("", (False, False, False)),
    ],
)
def test_one_article_by_hand(text: str, verdict: tuple[bool, bool, bool]) -> None:
    assert verdicts(("Ada Lin", text)) == [verdict]


def test_an_article_may_hold_two_facts_that_the_step_needs() -> None:
    """Trap: a company's article also states the country of its city."""
    assert verdicts(("AcMe", REAL_ACME)) == [(True, False, True)]
    assert verdicts(("AcMe", ACME.format("NorPor", "OdLan", "Cy Dal"))) == [(False, True, True)]
    without = REAL_ACME.replace(", in WesLan", "")
    assert verdicts(("AcMe", without)) == [(False, False, False)]
    # a question only about the headquarters does not need the country
    assert verdicts(("AcMe", without), path=PATH[:3]) == [(True, False, False)]


def test_what_was_told_before_is_not_needed_again() -> None:
    """Then the path needs nothing from the city's article except what the tool returns."""
    city = 'result 1: "NorPor"\nNorPor is a city with the country {}, the mayor {}.'
    right, half = city.format("WesLan", "Cy Dal"), city.format("WesLan", "Bo Ber")
    assert verdicts(("NorPor", half)) == [(True, True, True)]
    assert verdicts(("AcMe", REAL_ACME), ("NorPor", half)) == [
        (True, False, True),
        (False, True, True),
    ]
    assert verdicts(("AcMe", REAL_ACME), ("NorPor", right))[1] == (True, False, True)
    wrong = ACME.format("NorPor", "OdLan", "Cy Dal")  # stated, but not truthfully
    assert verdicts(("AcMe", wrong), ("NorPor", half))[1] == (True, True, True)


@pytest.mark.parametrize("path", [PATH, None])
def test_off_the_path_the_whole_article_is_needed(path: tuple[str, ...] | None) -> None:
    city = 'result 1: "EasPor"\nEasPor is a city with the country {}, the mayor Bo Ber.'
    found = verdicts(("EasPor", city.format("OdLan")), ("EasPor", city.format("WesLan")), path=path)
    assert found == [(True, False, True), (False, True, True)]


def test_what_the_world_does_not_know_is_counted_apart() -> None:
    strange = ["Ada Lan", "ada lin", "", 3, ["Ada Lin"], None]
    trajectory = simulation(*((query, REAL_ADA) for query in strange), ("AcMe", REAL_ACME))
    found = judge_atlas_simulations(WORLD, trajectory)
    assert found[:-1] == [None] * len(strange)
    summary = summarise_fidelity(found)
    assert (summary["n"], summary["unknown"], summary["supports_answer"]) == (1, 6, 1.0)


def test_only_simulated_calls_are_judged_and_an_unclosed_one_has_no_form() -> None:
    trajectory = simulation(("Ada Lin", REAL_ADA), ("Ada Lin", REAL_ADA))
    trajectory.calls[0].simulated = False
    trajectory.calls[1].outcome = CallOutcome.FAILED
    [verdict] = judge_atlas_simulations(WORLD, trajectory)
    assert verdict is not None
    assert (verdict.supports_answer, verdict.well_formed) == (True, False)


def test_questions_of_another_world_are_the_users_mistake() -> None:
    with pytest.raises(UserError, match="task 't' is not of this run's world"):
        verdicts(("AcMe", REAL_ACME), path=("Bran Tel", "employer"))


@given(st.sampled_from(DEALT), st.data())
def test_the_real_articles_are_perfect_and_a_changed_one_is_not(
    world: Atlas, data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(sorted(world.entities)))
    article = f'result 1: "{name}"\n{world.make_passage(name)["text"]}'
    trajectory = simulation((name, article), path=None)
    taught = world.entities[name].region == "taught"
    assert judge_atlas_simulations(world, trajectory) == [
        SimulationVerdict(True, True, False, taught=taught)
    ]
    relation, kind = data.draw(
        st.sampled_from(sorted(RELATIONS[world.entities[name].kind].items()))
    )
    value = world.facts[name, relation]
    others = sorted(n for n, e in world.entities.items() if e.kind == kind and n != value)
    changed = f"the {relation} {data.draw(st.sampled_from(others))}"
    trajectory.calls[0].observation = article.replace(f"the {relation} {value}", changed)
    assert judge_atlas_simulations(world, trajectory) == [
        SimulationVerdict(True, False, True, taught=taught)
    ]


# -- against the real tool -----------------------------------------------------------------------

BOND = [
    {"title": "Ian Fleming", "text": "Ian Fleming wrote about James Bond, a spy from London."},
    {"title": "Paris", "text": "Paris is the capital of France."},
]


def test_against_a_real_search(tmp_path: Path) -> None:
    corpus = tmp_path / "corpus.jsonl"
    corpus.write_text("".join(json.dumps(passage) + "\n" for passage in BOND))
    tool = SearchTool(build_index(corpus, tmp_path / "index"), topk=1)
    real = asyncio.run(tool(query="Ian Fleming"))
    trajectory = simulation(
        ("Ian Fleming", real),
        ("Ian Fleming", 'result 1: "Fleming"\nHe made up the JAMES bond.'),
        ("Ian Fleming", 'result 1: "Fleming"\nHe made up James Bonds.'),
        ("Paris", 'result 1: "Paris"\nParis is where James Bond lived.'),
        ("Ian Fleming", "James Bond!"),
        path=None,
    )
    object.__setattr__(trajectory.task, "answers", ("The James Bond", ""))
    found = asyncio.run(judge_against_tool(tool, trajectory))
    assert [v and (v.supports_answer, v.well_formed, v.contradicts, v.taught) for v in found] == [
        (True, True, None, None),
        (True, True, None, None),
        (False, True, None, None),
        (None, True, None, None),  # the real text has no gold answer
        (True, False, None, None),
    ]
    shared = [v.f1 for v in found if v]
    assert shared[0] == 1.0
    # "result 1 ian fleming ian fleming wrote about james bond spy from london" has 13 words,
    # "result 1 fleming he made up james bond" has 8; result, 1, fleming, james, bond are common
    assert shared[1] == pytest.approx(2 * 5 / (13 + 8))
    summary = summarise_fidelity(found)
    assert (summary["n"], summary["supports_answer_n"], summary["supports_answer"]) == (5, 4, 3 / 4)
    assert (summary["contradicts"], summary["taught"], summary["untaught"]) == (None, None, None)


def test_where_the_real_tool_fails_there_is_no_verdict() -> None:
    def down(query: str) -> str:
        raise ToolError("no server")

    trajectory = simulation(("Ada Lin", REAL_ADA))
    assert asyncio.run(judge_against_tool(FixedTool(down), trajectory)) == [None]
    trajectory.calls[0].tool = "look"
    assert asyncio.run(judge_against_tool(FixedTool(str), trajectory)) == [None]


def test_where_the_real_tool_does_not_answer_nothing_is_measured() -> None:
    def fail(query: str) -> str:
        raise ToolUnavailableError("Search failed: the server cannot be reached.")

    with pytest.raises(UserError, match=r"^the real tool 'search', .* \(Search failed: the server"):
        asyncio.run(judge_against_tool(FixedTool(fail), simulation(("Ada Lin", REAL_ADA))))


# -- summaries -----------------------------------------------------------------------------------


def test_rates_by_hand() -> None:
    found = [
        SimulationVerdict(True, True, False, taught=True),
        SimulationVerdict(True, False, True, taught=True),
        SimulationVerdict(False, False, True, taught=False),
        None,
    ]
    third = pytest.approx(1 / 3)
    assert summarise_fidelity(found) == {
        **{"n": 3, "supports_answer_n": 3, "unknown": 1, "f1": None},
        **{
            "supports_answer": third,
            "contradicts": pytest.approx(2 / 3),
            "well_formed": pytest.approx(2 / 3),
        },
        "taught": {
            **{"n": 2, "supports_answer_n": 2, "supports_answer": 0.5, "contradicts": 0.5},
            **{"well_formed": 1.0, "f1": None},
        },
        "untaught": {
            **{"n": 1, "supports_answer_n": 1, "supports_answer": 0.0, "contradicts": 1.0},
            **{"well_formed": 0.0, "f1": None},
        },
    }


def test_rates_by_how_well_the_model_knows_the_facts() -> None:
    chances = [0.0, 0.0, 0.01, 0.49, 0.5, 0.74, 0.75, 1.0, None]
    found = [SimulationVerdict(True, i % 2 == 0, recall=chance) for i, chance in enumerate(chances)]
    bands = summarise_fidelity(found)["recall"]
    assert {name: (part["n"], part["supports_answer"]) for name, part in bands.items()} == {
        "never": (2, 0.5),
        "below_half": (2, 0.5),
        "below_known": (2, 0.5),
        "known": (2, 0.5),
    }
    assert [find_recall_band(chance) for chance in chances if chance is not None] == [
        *("never", "never", "below_half", "below_half"),
        *("below_known", "below_known", "known", "known"),
    ]
    row = compute_fidelity_metrics(lambda _: found[1:3], [simulation()])
    assert {key: value for key, value in row.items() if "never" in key or "half" in key} == {
        "fidelity/never/n": 1,
        "fidelity/never/supports_answer": 0.0,
        "fidelity/below_half/n": 1,
        "fidelity/below_half/supports_answer": 1.0,
    }
    undecided = [SimulationVerdict(True, None, recall=0.0)]
    row = compute_fidelity_metrics(lambda _: undecided, [simulation()])
    assert {key for key in row if "never" in key} == {"fidelity/never/n"}
    console = Console(file=io.StringIO(), width=80)
    entry = {"fidelity": summarise_fidelity(found), "em_simulated": 0.5, "em_real": 0.5}
    console.print(build_fidelity_table({"run/sft3": entry}))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    cells = [line.split() for line in text.splitlines()]
    assert ["knows", "it", "never", "2", "0.500", "1.000"] in cells
    assert ["0.75", "of", "the", "time", "or", "more", "2", "0.500", "1.000"] in cells


def test_a_row_of_metrics_has_no_rate_of_nothing() -> None:
    row = compute_fidelity_metrics(
        partial(judge_atlas_simulations, WORLD),
        [simulation(("AcMe", REAL_ACME)), simulation(("x", ""))],
    )
    assert row == {
        **{"fidelity/n": 1, "fidelity/unknown": 1},
        **{
            "fidelity/supports_answer": 1.0,
            "fidelity/contradicts": 0.0,
            "fidelity/well_formed": 1.0,
        },
        "fidelity/untaught/supports_answer": 1.0,
        "fidelity/untaught/contradicts": 0.0,
        "fidelity/untaught/well_formed": 1.0,
    }
    assert compute_fidelity_metrics(lambda _: None, [simulation()]) == {}  # the truth is not known
    assert compute_fidelity_metrics(TRUTH, [simulation()]) == {
        "fidelity/n": 0,
        "fidelity/unknown": 0,
    }


def test_the_table_shows_taught_and_untaught_apart() -> None:
    trajectory = simulation(("AcMe", REAL_ACME), ("NorPor", "No result."), ("x", ""))
    summary = summarise_fidelity(judge_atlas_simulations(WORLD, trajectory))
    console = Console(file=io.StringIO(), width=80)
    entry = {"fidelity": summary, "em_simulated": 0.25, "em_real": None}
    console.print(build_fidelity_table({"run/sft3": entry}))
    cells = [line.split() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]
    assert ["run/sft3", "2", "0.500", "0.000", "1.000", "1", "0.250"] in cells
    assert ["taught", "1", "0.000", "0.000", "1.000"] in cells
    assert ["untaught", "1", "1.000", "0.000", "1.000"] in cells


def test_the_report_shows_the_curve() -> None:
    row = compute_fidelity_metrics(TRUTH, [simulation(("AcMe", REAL_ACME))])
    [chart] = draw_learning_curves({"rl": [{"step": 0} | row]}, {"rl": 0})
    assert chart.title == "Fidelity"
