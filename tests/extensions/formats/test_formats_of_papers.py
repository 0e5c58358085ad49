"""The data of AFM, and real trajectories of R1-Searcher, in other projects' formats."""

import json
from pathlib import Path

from fieldcraft.data.file_formats import read_any_demonstrations
from fieldcraft.data.record_files import write_records
from fieldcraft.data.tasks import read_tasks
from fieldcraft.extensions.formats.convert import convert_demonstrations
from fieldcraft.extensions.formats.demonstration_formats import FORMATS
from fieldcraft.types import Answer, Observation, Thought, ThoughtRole, ToolCall


def test_the_data_of_afm(tmp_path: Path) -> None:
    """Supervised data, and a ground truth that is JSON in a string, as written by AFM's
    script."""
    output = (
        "<think>\nI plan.\n</think>\n<plan>\n1. Look.\n</plan>\n"
        "<wiki_search>\nSolaris\n</wiki_search>\n"
        "<observation>\nDoc 1 (Title: Solaris)\nA film.\n</observation>\n\n"
        "<code>\n```py\nprint(1)\n```\n</code>\n<observation>\n1\n</observation>\n\n"
        "<think>\nSo.\n</think>\n<answer>\nTarkovsky\n</answer>"
    )
    record = {"instruction": "Answer.\n\nQuestion: Who directed it?", "input": "", "output": output}
    file = tmp_path / "afm.json"
    file.write_text(json.dumps([record, {**record, "output": "<think>never closed"}]))
    demonstrations, reasons = read_any_demonstrations(file, 0.5)
    assert reasons == {"text between blocks, or a block that is not closed": 1}
    ((task, steps),) = demonstrations
    assert task.question == "Who directed it?"
    assert steps == [
        Thought("I plan."),
        Thought("1. Look.", ThoughtRole.PLAN),
        ToolCall("search", {"query": "Solaris"}),
        Observation("Doc 1 (Title: Solaris)\nA film."),
        ToolCall("python", {"code": "print(1)"}),
        Observation("1"),
        Thought("So."),
        Answer("Tarkovsky"),
    ]
    (written,), _ = convert_demonstrations(demonstrations, FORMATS["afm"])
    assert written["output"] == output
    row = {
        "data_source": "nq",
        "prompt": [{"role": "user", "content": "Rules.\n\nQuestion: Who?"}],
        "reward_model": {"ground_truth": json.dumps({"target": ["Bo", "B."], "question": "Who?"})},
        "extra_info": {"index": "nq-1", "need_tools_kwargs": True},
    }
    write_records([row], tmp_path / "rl.parquet")
    (task,) = read_tasks(tmp_path / "rl.parquet")
    assert (task.id, task.question, task.answers) == ("nq-1", "Who?", ("Bo", "B."))


def test_real_trajectories_become_chats(shared: Path, tmp_path: Path) -> None:
    """All readable trajectories are written in every format that can represent them."""
    source = shared / "data" / "trajectories" / "r1searcher_hotpotqa_500.jsonl"
    demonstrations, unread = read_any_demonstrations(source)
    for name, target in FORMATS.items():
        written, reasons = convert_demonstrations(demonstrations, target)
        assert len(written) >= 0.95 * len(demonstrations), (name, reasons)
        assert len(written) + reasons.total() == len(demonstrations)
    assert unread.total() < 100
