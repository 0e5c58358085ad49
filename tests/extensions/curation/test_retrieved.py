"""Paths from a question to its answer, and their demonstrations in every dialect."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace

import pytest

from checkpoints import tiny_tokenizer
from dialect_parts import ACTING
from fieldcraft.data.decontamination import EvaluationPassages, hash_passage
from fieldcraft.data.passages import Passage, format_passages
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.extensions.curation.evidence import Evidence
from fieldcraft.extensions.curation.retrieval_settings import RetrievalSettings
from fieldcraft.extensions.curation.retrieved import (
    CONTAMINATED_REASON,
    NO_ANSWERS_REASON,
    UNREACHED_REASON,
    UNSUPPORTED_REASON,
    SearchPath,
    exclude_contaminated,
    find_path,
    make_steps,
)
from fieldcraft.runs.search import find_search
from fieldcraft.types import Answer, Observation, Task, Thought, ToolCall

PLAQUE = Passage("1", "Ironton", "The founder is on the plaque of Rust Hall.")
HALL = Passage("2", "Rust Hall", "The plaque names Gus Moe. It is brown.")
TASK = Task("t", "who founded Ironton?", ("Gus Moe",))
BRIDGE = replace(TASK, meta={"gold_titles": ["Ironton", "Rust Hall"]})
SCHEMAS = [find_search().make_prompt_tool().schema]
CODE_DIALECTS = {"torl", "retool", "afm-code"}


class Library:
    """Search with known results, which records the queries."""

    def __init__(self, passages: Mapping[str, Passage]) -> None:
        self.passages = passages
        self.queries: list[str] = []

    async def search(self, query: str) -> str:
        self.queries.append(query)
        return format_passages([self.passages[query]] if query in self.passages else [])


def search(
    task: Task, passages: Mapping[str, Passage], searches: int = 2, max_queries: int = 24
) -> tuple[SearchPath, list[str]]:
    library = Library(passages)
    path = asyncio.run(find_path(task, library.search, searches, max_queries))
    return path, library.queries


def test_the_question_is_the_first_query() -> None:
    path, queries = search(TASK, {TASK.question: HALL})
    assert queries == [TASK.question]
    assert path.reason == ""
    assert path.evidence == Evidence("Rust Hall", "The plaque names Gus Moe.", "Gus Moe")


def test_a_name_in_the_first_passage_is_searched_for_if_it_lacks_the_answer() -> None:
    path, queries = search(TASK, {TASK.question: PLAQUE, "Rust Hall": HALL})
    assert queries == [TASK.question, "Ironton", "Rust Hall"]
    assert path.queries == (TASK.question, "Rust Hall")
    assert path.observations[1] == f'result 1: "Rust Hall"\n{HALL.text}'


@pytest.mark.parametrize("limits", [{"searches": 1}, {"max_queries": 1}])
def test_searches_and_tried_queries_are_limited(limits: dict[str, int]) -> None:
    path, queries = search(TASK, {TASK.question: PLAQUE, "Rust Hall": HALL}, **limits)
    assert len(queries) == {"searches": 1, "max_queries": 2}[next(iter(limits))]
    assert (path.evidence, path.reason) == (None, UNREACHED_REASON)


def test_an_answer_that_no_passage_states_has_no_demonstration() -> None:
    path, _ = search(replace(TASK, answers=("Ida Vik",)), {TASK.question: PLAQUE})
    assert (path.queries, path.reason) == ((TASK.question,), UNREACHED_REASON)
    assert search(replace(TASK, answers=()), {})[0].reason == NO_ANSWERS_REASON


def test_every_supporting_passage_is_read() -> None:
    """The first passage has the answer, which is no reason to skip the other one."""
    path, queries = search(BRIDGE, {TASK.question: HALL, "Ironton": PLAQUE})
    assert path.queries == (TASK.question, "Ironton") == tuple(queries)
    assert path.evidence is not None
    assert path.evidence.span == "Gus Moe"
    path, _ = search(BRIDGE, {TASK.question: HALL})
    assert path.reason == UNSUPPORTED_REASON


def test_further_searches_may_find_one_supporting_passage_each() -> None:
    other = Passage("3", "Other", "It is about Gus Moe.")
    passages = {TASK.question: other, "Ironton": PLAQUE, "Rust Hall": HALL}
    path, _ = search(BRIDGE, passages, searches=3)
    assert path.queries == (TASK.question, "Ironton", "Rust Hall")
    assert path.evidence is not None
    assert path.evidence.title == "Rust Hall"
    assert search(BRIDGE, passages, searches=2)[0].reason == UNSUPPORTED_REASON


def test_titles_without_a_value_are_no_supports() -> None:
    path, _ = search(replace(TASK, meta={"gold_titles": None}), {TASK.question: HALL})
    assert path.evidence is not None
    task = Task("e", "Who?", ("x",), {"gold_titles": None, "gold_passages": None})
    assert exclude_contaminated(path, EvaluationPassages([task])) == path


def test_yes_and_no_follow_from_the_supporting_passages() -> None:
    task = replace(BRIDGE, answers=("yes",))
    path, _ = search(task, {TASK.question: PLAQUE, "Rust Hall": HALL})
    assert path.evidence == Evidence("Rust Hall", HALL.text, "yes")
    assert search(replace(TASK, answers=("yes",)), {TASK.question: PLAQUE})[0].reason


def test_no_demonstration_reads_a_passage_of_an_evaluation() -> None:
    path, _ = search(TASK, {TASK.question: HALL})
    by_title = Task("e", "Who?", ("x",), {"gold_titles": ["RUST HALL"]})
    by_text = Task("e", "Who?", ("x",), {"gold_passages": [hash_passage(HALL.text.upper())]})
    other = Task("e", "Who?", ("x",), {"gold_titles": ["Ironton"]})
    reasons = [
        exclude_contaminated(path, EvaluationPassages([task])).reason
        for task in (by_title, by_text, other)
    ]
    assert reasons == [CONTAMINATED_REASON, CONTAMINATED_REASON, ""]


def two_searches() -> SearchPath:
    return search(TASK, {TASK.question: PLAQUE, "Rust Hall": HALL})[0]


def test_a_demonstration_has_thoughts_queries_passages_and_the_answer() -> None:
    encoder = DemonstrationEncoder(make_dialect("autocoa", tiny_tokenizer()), SCHEMAS)
    settings = RetrievalSettings(again_thought=" ", read_thought='"{sentence}" states {answer}.')
    path = two_searches()
    assert make_steps(path, settings, encoder) == [
        Thought("I look it up."),
        ToolCall("search", {"query": TASK.question}),
        Observation(path.observations[0]),
        ToolCall("search", {"query": "Rust Hall"}),
        Observation(path.observations[1]),
        Thought('"The plaque names Gus Moe." states Gus Moe.'),
        Answer("Gus Moe"),
    ]


@pytest.mark.parametrize("name", [name for name in ACTING if name not in CODE_DIALECTS])
def test_demonstrations_obey_the_grammar_of_each_dialect(name: str) -> None:
    encoder = DemonstrationEncoder(make_dialect(name, tiny_tokenizer()), SCHEMAS)
    trajectory = encoder.encode(TASK, make_steps(two_searches(), RetrievalSettings(), encoder))
    assert trajectory.well_formed
    assert trajectory.answer == "Gus Moe"
    assert [call.arguments["query"] for call in trajectory.calls] == [TASK.question, "Rust Hall"]
