"""Process that scores answers with the verifiers of reasoning-gym; it may be killed.

The request is a puzzle (generator, settings, seed, index), its question and an answer. The response
is {"score": ...}, null if the installed version has no such puzzle, or {"sandboxed": true} for a
generator whose module evaluates text as code, or makes other puzzles in each process, so that only
the sandbox may or can verify its answers.
"""

from __future__ import annotations

import inspect
import json
import re
import sys
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from reasoning_gym.factory import DATASETS, create_dataset

from fieldcraft.tools.killable_worker import serve_requests

EVALUATION_REGEX = re.compile(r"\b(?:eval|exec|parse_expr|sympify|literal_eval|create_dataset)\b")


def _score(request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    name, settings = request["generator"], json.dumps(request["settings"])
    if name not in DATASETS:
        yield {"score": None}
        return
    if _evaluates_text(name):
        yield {"sandboxed": True}
        return
    try:
        puzzles = _make_generator(name, settings, request["seed"])
        puzzle = puzzles[request["index"]]
    except (AssertionError, IndexError, TypeError, ValueError):
        yield {"score": None}
        return
    if puzzle["question"].strip() != request["question"]:
        yield {"sandboxed": True}
        return
    try:
        yield {"score": float(puzzles.score_answer(request["answer"], puzzle))}
    except Exception:  # noqa: BLE001 - a verifier that cannot read the answer
        yield {"score": 0.0}


@lru_cache
def _evaluates_text(name: str) -> bool:
    module = sys.modules[DATASETS[name][0].__module__]
    return EVALUATION_REGEX.search(inspect.getsource(module)) is not None


@lru_cache(maxsize=256)  # some read a list of words
def _make_generator(name: str, settings: str, seed: int) -> Any:
    return create_dataset(name, seed=seed, **json.loads(settings))


if __name__ == "__main__":
    serve_requests(_score)
