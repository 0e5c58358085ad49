"""Compare runs whose numbers must not change when code is moved or renamed.

    python scripts/golden.py OUT             # execute all runs in a new folder
    python scripts/golden.py OUT --like OLD  # and compare them with earlier runs

There are seven short runs with fixed seeds and one thread: several methods, an adapter, two ranks.
The comparison covers all metrics, reports and trajectories, except times and recipes. `--keys FILE`
names a JSON file that maps old keys to new ones, for changes that rename keys of files; renamed
metrics are in src/fieldcraft/records/renamed_metrics.json. Numbers must be identical, except in the
run with an engine process, which batches requests as they arrive, so its log-probabilities may be
rounded differently. There are no asynchronous runs, because their order depends on the clock.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

RENAMED_KEYS = Path(__file__).parents[1] / "src/fieldcraft/config/renamed_keys.json"
TINY_MODEL = ["device=cpu", "tiny_model.layers=2", "tiny_model.width=32", "tiny_model.heads=2"]
ATLAS = [*TINY_MODEL, "world.people=60", "world.variants=4"]
EVALUATED = ["evaluation.splits.heldout=12", "evaluation.splits.known=6"]


def shortened(kind: str, *stages: str) -> list[str]:
    """Return overrides that shorten stages, supervised ones or ones with rollouts."""
    keys = {
        "sft": ("steps=12", "epochs=null", "max_examples=60", "batch_size=6"),
        "rl": ("steps=2", "questions_per_step=4", "group_size=4"),
    }
    return [f"stages.{stage}.{key}" for stage in stages for key in keys[kind]]


SMOKE = [*ATLAS, *shortened("sft", "base", "sft2"), *shortened("rl", "rl2"), *EVALUATED]
CODE = [f"evaluation.splits.{name}=4" for name in ("heldout", "mixed", "known", "traps")]
RUNS: dict[str, list[str]] = {
    "smoke": ["smoke", *SMOKE],
    "autocoa-mini": [
        *("autocoa-mini", *ATLAS, *EVALUATED, "evaluation.splits.mixed=6"),
        *shortened("sft", "base", "sft1", "sft2", "sft3"),
        *shortened("rl", "rl1", "rl2"),
    ],
    "code-mini": [
        *("code-mini", *TINY_MODEL, "world.notes=60", "world.heldout_notes=60", *CODE),
        *("evaluation.splits.four_steps=4", *shortened("sft", "base", "sft")),
        *shortened("rl", "rl"),
    ],
    "afm-mini": [
        *("afm-mini", *ATLAS, *shortened("sft", "base", "sft"), *shortened("rl", "rl")),
        *(
            "stages.rl.group_filter=none",
            "select.questions=8",
            "select.closed_book_samples=2",
            "select.max_closed_book_accuracy=1",
        ),
        "evaluation.splits.heldout=12",
    ],
    "otc-table": [
        *("otc-table", "seeds=[0]", *ATLAS, "evaluation.splits={mixed: 8, known: 4}"),
        *shortened("sft", "base", "sft"),
        *shortened("rl", "em-grpo", "otc-grpo", "em-ppo", "otc-ppo"),
    ],
    "lora": ["smoke", *SMOKE, "lora={rank: 4, alpha: 8}"],
    "ranks": ["smoke", *SMOKE, "cluster.trainers=2", "cluster.engines=1"],
}
FILES = ("metrics.jsonl", "report.json", "rollouts.jsonl", "knowledge.jsonl", "closed_book.jsonl")
ROUNDING = {"ranks": 1e-5}  # tolerance of a log-probability, in nats
TIME = re.compile(
    r"(^|_)seconds($|_)|per_second|^publish_|^versions$|^began$|^threads$|^memory|^sampler_waits"
)
RECIPE = "config"  # key of a report; its keys are renamed separately from metrics


def knows_current_keys() -> bool:
    """Return whether the tested code has the current names of recipe keys. Code of an earlier
    commit without a table of renamed keys has the former names."""
    package = find_spec("fieldcraft")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).with_name("config").joinpath(RENAMED_KEYS.name).exists()


def with_former_keys(override: str) -> str:
    """Return an override with the former names of its keys."""
    table = json.loads(RENAMED_KEYS.read_text("utf-8"))
    former = {key: old.rpartition(".")[2] for old, key in table["keys"].items()}
    path, _, value = override.partition("=")
    names = path.split(".")
    places = [
        *names[:1],
        *("*" if names[0] == "stages" else name for name in names[1:2]),
        *names[2:],
    ]
    prefixes = [".".join(places[: depth + 1]) for depth in range(len(places))]
    old_names = [former.get(prefix, name) for prefix, name in zip(prefixes, names, strict=True)]
    old_values = {new: old for old, new in table["values"].get(prefixes[-1], {}).items()}
    return f"{'.'.join(old_names)}={old_values.get(value, value)}"


def run(name: str, out: Path) -> None:
    """Execute one of the runs in a folder. Exits with its error output if it fails."""
    recipe, *overrides = RUNS[name]
    if not knows_current_keys():
        overrides = [with_former_keys(override) for override in overrides]
    command = [sys.executable, "-m", "fieldcraft", "run", recipe, *overrides]
    command += ["--out", str(out / name)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")


def compared_files(folder: Path) -> Iterator[Path]:
    """Yield the files of a run that contain numbers, relative to the folder."""
    for path in sorted(folder.rglob("*.json*")):
        if path.name in FILES or path.parent.name == "evaluations":
            yield path.relative_to(folder)


def content(path: Path, keys: dict[str, str]) -> list[Any]:
    """Return the records of a file without times, with the current names of keys."""
    text = path.read_text("utf-8")
    records = text.splitlines() if path.suffix == ".jsonl" else [text]
    return [without_times(json.loads(record), keys) for record in records]


def without_times(value: Any, keys: dict[str, str]) -> Any:
    if isinstance(value, dict):
        kept = {k: inner for k, inner in value.items() if k != RECIPE and not TIME.search(k)}
        return {keys.get(key, key): without_times(inner, keys) for key, inner in kept.items()}
    if isinstance(value, list):
        return [without_times(inner, keys) for inner in value]
    return value


def differences(new: Path, old: Path, keys: dict[str, str]) -> list[str]:
    """Return a line for each file that differs between two folders."""
    found = []
    for name in RUNS:
        files = {*compared_files(old / name), *compared_files(new / name)}
        for file in sorted(files):
            both = [folder / name / file for folder in (old, new)]
            if not all(path.exists() for path in both):
                found.append(f"{name}/{file} exists in only one folder")
            elif not equal(content(both[0], keys), content(both[1], {}), ROUNDING.get(name, 0.0)):
                found.append(f"{name}/{file} differs")
    return found


def equal(old: Any, new: Any, rounding: float) -> bool:
    """Return whether two records are equal, floats up to `rounding`."""
    match old, new:
        case dict(), dict():
            return old.keys() == new.keys() and all(equal(old[k], new[k], rounding) for k in old)
        case list(), list():
            return len(old) == len(new) and all(map(partial(equal, rounding=rounding), old, new))
        case float(), float():
            return abs(old - new) <= rounding
    return bool(old == new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--like", type=Path)
    parser.add_argument("--keys", type=Path)
    given = parser.parse_args()
    for name in RUNS:
        print(f"{name} ...", flush=True)
        run(name, given.out)
    if given.like is None:
        return
    keys = {} if given.keys is None else json.loads(given.keys.read_text("utf-8"))
    found = differences(given.out, given.like, keys)
    print("\n".join(found) or "all numbers are equal")
    sys.exit(bool(found))


if __name__ == "__main__":
    main()
