"""Rules that filter demonstrations, one by one and as a sequence."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.data.grading import Grader
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.afm_grades import make_double_check, make_reflection
from fieldcraft.extensions.curation.filters import (
    Demonstration,
    FilterResult,
    apply_filters,
    make_filter,
)
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.tool_metrics import count_duplicate_calls
from fieldcraft.records.words import split_words
from fieldcraft.runs.build import make_verdict_reward
from fieldcraft.types import (
    Answer,
    CallOutcome,
    CallRecord,
    DemoStep,
    Observation,
    Task,
    Thought,
    ThoughtRole,
    ToolCall,
    Trajectory,
    UserError,
)
from source_files import lines

pytest.importorskip("datasketch", reason="near duplicates need the extra data")
TASK = Task("t", "Where was Ada Lind born?", ("Northport",))
GOOD, BAD = ("Good", "Good", "Good"), ("Good", "Poor", "Good")
DIALECT = make_dialect("afm-mhqa", tiny_tokenizer())
LONG = "The article says that Ada Lind was born there."


def search(query: str = "Ada Lind") -> list[DemoStep]:
    return [Thought("I search."), ToolCall("search", {"query": query}), Observation("A page.")]


PLAN: list[DemoStep] = [Thought("I plan."), Thought("Search for her.", ThoughtRole.PLAN)]
CHECKED: list[DemoStep] = [
    *(Thought("So."), Thought("Northport", ThoughtRole.SUGGEST)),
    *(Thought("Yes."), make_double_check(4), Thought("Done."), Answer("Northport")),
]
PLAIN: list[DemoStep] = [*PLAN, *search(), *CHECKED]
REFLECTED: list[DemoStep] = [*PLAN, *search(), Thought("Fine."), make_reflection(GOOD), *CHECKED]
REPAIRED: list[DemoStep] = [
    *(*PLAN, *search("Bo"), Thought("No."), make_reflection(BAD), *PLAN, *search(), *CHECKED),
]
DOUBTED: list[DemoStep] = [
    *(*PLAN, *search(), Thought("So."), Thought("Rome", ThoughtRole.SUGGEST), Thought("No.")),
    *(make_double_check(2), *PLAN, *CHECKED),
]


def apply(
    filters: dict[str, dict[str, Any]], *steps: Sequence[DemoStep], task: Task = TASK, seed: int = 0
) -> FilterResult:
    return filtered([(task, each) for each in steps], filters, seed)


def filtered(chains: Any, filters: dict[str, dict[str, Any]], seed: int = 0) -> FilterResult:
    grader = Grader(make_verdict_reward(load_recipe("smoke", [])))
    return asyncio.run(apply_filters(chains, filters, DIALECT, grader, seed))


def reasons(found: FilterResult) -> list[str]:
    return [reason for _, _, reason in found.dropped]


def test_complexity_counts_agents_and_calls() -> None:
    assert (
        Demonstration(TASK, PLAIN).num_interactions == 4
    )  # plan, search, suggested answer, double check
    assert Demonstration(TASK, REFLECTED).num_interactions == 5
    found = apply({"complexity": {}}, PLAIN, REFLECTED)
    assert found.accepted == [Demonstration(TASK, REFLECTED)]
    assert reasons(found) == ["fewer than 5 interactions"]
    assert apply({"complexity": {"least": 4}}, PLAIN).dropped == []


def test_complexity_can_count_calls_alone() -> None:
    """The plan, the reflections and the checks of REPAIRED are many; its calls are two."""
    assert (
        Demonstration(TASK, REPAIRED).num_interactions,
        len(Demonstration(TASK, REPAIRED).calls),
    ) == (7, 2)
    by_calls = {"complexity": {"least": 3, "count": "calls"}}
    assert reasons(apply(by_calls, REPAIRED)) == ["fewer than 3 calls"]
    assert apply({"complexity": {"least": 2, "count": "calls"}}, REPAIRED).dropped == []
    assert reasons(apply({"complexity": {"count": "calls"}}, REPAIRED)) == ["fewer than 5 calls"]


def test_different_tools() -> None:
    page = [ToolCall("crawl_page", {"url": "http://a"}), Observation("A page.")]
    both = [*PLAN, *search(), Thought("I read."), *page, *CHECKED]
    twice = [*PLAN, *search("A"), *search("B"), *CHECKED]
    found = apply({"tools": {"least": 2}}, both, twice, CHECKED)
    assert [chain.steps for chain in found.accepted] == [both]
    assert reasons(found) == ["fewer than 2 different tools"] * 2


def test_a_hop_goes_to_the_tools_and_comes_back() -> None:
    """Two calls of one turn are one hop."""
    action, observed = search()[1:]
    parallel = [Thought("Both."), action, action, observed, observed, *search(), *CHECKED]
    assert (len(Demonstration(TASK, parallel).calls), Demonstration(TASK, parallel).num_hops) == (
        3,
        2,
    )
    assert [Demonstration(TASK, steps).num_hops for steps in (PLAIN, REPAIRED, CHECKED)] == [
        1,
        2,
        0,
    ]
    found = apply({"hops": {"least": 1, "most": 1}}, PLAIN, parallel, CHECKED)
    assert [chain.steps for chain in found.accepted] == [PLAIN]
    assert reasons(found) == ["more than 1 hops", "fewer than 1 hops"]
    assert reasons(apply({"hops": {}}, PLAIN)) == ["fewer than 5 hops"]


def test_wrong_answers_and_none() -> None:
    wrong, silent = [*PLAIN[:-1], Answer("Rome")], PLAIN[:-1]
    found = apply({"wrong": {}}, PLAIN, wrong, silent)
    assert found.accepted == [Demonstration(TASK, PLAIN)]
    assert reasons(found) == ["a wrong answer", "no answer"]
    unknown = Task("u", "Who?", ())  # without a gold answer it is not trusted
    assert reasons(apply({"wrong": {}}, wrong, task=unknown)) == ["it cannot be graded"]
    assert len(apply({"corrected": {}}, REPAIRED, task=unknown).accepted) == 1  # and not repeated


def test_redundant_calls_and_thoughts() -> None:
    calls = [*PLAN, *search("Ada Lind"), *search(" ada  lind "), *CHECKED]
    thoughts = [*PLAN, *search("A"), Thought(LONG), *search("B")[1:], Thought(LONG), *CHECKED[1:]]
    found = apply({"redundant": {}}, PLAIN, REPAIRED, calls, thoughts)
    assert [chain.steps for chain in found.accepted] == [PLAIN, REPAIRED]  # a plan may occur again
    assert reasons(found) == ["a repeated call", "a repeated thought"]


def test_repeated_calls_are_those_that_the_metric_counts_as_duplicates() -> None:
    """Case and spaces of texts do not count, also inside lists; ß is SS in upper case."""

    def call(text: str) -> ToolCall:
        return ToolCall("search", {"queries": [text], "top": 1})

    for texts, is_repeated in ((("Große Insel", " GROSSE  insel"), True), (("a", "b"), False)):
        calls = [*PLAN, *(step for text in texts for step in (call(text), Observation("x")))]
        found = apply({"redundant": {}}, [*calls, *CHECKED])
        assert reasons(found) == ["a repeated call"] * is_repeated
        records = [CallRecord("search", call(t).arguments, "x", CallOutcome.OK, 0) for t in texts]
        assert count_duplicate_calls(Trajectory(TASK, calls=records)) == is_repeated


def test_chains_off_the_grammar() -> None:
    unthought = [*PLAN, search()[1], search()[2], *CHECKED]  # a call without a preceding thought
    foreign = [*PLAN, Thought("I compute."), ToolCall("python", {"code": "1"}), Observation("1")]
    found = apply({"off_grammar": {}}, PLAIN, DOUBTED, unthought, [*foreign, *CHECKED])
    assert [chain.steps for chain in found.accepted] == [PLAIN, DOUBTED]
    assert reasons(found) == [
        "outside the grammar of afm-mhqa",
        "the dialect afm-mhqa cannot write it",
    ]


def test_a_share_of_the_chains_without_reflection() -> None:
    plain = [[Thought(f"I plan {n}."), *PLAIN[1:]] for n in range(400)]
    none = apply({"reflection": {"share": 0}}, *plain[:9], REFLECTED)
    assert none.accepted == [Demonstration(TASK, REFLECTED)]
    half = apply({"reflection": {"share": 0.5}}, *plain)
    assert 160 <= len(half.accepted) <= 240
    again = apply({"reflection": {"share": 0.5}}, *reversed(plain))
    assert {c.text for c in again.accepted} == {
        c.text for c in half.accepted
    }  # the order does not matter
    other = apply({"reflection": {"share": 0.5}}, *plain, seed=1)
    assert {c.text for c in other.accepted} != {c.text for c in half.accepted}


def test_repaired_errors_are_repeated() -> None:
    wrong = [*DOUBTED[:-1], Answer("Rome")]
    found = apply({"corrected": {"times": 3}}, PLAIN, REPAIRED, DOUBTED, wrong)
    assert [chain.steps for chain in found.accepted] == [
        PLAIN,
        *[REPAIRED] * 3,
        *[DOUBTED] * 3,
        wrong,
    ]
    [cut] = found.stages
    assert (cut.before, cut.after, cut.repeated, cut.dropped) == (4, 8, 4, {})


def test_near_duplicates() -> None:
    questions = [
        ("Which city was the painter Ada Lind born in, in 1931?", "Northport"),
        ("Which city was the painter  ada Lind born in, in 1931", "Northport"),
        ("Which city was the painter Ada Lind born in, in 1931?", "Southport"),
        ("Who painted the harbour of Northport in the winter of 1931?", "Northport"),
    ]
    chains = [(Task(str(n), q, (a,)), PLAIN) for n, (q, a) in enumerate(questions)]
    found = filtered(chains, {"near_duplicates": {}})
    assert [chain.task.id for chain in found.accepted] == ["0", "2", "3"]
    assert reasons(found) == ["similar to an earlier question"]


@pytest.mark.parametrize(
    ("first", "other", "alike"),
    [
        ("बिल कहाँ है?", "बेल कहाँ है", False),  # the vowel signs make the word
        ("बिल कहाँ है?", "बिल कहाँ है।", True),
        ("Où est le café?", "Ou\u0300 est le cafe\u0301 ?", True),
        ("Is 5 > 3?", "Is 5 < 3?", False),
        ("?", "!", False),
    ],
)
def test_words_of_near_duplicates_and_benchmarks(
    tmp_path: Path, first: str, other: str, alike: bool
) -> None:
    chains = [(Task(q, q, ("a",)), PLAIN) for q in (first, other)]
    rules: dict[str, dict[str, Any]] = {"near_duplicates": {}}
    assert len(filtered(chains, rules).accepted) == (1 if alike else 2)
    if split_words(first) != split_words(other) or alike:
        bench = lines(tmp_path / "bench.jsonl", {"question": first, "answer": "x"})
        rules = {"contaminated": {"files": [str(bench)]}}
        assert len(filtered(chains[1:], rules).accepted) == (0 if alike else 1)


def test_contamination(tmp_path: Path) -> None:
    words = "one two three four five six seven eight nine ten eleven twelve thirteen"
    short = "Who wrote The Long Road?"
    bench = lines(
        tmp_path / "bench.jsonl",
        {"question": f"zero {words} fourteen", "answer": "x"},
        {"question": short, "answer": "x"},
    )
    questions = [
        f"Now: {words.upper()}!",
        words.replace("seven", "7"),
        "who wrote the long road",
        "Who wrote The Long Road in 1931?",
        "What does CODE-77 mean?",
    ]
    chains = [(Task(q, q, ("a",)), PLAIN) for q in questions]
    rule = {"contaminated": {"files": [str(bench)], "canaries": ["CODE-77"]}}
    found = filtered(chains, rule)
    assert [chain.task.id for chain in found.accepted] == [questions[1], questions[3]]
    assert reasons(found) == ["in a benchmark", "in a benchmark", "a canary string"]
    read = [*PLAN, *search()[:2], Observation("Data. canary GUID 26b5"), *CHECKED]
    assert reasons(apply({"contaminated": {}}, read)) == ["a canary string"]
    few = {"contaminated": {"files": [str(bench)], "words": 4}}
    assert [chain.task.id for chain in filtered(chains, few).accepted] == [questions[4]]


def test_each_rule_sees_what_the_last_one_left() -> None:
    rules: dict[str, dict[str, Any]] = {"complexity": {}, "corrected": {}, "redundant": {}}
    twice = [
        *PLAN,
        *search("Bo"),
        Thought("No."),
        make_reflection(BAD),
        *PLAN,
        *search("Bo"),
        *CHECKED,
    ]
    found = apply(rules, PLAIN, REFLECTED, REPAIRED, twice)
    counts = [(cut.name, cut.before, cut.after, cut.repeated) for cut in found.stages]
    assert counts == [("complexity", 4, 3, 0), ("corrected", 3, 5, 2), ("redundant", 5, 3, 0)]
    assert found.stages[2].dropped == {"a repeated call": 2}  # including its repetition
    assert {(e.rule, e.reason) for e in found.examples} == {
        ("", ""),
        ("complexity", "fewer than 5 interactions"),
        ("redundant", "a repeated call"),
    }


def even(chain: Demonstration, context: Any) -> tuple[bool, str]:
    return len(chain.steps) % 2 == 0, "odd"


def broken(chain: Demonstration, context: Any) -> Any:
    return {}["x"]


def mute(chain: Demonstration, context: Any) -> Any:
    return "yes"


def test_a_rule_of_the_users() -> None:
    found = apply({"test_filters:even": {}}, PLAN, PLAN[:1])
    assert (len(found.accepted), reasons(found)) == (1, ["odd"])


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("complexty", {}, r"unknown filter 'complexty' \(did you mean 'complexity'"),
        ("complexity", {"lest": 3}, "'complexity' has no setting 'lest'; did you mean 'least'?"),
        ("reflection", {}, "'reflection' needs the setting 'share'"),
        ("reflection", {"share": 2}, "the setting 'share' of the filter 'reflection' is wrong"),
        (
            "complexity",
            {"count": "tools"},
            "the setting 'count' of the filter 'complexity' is wrong",
        ),
        (
            "hops",
            {"least": 5, "most": 4},
            "the range 5 to 4 of the filter 'hops' is empty: raise its 'most'",
        ),
        ("wrong", {"a": 1}, "accepts no settings: remove 'a'"),
        ("contaminated", {"files": ["none.jsonl"]}, "none.jsonl does not exist"),
        ("test_filters:TASK", {}, "neither a function of a chain"),
        ("test_filters:broken", {}, r"failed \(KeyError: 'x'\): correct it"),
        ("test_filters:mute", {}, r"returned 'yes': let it return \(keep, reason\)"),
    ],
)
def test_mistakes_are_told_in_a_sentence(name: str, settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        apply({name: settings}, PLAN)


def test_rules_start_anew_in_every_run() -> None:
    rule: dict[str, dict[str, Any]] = {"near_duplicates": {}}
    assert len(apply(rule, PLAIN).accepted) == len(apply(rule, PLAIN).accepted) == 1
    assert make_filter("near_duplicates", {}) is not make_filter("near_duplicates", {})
