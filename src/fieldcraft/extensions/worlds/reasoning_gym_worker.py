"""Process that makes puzzles with reasoning-gym.

Some generators depend on the order of sets, so the process has a fixed hash seed, which the sandbox
of the verifiers has, too. A puzzle is therefore determined by generator, settings, seed and index.

The request on standard input is a JSON object with the arguments of `draw_puzzles`; the reply is
{"puzzles": [...]}, or {"error": sentence}.
"""

from __future__ import annotations

import hashlib
import json
import random
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import islice
from typing import Any

from reasoning_gym.factory import CURRICULA, DATASETS, create_dataset

from fieldcraft.config.names import get_first_line, suggest_name
from fieldcraft.types import UserError

MAX_REPETITIONS = 20  # puzzles drawn per new one, before the generators count as exhausted
MIN_DRAWS = 500  # before that
Settings = Mapping[str, Any]


def draw_puzzles(
    generators: Mapping[str, Settings],
    weights: Mapping[str, float],
    levels: Sequence[int],
    seed: int,
    heldout: float,
    is_heldout: bool,
    count: int,
) -> list[dict[str, Any]]:
    """Return at most `count` puzzles with distinct questions, the generators mixed by weight, each
    at one of the levels. `heldout` is the share of all questions that is held out, by their hashes.

    Raises UserError for a generator that does not exist, and for invalid settings or levels.
    """
    resolved = {
        (name, level): json.dumps(_resolve_settings(name, settings, level))
        for name, settings in generators.items()
        for level in levels or (None,)
    }
    for (name, _), settings in resolved.items():
        _make_generator(name, settings, seed)
    distinct: dict[str, dict[str, Any]] = {}
    repeated = 0
    for puzzle in _iterate_puzzles(weights, levels, resolved, seed):
        if repeated > MIN_DRAWS + MAX_REPETITIONS * len(distinct) or len(distinct) >= count:
            break
        question = puzzle["question"]
        if _is_heldout(question, heldout) != is_heldout or question in distinct:
            repeated += 1
            continue
        distinct[question], repeated = puzzle, 0
    return [*islice(distinct.values(), count)]


def _iterate_puzzles(
    weights: Mapping[str, float],
    levels: Sequence[int],
    resolved: Mapping[tuple[str, int | None], str],
    seed: int,
) -> Iterator[dict[str, Any]]:
    """Yield puzzles until all generators have ended."""
    rng, indices = random.Random(seed), dict.fromkeys(weights, 0)
    while indices:
        name = rng.choices([*indices], [weights[key] for key in indices])[0]
        level = rng.choice(levels) if levels else None
        settings = resolved[name, level]
        try:
            entry = _make_generator(name, settings, seed)[indices[name]]
        except IndexError:  # a generator of few puzzles
            del indices[name]
            continue
        answer = entry["answer"]
        yield {
            "generator": name,
            "settings": json.loads(settings),
            "seed": seed,
            "index": indices[name],
            "level": level,
            "question": entry["question"].strip(),
            "answer": None if answer in (None, "") else str(answer),
        }
        indices[name] += 1


def _is_heldout(question: str, share: float) -> bool:
    digest = hashlib.sha256(question.encode()).digest()
    return int.from_bytes(digest[:4]) < share * 2**32


@lru_cache(maxsize=1024)
def _make_generator(name: str, settings: str, seed: int) -> Any:
    if name not in DATASETS:
        raise UserError(_describe_unknown(name))
    try:
        return create_dataset(name, seed=seed, **json.loads(settings))
    except (AssertionError, TypeError, ValueError) as error:
        fields = DATASETS[name][1].__dataclass_fields__.keys() - {"seed", "size"}
        raise UserError(
            f"the generator '{name}' refuses its settings ({get_first_line(error)}): correct them;"
            f" it has {', '.join(sorted(fields))}."
        ) from error


def _resolve_settings(name: str, settings: Settings, level: int | None) -> Settings:
    """Return the settings of a generator at a level of its curriculum; explicit ones take
    precedence."""
    if level is None:
        return settings
    if name not in DATASETS:
        raise UserError(_describe_unknown(name))
    if name not in CURRICULA:
        raise UserError(
            f"the generator '{name}' has no curriculum: leave out world.levels, or the generator."
        )
    curriculum = CURRICULA[name]()
    highest = max(len(attribute.levels) for attribute in curriculum.attributes.values()) - 1
    if level > highest:
        raise UserError(
            f"the curriculum of '{name}' has the levels 0 to {highest}, not {level}: lower"
            " world.levels, or leave the generator out."
        )
    curriculum.set_global_level(level)
    config = curriculum.generate_configuration()
    fields = config.__dataclass_fields__.keys() - {"seed", "size"}
    return {key: getattr(config, key) for key in fields} | dict(settings)


def _describe_unknown(name: str) -> str:
    return f"reasoning-gym has no generator '{name}': {suggest_name(name, DATASETS)}"


if __name__ == "__main__":
    try:
        reply: dict[str, Any] = {"puzzles": draw_puzzles(**json.load(sys.stdin))}
    except UserError as error:
        reply = {"error": str(error)}
    print(json.dumps(reply))
