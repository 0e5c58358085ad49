import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fieldcraft.data.file_formats import read_any_pairs
from fieldcraft.data.steps_io import ContrastivePair
from fieldcraft.extensions.formats.autocoa import read_pairs, write_demonstrations, write_pairs
from fieldcraft.extensions.formats.published_trajectories import read_trajectories
from fieldcraft.extensions.methods.autocoa import AutoCoADialect
from fieldcraft.types import Answer, Observation, Task, Thought, ToolCall, UserError

# In the format of the authors' prompts: an instruction with the tags in it, then the question.
PROMPT = (
    "Follow these guidelines:\n1. **Format:** `<begin_search> your query here </end_search>`,"
    " inside `<think></think>`.\n\nNow, please answer the user's question below: \n{}\n\n"
)
ASKED = ToolCall("search", {"query": "director of Solaris"})
SHOWN = 'result 1: "Solaris"\nA film by Tarkovsky.\nresult 2: "Lem"\nA writer.'
CALL = "<begin_search> director of Solaris </end_search>"
FOUND = f"\n\n<search_result> {SHOWN} </search_result>\n\n\n\n"


def messages(prompt, written, **extra):
    turns = [{"role": "user", "content": prompt}, {"role": "assistant", "content": written}]
    return {"messages": turns, **extra}


def pair(prefix, chosen, rejected, **extra):
    sides = {"chosen": chosen, "rejected": rejected}
    human = [{"from": "human", "value": prefix}]
    return {
        "conversation": human,
        **{k: {"from": "gpt", "value": v} for k, v in sides.items()},
        **extra,
    }


def lines(path, *records):
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def test_a_chain_of_action_is_read(tmp_path):
    written = (
        f"<think>\nI need him.\n{CALL}{FOUND}Tarkovsky.\n</think>\n\nIt is \\boxed{{Tarkovsky}}."
    )
    thought = "I know it.\n</think>\n\n**Final Answer**\n\\boxed{\\text{Lem}}"
    path = lines(
        tmp_path / "a.jsonl",
        messages(PROMPT.format("Who made it?"), written),
        messages("Think first.\nQuestion: now what?\nWho wrote it?", thought, question="Who?"),
    )
    found, reasons = read_trajectories(path)
    assert not reasons
    assert [(task.question, task.answers) for task, _ in found] == [
        ("Who made it?", ()),
        ("Who?", ()),
    ]
    assert [steps for _, steps in found] == [
        [
            Thought("I need him."),
            ASKED,
            Observation(SHOWN),
            Thought("Tarkovsky."),
            Answer("Tarkovsky"),
        ],
        [Thought("I know it."), Answer("Lem")],
    ]


def test_what_a_prompt_asks_is_found_whatever_the_instruction(tmp_path):
    asks = ["Think. Question: Who?", "Think. Question: Whose?", PROMPT.format("When: now?")]
    path = lines(tmp_path / "a.jsonl", *(messages(p, "</think>\\boxed{A}") for p in asks))
    questions = [task.question for task, _ in read_trajectories(path)[0]]
    assert questions == ["Who?", "Whose?", "When: now?"]


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("", "no answer"),
        ("I think.", "no answer"),
        ("a</think> It is b.", "no answer"),
        (CALL, "no answer"),
        (f"{CALL}{FOUND}", "no answer"),
        (f"a</think> {CALL} \\boxed{{b}}", "a tag after the thinking part"),
        ("<begin_search> a </think> \\boxed{b}", "a query is not closed"),
        ("<begin_search> </end_search> a</think>\\boxed{b}", "an empty query"),
        (f"{CALL} well</think>\\boxed{{b}}", "a query without documents"),
        (f"{CALL}<search_result> a</think>\\boxed{{b}}", "documents are not closed"),
        ("a</end_search></think>\\boxed{b}", "a stray tag"),
        ("a </search_result>", "a stray tag"),
    ],
)
def test_what_is_left_out_is_counted(tmp_path, written, reason):
    good = messages("Q?", "</think>\\boxed{b}")
    found, reasons = read_trajectories(lines(tmp_path / "a.jsonl", good, messages("R?", written)))
    assert [steps for _, steps in found] == [[Answer("b")]]
    assert reasons == {reason: 1}


def test_pairs_are_read(tmp_path):
    begun = PROMPT.format("Who made it?") + "<think>\nI ask who made it. Perhaps"
    after = PROMPT.format("Who?") + f"<think>a\n{CALL}{FOUND}"
    answer = " it was Lem.\n</think>\n\n\\boxed{Lem}"
    path = tmp_path / "a.json"
    path.write_text(
        json.dumps(
            [
                pair(begun, f" I had better look.\n{CALL}", answer, golden_answers=["T"], id="7"),
                pair(after, f"So{CALL}{FOUND}and\n</think>\n\\boxed{{T}}", " I know it."),
                pair(after, CALL, CALL),
                pair(after, CALL, " "),
            ]
        )
    )
    pairs, reasons = read_pairs(path)
    one, two = pairs
    assert one == ContrastivePair(
        Task("7", "Who made it?", ("T",)),
        (Thought("I ask who made it. Perhaps"),),
        (Thought("I had better look."), ASKED),
        (Thought("it was Lem."), Answer("Lem")),
    )
    assert two.before == (Thought("a"), ASKED, Observation(SHOWN))
    assert (two.chosen, two.rejected) == ((Thought("So"), ASKED), (Thought("I know it."),))
    assert two.task.question == "Who?"
    assert reasons == {"both sides are the same": 1, "an empty side": 1}
    with pytest.raises(UserError, match=r"2 of the 4 records .* max_left_out=0\.5"):
        read_any_pairs(path, 0.4)
    assert read_any_pairs(path, 0.5) == (pairs, reasons)


@pytest.mark.parametrize(
    ("record", "read", "complaint"),
    [
        ({"messages": []}, read_trajectories, "line 1: this is not a trajectory of AutoCoA"),
        (messages("Q?", None), read_trajectories, "line 1: this is not a trajectory of AutoCoA"),
        ({"question": "Q?"}, read_pairs, "line 1: this is not an AutoCoA pair"),
        (pair("no tag", "a", "b"), read_pairs, "whose last value contains '<think>'"),
        (pair("<think>", "a", None), read_pairs, "line 1: this is not an AutoCoA pair"),
    ],
)
def test_what_is_of_another_format_is_named(tmp_path, record, read, complaint):
    with pytest.raises(UserError, match=complaint):
        read(lines(tmp_path / "a.jsonl", record))


# -- writing


def test_what_the_authors_code_reads(tmp_path):
    task = Task("7", "Who made it?", ("Tarkovsky",))
    steps = [Thought("I look."), ASKED, Observation(SHOWN), Thought("He."), Answer("Tarkovsky")]
    assert not write_demonstrations([(task, steps)], tmp_path / "a.jsonl", "Think.")
    assert json.loads((tmp_path / "a.jsonl").read_text()) == {
        "messages": [
            {"role": "user", "content": "Think.\n\nWho made it?"},
            {
                "role": "assistant",
                "content": f"I look.\n{CALL}\n\n<search_result> {SHOWN} </search_result>\n\nHe.\n"
                "</think>\n\n\\boxed{Tarkovsky}",
            },
        ],
        "id": "7",
        "question": "Who made it?",
        "golden_answers": ["Tarkovsky"],
    }
    one = ContrastivePair(task, (Thought("So"),), (Thought("I look."), ASKED), (Answer("Lem"),))
    assert not write_pairs([one], tmp_path / "a.json", "Think.")
    [record] = json.loads((tmp_path / "a.json").read_text())
    assert record["conversation"] == [
        {"from": "human", "value": "Think.\n\nWho made it?\n\n<think>So"}
    ]
    assert record["chosen"] == {"from": "gpt", "value": f" I look.\n{CALL}"}
    assert record["rejected"] == {"from": "gpt", "value": "\n</think>\n\n\\boxed{Lem}"}


text = st.text(st.characters(exclude_categories=["C"]) | st.just("\n"), min_size=1).map(str.strip)
text = text.filter(lambda t: t and not any(tag in t for tag in AutoCoADialect.tags))
plain = text.filter(lambda t: "{" not in t and "}" not in t and "\\" not in t)
questions = st.builds(
    Task,
    id=plain,
    question=text,
    answers=st.lists(plain, min_size=1, unique=True).map(tuple),
)
turns = st.tuples(text, text, text).map(
    lambda t: (Thought(t[0]), ToolCall("search", {"query": t[1]}), Observation(t[2]))
)
before = st.lists(turns, max_size=2).map(lambda several: tuple(s for turn in several for s in turn))
thoughts = text.map(lambda t: (Thought(t),)) | st.just(())
ends = st.tuples(thoughts, plain.map(lambda t: (Answer(t),))).map(lambda t: t[0] + t[1])
acts = st.tuples(thoughts, text.map(lambda t: (ToolCall("search", {"query": t}),))).map(
    lambda t: t[0] + t[1]
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(questions, before, ends), min_size=1, max_size=3))
def test_demonstrations_are_read_as_they_were_written(tmp_path_factory, demonstrations):
    path = tmp_path_factory.mktemp("shown") / "a.jsonl"
    demonstrations = [(task, [*first, *last]) for task, first, last in demonstrations]
    assert not write_demonstrations(demonstrations, path)
    assert read_trajectories(path) == (demonstrations, {})


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.tuples(questions, before, thoughts, acts, ends), min_size=1, max_size=3))
def test_pairs_are_read_as_they_were_written(tmp_path_factory, parts):
    path = tmp_path_factory.mktemp("pairs") / "a.json"
    pairs = [
        ContrastivePair(task, first + begun, act, end) for task, first, begun, act, end in parts
    ]
    assert not write_pairs(pairs, path)
    assert read_pairs(path) == (pairs, {})


@pytest.mark.parametrize(
    ("steps", "reason"),
    [
        ([Thought("I write </end_search>."), Answer("A")], "text with a tag"),
        ([ASKED, Observation("a </search_result> b"), Answer("A")], "text with a tag"),
        ([Thought("<think>"), Answer("A")], "text with a tag"),
        ([Answer("}")], "text with a tag"),
        (
            [ToolCall("code", {"source": "1"}), Observation("1"), Answer("A")],
            "another tool than search",
        ),
    ],
)
def test_what_cannot_be_written_is_counted(tmp_path, steps, reason):
    task = Task("7", "Q?", ("A",))
    path = tmp_path / "a.jsonl"
    good = [Answer("A")]
    assert write_demonstrations([(task, steps), (task, good)], path) == {reason: 1}
    assert read_trajectories(path)[0] == [(task, good)]
    pairs = [ContrastivePair(task, (), tuple(steps), (Thought("I know."),))]
    assert write_pairs(pairs, path.with_suffix(".json")) == {reason: 1}


def test_a_pair_whose_prefix_would_be_cut_at_the_wrong_place_is_not_written(tmp_path):
    before = (ASKED, Observation("a page about <think>"))
    pair = ContrastivePair(Task("7", "Q?", ("A",)), before, (Thought("a"), ASKED), (Answer("b"),))
    assert write_pairs([pair], tmp_path / "a.json") == {"text with a tag": 1}


def test_demonstrations_of_others_survive_the_way(shared, tmp_path):
    found, _ = read_trajectories(shared / "data/trajectories/r1searcher_hotpotqa_500.jsonl")
    reasons = write_demonstrations(found, tmp_path / "a.jsonl")
    again, _ = read_trajectories(tmp_path / "a.jsonl")
    steps_by_id = {task.id: steps for task, steps in again}
    assert len(again) + sum(reasons.values()) == 500
    assert len(again) >= 490
    for task, steps in found:
        if task.id in steps_by_id:
            assert [type(s) for s in steps_by_id[task.id]] == [type(s) for s in steps]
            assert steps_by_id[task.id][-1] == steps[-1]
