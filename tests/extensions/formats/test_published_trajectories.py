"""Trajectories of R1-Searcher and Search-R1 become demonstrations."""

import json
from collections import Counter

import pytest

from fieldcraft.extensions.formats.published_trajectories import read_trajectories
from fieldcraft.types import Answer, Observation, Task, Thought, ToolCall, UserError
from source_files import lines


def r1_searcher(written, **fields):
    return {"question": "Q?", "answer": "A", "gen_text_store": written, **fields}


SEARCH = (
    "<|begin_of_query|> Kalo Remi<|end_of_query|>\n\n<|begin_of_documents|>\n"
    '(1)"Title: Kalo Text:  Is ""Kalo"".\n</think><answer>no</answer>"\n'
    "(2)Title: Remi Text:  Is Remi.\n<|end_of_documents|>"
)


def test_a_trajectory_becomes_steps(tmp_path):
    written = f" First,\n\n{SEARCH}\n\nI see.</think>\n\n <answer> Kalo </answer>"
    path = lines(tmp_path / "a.jsonl", r1_searcher(written, gpt4o_output="False"))
    [(task, steps)], reasons = read_trajectories(path)
    assert task == Task("161d94ed6208db04", "Q?", ("A",), {"judged_correct": False})
    assert steps == [
        Thought("First,"),
        ToolCall("search", {"query": "Kalo Remi"}),
        Observation(
            'result 1: "Kalo"\nIs "Kalo".\n</think><answer>no</answer>\nresult 2: "Remi"\nIs Remi.'
        ),
        Thought("I see."),
        Answer("Kalo"),
    ]
    assert not reasons


def test_documents_of_the_web_have_three_spaces_after_their_title(tmp_path):
    """This is the format of R1-Searcher's results on Bamboogle. A title may contain text-like
    parts."""
    search = (
        "<|begin_of_query|>mil<|end_of_query|><|begin_of_documents|>\n(1).mil   .mil The domain\n"
        "(2)Kalo  Remi   with 3   spaces\n<|end_of_documents|>"
    )
    path = lines(tmp_path / "a.jsonl", r1_searcher(f"{search}<answer>b</answer>"))
    [(_, [_, seen, _])], reasons = read_trajectories(path)
    assert seen.text == 'result 1: ".mil"\n.mil The domain\nresult 2: "Kalo  Remi"\nwith 3   spaces'
    assert not reasons


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("I think.", "no answer"),
        (f"{SEARCH} I see.</think>", "no answer"),
        ("a</think><answer>b", "an answer is not closed"),
        ("a</think><answer> </answer>", "an empty answer"),
        ("a</think><answer>b</answer> or c", "text after the answer"),
        ("<|begin_of_query|>a</think><answer>b</answer>", "a query is not closed"),
        (SEARCH.replace("Kalo Remi", ""), "an empty query"),
        ("<|begin_of_query|>a<|end_of_query|><answer>b</answer>", "a query without documents"),
        (SEARCH.replace("\n\n", "well"), "a query without documents"),
        (
            SEARCH.replace("<|end_of_documents|>", "") + "<answer>b</answer>",
            "documents are not closed",
        ),
        (SEARCH.replace("Title: Remi", "Remi"), "a document without title and text"),
        (
            "<|begin_of_query|>a<|end_of_query|><|begin_of_documents|><|end_of_documents|>",
            "no documents",
        ),
        ("a<|end_of_documents|><answer>b</answer>", "a stray tag"),
    ],
)
def test_what_is_left_out_is_counted(tmp_path, written, reason):
    good = r1_searcher("<answer>b</answer>")
    path = lines(tmp_path / "a.jsonl", r1_searcher(written), good, r1_searcher(written))
    found, reasons = read_trajectories(path)
    assert [steps for _, steps in found] == [[Answer("b")]]
    assert reasons == {reason: 2}


def test_a_record_of_another_form_leaves_itself_out(tmp_path):
    good = r1_searcher("<answer>b</answer>")
    path = lines(tmp_path / "a.jsonl", good, {"question": "Q?", "answer": "A"}, good)
    found, reasons = read_trajectories(path)
    assert (len(found), reasons) == (2, {"another format than the first record": 1})
    chat = {"messages": [{"role": "user", "content": "Q?"}]}
    message = {"role": "assistant", "content": "Hm.</think>\n\n\\boxed{A}"}
    whole = {"messages": [*chat["messages"], message]}
    found, reasons = read_trajectories(lines(tmp_path / "b.jsonl", whole, chat, whole))
    assert (len(found), reasons) == (2, {"another format than the first record": 1})


def test_what_is_no_trajectory_is_named(tmp_path):
    with pytest.raises(UserError, match="line 1: this is not a trajectory of R1-Searcher"):
        read_trajectories(lines(tmp_path / "a.jsonl", {"gen_text_store": "A"}))
    (tmp_path / "a.txt").write_text("Dear reader,")
    with pytest.raises(UserError, match="holds no Search-R1 transcript"):
        read_trajectories(tmp_path / "a.txt")
    with pytest.raises(UserError, match=r"b\.txt does not exist"):
        read_trajectories(tmp_path / "b.txt")


def test_every_real_trajectory_of_r1_searcher_is_read(shared):
    path = shared / "data/trajectories/r1searcher_hotpotqa_500.jsonl"
    found, reasons = read_trajectories(path)
    assert (len(found), reasons) == (500, {})
    assert len({task.id for task, _ in found}) == 500
    assert sum(task.meta["judged_correct"] for task, _ in found) == 375
    kinds = Counter(type(step) for _, steps in found for step in steps)
    assert kinds == {Thought: 1550, ToolCall: 1055, Observation: 1055, Answer: 500}
    searches = Counter(sum(type(s) is ToolCall for s in steps) for _, steps in found)
    assert searches == {2: 393, 3: 67, 1: 16, 4: 13, 0: 11}
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record, (_, steps) in zip(records, found, strict=True):
        assert steps[-1] == Answer(record["pred_ans"].strip())
        for step in steps:
            text = step.arguments["query"] if isinstance(step, ToolCall) else step.text
            assert text == text.strip() != ""
            assert "<|" not in text
            if isinstance(step, Observation):
                assert [f'result {n}: "' in step.text for n in range(1, 7)] == [True] * 5 + [False]


def test_real_transcripts_of_search_r1_are_read(shared):
    found, reasons = read_trajectories(shared / "data/trajectories/search_r1_cases.txt")
    assert not reasons
    assert [(task.question[:11], task.answers) for task, _ in found] == [
        ("paul walker", ()),
        ("the heart m", ()),
    ]
    letters = {Thought: "T", ToolCall: "C", Observation: "O", Answer: "A"}
    kinds = ["".join(letters[type(step)] for step in steps) for _, steps in found]
    assert kinds == ["TCOTCOTA", "TCOTA"]
    _, steps = found[1]
    assert steps[1] == ToolCall("search", {"query": "origin of heart's electrical impulses"})
    assert steps[2].text.startswith('result 1: "Cardiac pacemaker"\nCardiac pacemaker The')
    assert '\nresult 3: "Sinoatrial node"\nSinoatrial node The' in steps[2].text
    assert steps[4] == Answer("sinoatrial (SA) node")
