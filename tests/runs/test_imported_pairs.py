"""User-provided pairs: the verdict decides which of them may be trained on."""

import json
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.data.steps_io import ContrastivePair, write_pairs
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.build import make_verdict_reward
from fieldcraft.runs.file_inputs import FileData
from fieldcraft.runs.setup import PlaceholderReward, list_deferred_graders
from fieldcraft.types import Answer, Task, Thought, ToolCall

pytest.importorskip("math_verify", reason="mathematics needs the extra code")
DIALECT = make_dialect("search-r1", tiny_tokenizer())
MATH = Task("math", "What is 1/2 of 3/2?", ("\\frac{3}{4}",), {"graded_by": "math"})
LOOKS = (Thought("I look."), ToolCall("search", {"query": "it"}))


def pair(chosen: str, rejected: str, task: Task = MATH) -> ContrastivePair:
    """Create a pair; each side ends in its answer, or in a search if it has none."""
    ways = ((Thought("I think."), Answer(text)) if text else LOOKS for text in (chosen, rejected))
    return ContrastivePair(task, (), *ways)


def test_what_is_chosen_is_right_and_what_is_rejected_is_wrong(tmp_path: Path) -> None:
    good = [pair("0.75", ""), pair("", "4"), pair("0.75", "4")]
    bad = [pair("4", ""), pair("", "0.75")]
    bare = [pair("Ada", "", Task("bare", "Who?", ()))]
    write_pairs(tmp_path / "pairs.jsonl", [*good, *bad, *bare])
    task_records = [{"question": question, "answer": "a"} for question in ("Q?", "R?")]
    (tmp_path / "tasks.json").write_text(json.dumps(task_records))
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    files = [
        f"model={model}",
        f"tasks={tmp_path / 'tasks.json'}",
        "verdict_reward=auto",
        "tools=[]",
    ]
    recipe = load_recipe("torl", [*files, f"pairs={tmp_path / 'pairs.jsonl'}"])
    usable, reasons = FileData(recipe).load_usable_pairs(DemonstrationEncoder(DIALECT))
    assert len(usable) == len(good)
    assert reasons == {
        "that chooses a wrong answer or rejects a correct one": 2,
        "with an answer that cannot be graded": 1,
    }
    trusting = FileData(recipe.model_copy(update={"ungraded": "trust"}))
    assert len(trusting.load_usable_pairs(DemonstrationEncoder(DIALECT))[0]) == len(good) + len(
        bare
    )


def test_before_a_run_a_pair_is_not_judged_by_who_is_not_asked(tmp_path: Path) -> None:
    """Every answer counts as correct then, also the rejected one."""
    write_pairs(tmp_path / "pairs.jsonl", [pair("Ada", "Bea", Task("bare", "Who?", ()))])
    task_records = [{"question": question, "answer": "a"} for question in ("Q?", "R?")]
    (tmp_path / "tasks.json").write_text(json.dumps(task_records))
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    files = [
        f"model={model}",
        f"tasks={tmp_path / 'tasks.json'}",
        "verdict_reward=auto",
        "tools=[]",
    ]
    pairs = f"pairs={tmp_path / 'pairs.jsonl'}"
    judged = load_recipe("torl", [*files, pairs, "judge={url: 'http://h', model: m}"])
    alone = load_recipe("torl", [*files, pairs])
    found = []
    for recipe in (judged, alone):
        inputs = FileData(recipe)
        inputs.deferred_graders = list_deferred_graders(recipe)
        inputs.verdict_reward = make_verdict_reward(
            recipe, *map(PlaceholderReward, inputs.deferred_graders)
        )
        usable, reasons = inputs.load_usable_pairs(DemonstrationEncoder(DIALECT))
        found.append((len(usable), dict(reasons)))
    assert found == [(1, {}), (0, {"with an answer that cannot be graded": 1})]
