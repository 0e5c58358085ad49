"""Run that trains a tiny model on a file of demonstrations, in a second."""

import json
from pathlib import Path

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus, EventHandler, ignore_event, write_metrics
from fieldcraft.runs.run import run_recipe

RECIPE = """
name: tiny
device: cpu
dtype: bfloat16
instruction: ""
ungraded: trust
tools: []
tasks: tasks.jsonl
demonstrations: tasks.jsonl
budget: {max_turn_tokens: 8, max_context_tokens: 300}
stages:
  one: {type: sft, dataset: demonstrations, steps: 1, batch_size: 1, optim: {lr: 1.0e-3}}
evaluation: {splits: {heldout: 1}, workflows: []}
"""
ENDS = ("<|endoftext|>", "<|im_end|>")  # of the tokenizer, and of the chat template


def run_tiny(folder: Path, *overrides: str, hear: EventHandler = ignore_event) -> Path:
    """Return the run's folder; `hear` receives all events."""
    tokenizer = tiny_tokenizer()
    tokenizer.eos_token = ENDS[0]
    write_tiny_checkpoint(folder / "model", "qwen2", tokenizer=tokenizer)
    questions = [{"question": f"Who is {i}?", "answer": "Ada"} for i in range(3)]
    demonstrations = [{**question, "messages": messages(question)} for question in questions]
    for name, records in (("tasks", questions), ("shown", demonstrations)):
        text = "".join(json.dumps(record) + "\n" for record in records)
        (folder / f"{name}.jsonl").write_text(text)
    (folder / "tiny.yaml").write_text(RECIPE)
    paths = [f"model={folder / 'model'}", f"tasks={folder / 'tasks.jsonl'}"]
    paths.append(f"demonstrations={folder / 'shown.jsonl'}")
    recipe = load_recipe(str(folder / "tiny.yaml"), [*paths, *overrides])
    run_recipe(recipe, folder / "out", EventBus([write_metrics, hear]))
    return folder / "out"


def messages(one: dict[str, str]) -> list[dict[str, str]]:
    answer = f"<think>\nIt is known.\n</think>\n\\boxed{{{one['answer']}}}"
    return [
        {"role": "user", "content": one["question"]},
        {"role": "assistant", "content": answer},
    ]
