"""Knowledge of a run's model: how often it answers the probes of its world without tools.

It is measured before anything is trained. From it follow which questions need a call, and the
demonstrations (`World.knowing`). What was measured of a model is kept for its next run.
"""

from __future__ import annotations

import hashlib
import shutil
import zlib
from collections import Counter
from pathlib import Path

from fieldcraft.config.hub_names import own_cache
from fieldcraft.config.recipe import Recipe
from fieldcraft.data.grading import Grader
from fieldcraft.data.selection import Tallies, sample
from fieldcraft.dialects.base import encode_written
from fieldcraft.engine.base import Engine
from fieldcraft.hub.converted import hash_of_file
from fieldcraft.records.events import JobsDone, Said, during
from fieldcraft.records.files import atomic_file, make_folder
from fieldcraft.runs.context import Context
from fieldcraft.runs.inputs import MODEL, with_knowledge
from fieldcraft.sampling import Sampling
from fieldcraft.types import KNOWN_RATE, Answer, Dialect, Task

WORK = "knowledge"
SAMPLES = 8  # of each probe
TEMPERATURE = 0.7
ANSWER_TOKENS = 16
ROWS = 64  # samples side by side


async def measure_knowledge(context: Context, model: Path) -> None:
    """Measure what the world of a run asks for, and go on with its inputs for this model. Samples
    that were taken before are not taken again."""
    probes = context.inputs.probes()
    if not probes:
        return
    journal = context.folder.knowledge
    kept = own_cache() / "knowledge" / f"{_key(model, probes, context.recipe)}.jsonl"
    if kept.exists() and not journal.exists():
        shutil.copyfile(kept, journal)
    tallies = Tallies(journal)
    if missing := [probe for probe in probes if probe.id not in tallies.of(MODEL)]:
        await _sample(context, model, tallies, probes)
        make_folder(kept.parent)
        with atomic_file(kept) as draft:
            shutil.copyfile(journal, draft)
        context.emit(Said(f"{WORK}: {len(missing)} facts were asked for {SAMPLES} times each"))
    context.know(with_knowledge(context.inputs, journal))
    for line in (*described(tallies, probes), *context.inputs.remarks()):
        context.emit(Said(line))


async def _sample(context: Context, model: Path, tallies: Tallies, probes: list[Task]) -> None:
    dialect = context.dialect(model)
    engine = context.engine(context.policy(model), dialect)
    asking = Asking(engine, dialect, Grader(context.correct))

    def on_task(done: int) -> None:
        context.emit(JobsDone(WORK, done, ""))

    with during(context.emit, WORK, len(probes), "jobs"):
        await sample(tallies, MODEL, probes, SAMPLES, ROWS, asking.is_right, on_task)


class Asking:
    """Asks a model probes, which it continues as text. Its samples are the same in every run, so
    that runs of several seeds are about a model that knows the same."""

    def __init__(self, engine: Engine, dialect: Dialect, grader: Grader) -> None:
        self.engine = engine
        self.dialect = dialect
        self.grader = grader

    async def is_right(self, probe: Task, key: str) -> bool:
        """Return whether the first line of one continuation is an accepted answer."""
        how = Sampling(
            ANSWER_TOKENS,
            TEMPERATURE,
            stop=("\n",),
            seed=zlib.crc32(key.encode()),
        )
        ids = encode_written(self.dialect.tokenizer, probe.question)
        try:
            said = await self.engine.generate(ids, how, key)
        finally:
            self.engine.release(key)
        answer = Answer(first_line(self.dialect.end.strip(said.text)))
        return await self.grader.right(probe, [answer]) is True


def first_line(text: str) -> str:
    """Return the answer in a continuation: its first line, without the full stop of a sentence."""
    return text.partition("\n")[0].strip().rstrip(".")


def described(tallies: Tallies, probes: list[Task]) -> list[str]:
    """Return one sentence: how many facts of each relation the model knows."""
    found = tallies.of(MODEL)
    asked = Counter(str(probe.meta["relation"]) for probe in probes)
    known = Counter(
        str(probe.meta["relation"])
        for probe in probes
        if (found[probe.id].rate or 0.0) >= KNOWN_RATE
    )
    parts = ", ".join(f"{relation} {known[relation]} of {asked[relation]}" for relation in asked)
    return [f"{WORK}: known in {KNOWN_RATE} of the samples or more: {parts}"]


def _key(model: Path, probes: list[Task], recipe: Recipe) -> str:
    """Return a name for what is measured: the model's weights, the probes, and how they are
    asked."""
    files = sorted((*model.glob("*.safetensors"), *model.glob("tokenizer.json")))
    digest = hashlib.sha256("".join(map(hash_of_file, files)).encode())
    asked = (SAMPLES, TEMPERATURE, ANSWER_TOKENS, recipe.policy_dtype)
    digest.update(repr(asked).encode())
    for probe in probes:
        digest.update(repr((probe.id, probe.question, probe.answers)).encode())
    return digest.hexdigest()[:32]
