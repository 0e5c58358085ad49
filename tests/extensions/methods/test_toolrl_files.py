"""ToolRL's files are read as questions with expected calls, and as demonstrations."""

import json
from collections import Counter
from typing import Any

import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.data.file_formats import read_any_demonstrations
from fieldcraft.data.tasks import read_tasks, write_tasks
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import encode_demonstration
from fieldcraft.extensions.methods.toolrl import ToolRLExactReward, ToolRLFormatReward, ToolRLReward
from fieldcraft.types import Answer, Task, Thought, UserError
from source_files import lines, parquet

SYSTEM = "You have tools.\n1. Name: Get Genres\n"
DIALOGUE = "**Dialogue Records History**\n<user> Which genres? </user>"
ANSWER = '<tool_call>\n{"name": "Get Genres", "parameters": {"n": 3}}\n</tool_call>'
OUTPUT = f"<think> I look it up. </think>\n{ANSWER}"
QUESTION = f"{SYSTEM}\n{DIALOGUE}"
CALLS = [{"name": "Get Genres", "arguments": {"n": 3}}]


def sft(output: str = OUTPUT, **fields: str) -> dict[str, str]:
    return {"instruction": SYSTEM, "input": DIALOGUE, "output": output, **fields}


def verl(number: int) -> dict[str, Any]:
    return {
        "data_source": "rlla",
        "prompt": [
            {"role": "system", "content": SYSTEM},
            {"role": "user", "content": DIALOGUE.replace("?", f" {number}?")},
        ],
        "ability": "math",
        "reward_model": {"style": "rule", "ground_truth": OUTPUT},
        "extra_info": {"split": "train", "index": number, "instruction": SYSTEM},
    }


def test_supervised_data(tmp_path):
    path = tmp_path / "a.json"
    response = "<response> None. </response>"
    path.write_text(
        json.dumps([sft(), sft(f"<think> No. </think>\n{response}", input=DIALOGUE + "!")])
    )
    one, other = tasks = read_tasks(path)
    assert one == Task(one.id, QUESTION, (ANSWER,), {"calls": CALLS})
    assert other == Task(other.id, f"{QUESTION}!", (response,), {"calls": []})
    assert read_any_demonstrations(path, 0.9) == (
        [
            (one, [Thought("I look it up."), Answer(ANSWER)]),
            (other, [Thought("No."), Answer(response)]),
        ],
        Counter(),
    )
    write_tasks(tasks, tmp_path / "b.jsonl")
    assert read_tasks(tmp_path / "b.jsonl") == tasks


def test_parquet_of_reinforcement_learning(tmp_path):
    path = parquet(tmp_path / "a.parquet", verl(0), verl(1))
    meta = {"data_source": "rlla", "calls": CALLS}
    assert read_tasks(path) == [
        Task(str(n), QUESTION.replace("?", f" {n}?"), (ANSWER,), meta) for n in (0, 1)
    ]
    [(_, steps), _] = read_any_demonstrations(path, 0.9)[0]
    assert steps == [Thought("I look it up."), Answer(ANSWER)]


@pytest.mark.parametrize(
    ("output", "complaint"),
    [
        ("<think> I look it up. </think>", "line 1: the output ends with its thought"),
        ("<think> I look it up.", "line 1: the output ends with its thought"),
        (OUTPUT.replace("{", "", 1), "line 1: The tool call is not valid JSON: .* Correct the"),
        (OUTPUT.replace("</tool_call>", ""), "line 1: A tool call ends with </tool_call>. Correct"),
    ],
)
def test_an_output_that_cannot_be_compared_with(tmp_path, output, complaint):
    path = lines(tmp_path / "a.jsonl", sft(output))
    with pytest.raises(UserError, match=complaint):
        read_tasks(path)


def test_other_records_are_not_taken_for_toolrls(tmp_path):
    with pytest.raises(UserError, match="line 1: there is no question"):
        read_tasks(lines(tmp_path / "a.jsonl", sft(input="Which genres?")))
    path = lines(tmp_path / "b.jsonl", sft(), {"question": "Q?", "answer": "A"})
    found, reasons = read_any_demonstrations(path, 0.9)
    assert len(found) == 1
    assert reasons == {"another format than ToolRL's, the format of the first record": 1}


# In these outputs the thought names tags, which the layout forbids, here and in ToolRL's code.
NAMES_TAGS = {10, 44, 73, 76, 95, 97}


def test_gold_outputs_of_real_data_have_the_highest_scores(shared):
    path = shared / "data/trajectories/toolrl_sft_150.json"
    outputs = [record["output"] for record in json.loads(path.read_text("utf-8"))]
    found, reasons = read_any_demonstrations(path, 0.9)
    tokenizer = tiny_tokenizer()
    dialect = make_dialect("toolrl", tokenizer)
    encoded = [encode_demonstration(task, steps, dialect, []) for task, steps in found]
    assert not reasons
    assert [t.policy_turns for t in encoded] == [[f"{output}<|im_end|>"] for output in outputs]
    assert {i for i, t in enumerate(encoded) if not t.well_formed} == NAMES_TAGS
    rewards = (ToolRLReward(), ToolRLFormatReward(), ToolRLExactReward())
    scores = [tuple(reward([t])[0] for reward in rewards) for t in encoded]
    assert {scores[i] for i in NAMES_TAGS} == {(3.0, 0.0, 0.0)}
    # Of the others 116 call tools, which gives 4, and 28 only respond, which gives 1.
    assert Counter(s for i, s in enumerate(scores) if i not in NAMES_TAGS) == {
        (3.0, 1.0, 1.0): 116,
        (0.0, 1.0, 1.0): 28,
    }
    assert max(len(task.meta["calls"]) for task, _ in found) > 1
