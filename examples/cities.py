"""Invented cities for the notebooks: a tool, questions, demonstrations and a tiny model."""

import itertools
import json
import random
from pathlib import Path

import fieldcraft as fc
from tiny_model import write_tiny_model

SYLLABLES = ("ka", "lo", "mi", "ren", "tos", "va", "zur", "bel")
QUESTION = "How many people live in {}?"
THOUGHT = "I look it up."
BUDGET = {"max_calls": 2, "max_turn_tokens": 64, "max_context_tokens": 400}


def make_populations(count: int) -> dict[str, str]:
    """Return cities with invented numbers of people."""
    rng = random.Random(0)
    names = ["".join(parts).capitalize() for parts in itertools.product(SYLLABLES, repeat=3)]
    return {name: str(rng.randrange(1000, 9999)) for name in rng.sample(names, count)}


POPULATIONS = make_populations(450)
CITIES = [*POPULATIONS]


@fc.tool
def population(city: str) -> str:
    """How many people live in a city.

    Args:
        city: name of the city.
    """
    return POPULATIONS.get(city, "unknown")


def make_tasks(cities: list[str]) -> list[fc.Task]:
    """Return a question about each city."""
    return [fc.Task(city, QUESTION.format(city), (POPULATIONS[city],)) for city in cities]


def write_demonstrations(file: Path, cities: list[str]) -> Path:
    """Write a conversation about each city, in the format of chat models, and return the file."""
    file.parent.mkdir(parents=True, exist_ok=True)
    records = map(make_demonstration, cities)
    file.write_text("".join(f"{json.dumps(record)}\n" for record in records), "utf-8")
    return file


def make_demonstration(city: str) -> dict:
    """Return a conversation: a thought, a call, its result and the answer."""
    number = POPULATIONS[city]
    call = {"name": "population", "arguments": {"city": city}}
    messages = [
        {"role": "user", "content": QUESTION.format(city)},
        {
            "role": "assistant",
            "content": THOUGHT,
            "tool_calls": [{"type": "function", "function": call}],
        },
        {"role": "tool", "content": number},
        {"role": "assistant", "content": f"\\boxed{{{number}}}"},
    ]
    return {"messages": messages, "answer": number}


def load_untrained_agent(folder: Path) -> fc.Agent:
    """Write a tiny model that knows nothing, and return an agent with it and the tool."""
    write_tiny_model(
        folder,
        texts=[QUESTION.format(""), THOUGHT, "<think>\n</think>\n\n<tool_call>population city"],
        syllables=[*SYLLABLES, *map(str.capitalize, SYLLABLES)],
        tools=[population.schema],
    )
    return fc.load(folder, dialect="hermes", instruction="", tools=[population], budget=BUDGET)
