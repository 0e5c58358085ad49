import pytest

from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.evaluation.tables import build_detail_tables
from fieldcraft.types import (
    Author,
    CallOutcome,
    CallRecord,
    Segment,
    Status,
    Task,
    Trajectory,
    UserError,
)


def make(
    name,
    em,
    outcomes="",
    *,
    status=Status.ANSWERED,
    tokens=10,
    well_formed=True,
    **meta,
):
    """Return a trajectory; `outcomes` has a letter per call: o(k), f(ailed), m(alformed),
    r(efused)."""
    letters = {outcome.value[0]: outcome for outcome in CallOutcome}
    return Trajectory(
        Task(name, "?", ("a",), meta),
        segments=[
            Segment(Author.PROMPT, [0] * 50, ""),
            Segment(Author.POLICY, [0] * (tokens - 3), ""),
            Segment(Author.TOOL, [0] * 20, ""),
            Segment(Author.SIMULATOR, [0] * 20, ""),
            Segment(Author.POLICY, [0] * 3, ""),
        ],
        calls=[
            CallRecord("search", {"query": str(i)}, "", letters[letter], 0.5)
            for i, letter in enumerate(outcomes)
        ],
        status=status,
        well_formed=well_formed,
        rewards={"em": em, "f1": None if em is None else em / 2 + 0.25},
        seconds=2.0,
    )


def group(
    n: int, ungradable: int, correct: int, em: float, calls: float, optimum: float | None
) -> dict[str, float | None]:
    return {
        **{"n": n, "ungradable": ungradable, "correct": correct, "em": em},
        **{"calls_mean": calls, "calls_optimal_mean": optimum},
    }


SET = [
    make("a", 1.0, "oo", hops=2, known=False, calls_optimal=2, tokens=30),
    make("b", 1.0, "o", hops=1, known=False, calls_optimal=0),
    make("c", 1.0, "", hops=1, known=True, calls_optimal=0),
    make("d", 0.0, "ofr", hops=2, known=True, calls_optimal=1, well_formed=False),
    make("e", None, "m", hops=2, known=False, calls_optimal=1, status=Status.ERROR),
]


def test_the_summary_of_a_small_set_by_hand():
    found = summarise_evaluation(SET)
    interval = found.pop("em_ci95")
    assert interval == pytest.approx([0.300642, 0.954413], abs=1e-6)
    assert found == {
        "n": 5,
        "ungradable": 1,
        "n_effective": 4,
        "em": 0.75,
        "f1": (3 * 0.75 + 0.25) / 4,
        "cover_em": None,
        "judge": None,
        "judge_ungradable": 0,
        "correct": 3,
        "offered": None,
        "broken_rate": 0.2,  # e
        "broken_cause": "",
        "forced_answer_rate": 0.0,
        "attempt_rate": 0.8,
        "call_named_rate": None,  # no reason is given for the malformed call
        "call_fitting_rate": None,
        "calls": {
            "written": 7,
            "executed": 5,
            "failed": 1,
            "malformed": 1,
            "refused": 1,
            "duplicate": 0,
        },
        "calls_mean": 1.0,  # 2 + 1 + 0 + 2 + 0; refused and malformed calls were not run
        "calls_written_mean": 1.4,
        "calls_optimal_mean": 0.8,
        "needless_calls_mean": 0.4,  # one each of b and d
        "missing_calls_mean": 0.2,  # one of e
        "calls_regret_mean": 0.6,
        "offloading_rate": 0.5,  # d of c and d
        "tool_seconds_mean": 0.7,
        "call_cost_mean": 1.0,  # 5 calls that cost 1 each
        "call_cost_optimal_mean": None,
        "call_cost_regret_mean": None,
        "token_cost_mean": 0.0,
        "acting_cost_per_success": 5 / 3,
        "observation_tokens_mean": 40.0,
        "optimal_rate": 0.4,  # a and c; b made one call too many
        "tool_productivity": 0.6,  # 3 right answers over 5 calls
        "answered_rate": 0.8,
        "format_rate": 0.8,
        "tokens_mean": 14.0,
        "seconds_mean": 2.0,
        "status": {"answered": 0.8, "no_answer": 0.0, "truncated": 0.0, "error": 0.2},
        "call_failed_rate": 1 / 7,
        "folds_mean": 0.0,
        "call_malformed_rate": 1 / 7,
        "call_refused_rate": 1 / 7,
        "call_duplicate_rate": 0.0,
        "by_hops": {
            "1": group(2, 0, 2, 1.0, 0.5, 0.0),
            "2": group(3, 1, 1, 0.5, 4 / 3, 4 / 3),
        },
        "by_level": {},
        "by_calls": {
            "0": group(2, 1, 1, 1.0, 0.0, 0.5),
            "1": group(1, 0, 1, 1.0, 1.0, 0.0),
            "2": group(2, 0, 1, 0.5, 2.0, 1.5),
        },
        "known": {"n": 2, "em": 0.5, "calls_mean": 1.0, "no_call_rate": 0.5},
        "unknown": {"n": 3, "em": 1.0, "calls_mean": 1.0, "no_call_rate": 1 / 3},
        "sampled": None,
        # two requests each: one reads 50 tokens, the other 50, the first turn and 40 more
        "requests_mean": 2.0,
        "prompt_tokens_mean": (4 * (50 + 97) + 50 + 117) / 5,
        "completion_tokens_mean": 14.0,
        "member_prompt_tokens_mean": 0.0,
        "check_auroc": None,
        "suggestion_auroc": None,
        "cost_mean": None,
        "tokens_per_success": (4 * 157 + 197) / 3,
        "calls_per_success": 5 / 3,
        "seconds_per_success": 10 / 3,
        "cost_per_success": None,
    }


def test_a_level_without_a_gradable_answer_is_in_the_table():
    found = summarise_evaluation([make("a", 1.0, "o", level=1), make("b", None, level=2)])
    _, levels = build_detail_tables({"x": found})
    assert levels.rows == [("x", ("1.000 (1.00)", "not gradable (0.00)"))]


def test_levels_have_their_own_rows():
    found = summarise_evaluation(
        [make("a", 1.0, "o", level=1), make("b", 0.0, level=1), make("c", 1.0)]
    )
    assert found["by_level"] == {"1": group(2, 0, 1, 0.5, 0.5, None)}
    other = summarise_evaluation([make("a", 1.0, level="easy"), make("b", 0.0, "oo", level="hard")])
    assert len(build_detail_tables({"x": found})) == 1
    _, levels = build_detail_tables({"x": found, "y": other})
    assert levels.headers == ["1\nn=2", "easy\nn=1", "hard\nn=1"]
    assert levels.rows == [
        ("x", ("0.500 (0.50)", "", "")),
        ("y", ("", "1.000 (0.00)", "0.000 (2.00)")),
    ]


def test_hops_are_in_the_order_of_numbers():
    found = summarise_evaluation([make(str(hops), 1.0, hops=hops) for hops in (10, 9, 1)])
    assert list(found["by_hops"]) == ["1", "9", "10"]


def test_labels_of_questions_may_be_numbers_texts_and_lists():
    hops = [10, "9", 9, "two", [1, 2]]
    found = summarise_evaluation([make(str(n), 1.0, hops=h) for n, h in enumerate(hops)])
    assert list(found["by_hops"]) == ["9", "10", "two", "[1, 2]"]
    assert found["by_hops"]["9"]["n"] == 2
    splits = [make(str(n), 1.0, split=split) for n, split in enumerate([1, "1", ["a"]])]
    found = summarise_evaluation(splits, split="1")
    assert (found["split"], found["n"], list(found["splits"])) == ("1", 2, ["1", "['a']"])


def test_without_calls_or_knowledge_of_the_world_the_numbers_are_none():
    found = summarise_evaluation([make("a", 1.0), make("b", None)])
    for key in ("tool_productivity", "calls_optimal_mean", "optimal_rate", "known", "unknown"):
        assert found[key] is None
    for key in ("needless_calls_mean", "missing_calls_mean", "calls_regret_mean"):
        assert found[key] is None
    for kind in ("failed", "malformed", "refused", "duplicate"):
        assert found[f"call_{kind}_rate"] is None
    assert found["offloading_rate"] is None
    assert (found["correct"], found["calls"]["written"]) == (1, 0)
    assert found["by_hops"] == {}
    assert summarise_evaluation([make("a", None)])["em"] is None
    assert summarise_evaluation([make("a", None)])["em_ci95"] is None


def test_the_optimum_is_left_out_when_only_some_tasks_know_it():
    assert (
        summarise_evaluation([make("a", 1.0, calls_optimal=1), make("b", 1.0)])[
            "calls_optimal_mean"
        ]
        is None
    )


def test_splits_are_apart_and_one_leads():
    questions = [make("a", 1.0, split="train"), make("b", 0.0, split="heldout")]
    found = summarise_evaluation(questions, "heldout")
    assert (found["n"], found["em"], found["split"]) == (1, 0.0, "heldout")
    assert {name: part["em"] for name, part in found["splits"].items()} == {
        "heldout": 0.0,
        "train": 1.0,
    }
    known = [make("a", 1.0, "o", split="known", known=True), make("b", 0.0, "", split="heldout")]
    assert summarise_evaluation(known, "heldout")["offloading_rate"] == 1.0
    assert summarise_evaluation(known, "heldout")["splits"]["heldout"]["offloading_rate"] is None
    other = summarise_evaluation(questions, "train")
    assert (other["n"], other["em"], other["split"]) == (1, 1.0, "train")
    for split in (None, "mixed"):  # none leads, or a split without questions
        both = summarise_evaluation(questions, split)
        assert (both["n"], both["em"], both["split"]) == (2, 0.5, "all")
    assert "splits" not in summarise_evaluation([make("a", 1.0, split="heldout")], "heldout")


def test_samples_of_one_question_do_not_narrow_the_interval():
    once = summarise_evaluation([make("a", 1.0), make("b", 0.0)])
    thrice = summarise_evaluation(
        [make(name, em) for name, em in (("a", 1.0), ("b", 0.0)) for _ in range(3)]
    )
    assert thrice["n"] == 6
    assert thrice["em_ci95"] == once["em_ci95"]


def test_questions_of_one_cluster_widen_the_interval():
    """40 pairs of questions; both questions of a pair are right, or both are wrong."""
    apart = summarise_evaluation([make(str(i), float(i % 4 < 2)) for i in range(80)])
    pairs = [make(str(i), float(i % 4 < 2), cluster=i // 2) for i in range(80)]
    assert (apart["em"], apart["n_effective"]) == (0.5, 80)
    # sums of distances are 1 or -1: 40 * 40/39 * 79/80 = 40.513; independent 80/4 = 20; identical 2
    assert summarise_evaluation(pairs)["n_effective"] == pytest.approx(
        80 / (42.5128 / 21), abs=1e-4
    )
    assert summarise_evaluation(pairs)["em_ci95"] == pytest.approx([0.351, 0.649], abs=1e-3)
    assert apart["em_ci95"] == pytest.approx([0.393, 0.607], abs=1e-3)


def test_a_weighted_match_is_refused():
    with pytest.raises(ValueError, match=r"1\.5"):
        summarise_evaluation([make("a", 1.5)])


def test_nothing_to_summarise():
    with pytest.raises(UserError, match="at least one task"):
        summarise_evaluation([])
