"""Questions about towns and a corpus, for the tests of retrieved demonstrations.

The first query finds the answer for most towns; that of Ironton takes a second one, and that of
Oakdale is nowhere.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from checkpoints import tiny_tokenizer, write_tiny_checkpoint

FOUNDERS = {
    "Northport": "Ada Lind",
    "Eastwick": "Bo Berg",
    "Southmere": "Cy Dahl",
    "Westfield": "Di Holm",
    "Midvale": "Ed Falk",
    "Highcliff": "Flo Krog",
    "Ironton": "Gus Moe",
    "Oakdale": "Ida Vik",
}
HELDOUT = {"Lakeside": "Jo Sand", "Ashford": "Kai Tveit"}
RECIPE = """
name: towns
device: cpu
required_paths: [model, tasks, corpus]
dialect: autocoa
instruction: ""
search: {top_k: 1}
budget: {max_calls: 2, max_turn_tokens: 32, max_context_tokens: 600}
stages:
  sft: {type: sft, dataset: retrieved, steps: 1, batch_size: 2, optim: {lr: 1.0e-3}}
evaluation: {workflows: []}
"""


def make_passage(town: str, founder: str) -> dict[str, str]:
    if town == "Oakdale":
        return {"title": town, "text": "Oakdale was founded. The town of Oakdale is old."}
    if town == "Ironton":
        text = "Who founded the town of Ironton is on the plaque of Rust Hall."
        return {"title": "Ironton", "text": text}
    return {"title": town, "text": f"{town} is a town. It was founded by {founder} in 1850."}


def make_question(town: str, founder: str) -> dict[str, Any]:
    return {"id": town, "question": f"who founded the town of {town}?", "answer": founder}


def write_lines(path: Path, records: Iterable[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


def write_towns(folder: Path) -> list[str]:
    """Write a recipe, a tiny model, questions and a corpus, and return the arguments of a
    command."""
    corpus = [make_passage(*each) for each in (FOUNDERS | HELDOUT).items()]
    corpus.append({"title": "Rust Hall", "text": "The plaque of Rust Hall names Gus Moe."})
    write_lines(folder / "corpus.jsonl", corpus)
    write_lines(folder / "tasks.jsonl", (make_question(*each) for each in FOUNDERS.items()))
    heldout = write_lines(
        folder / "heldout.jsonl", (make_question(*each) for each in HELDOUT.items())
    )
    write_tiny_checkpoint(folder / "model", "qwen2", tokenizer=tiny_tokenizer())
    (folder / "towns.yaml").write_text(RECIPE)
    files = {"model": "model", "tasks": "tasks.jsonl", "corpus": "corpus.jsonl"}
    paths = [f"{key}={folder / name}" for key, name in files.items()]
    return [str(folder / "towns.yaml"), f"evaluation.tasks.heldout={heldout}", *paths]
