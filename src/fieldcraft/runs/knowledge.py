"""Knowledge of a run's model: rate of correct answers to the world's probes, without tools.

It is measured before training. It determines which questions require a call, and the demonstrations
(`World.with_probe_rates`). The results are cached for later runs of the model.
"""

from __future__ import annotations

import hashlib
import shutil
import zlib
from collections import defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from statistics import fmean

from fieldcraft.config.hub_names import get_fieldcraft_cache
from fieldcraft.config.recipe import Recipe
from fieldcraft.data.grading import Grader
from fieldcraft.data.prompts import find_common_prefix
from fieldcraft.data.sample_tallies import TallyJournal, sample_answers
from fieldcraft.data.world import World
from fieldcraft.dialects.base import encode_policy_text
from fieldcraft.engine.base import Engine
from fieldcraft.hub.model_conversion import hash_file
from fieldcraft.records.events import JobsCompleted, LogMessage, track_phase
from fieldcraft.records.files import atomic_file
from fieldcraft.records.locks import lock_shared_file_async
from fieldcraft.rewards.grading import resolve_reward_name
from fieldcraft.runs.context import RunContext
from fieldcraft.runs.dialects import load_dialect
from fieldcraft.runs.inputs import PROBED_MODEL, with_knowledge
from fieldcraft.sampling import SamplingParams
from fieldcraft.types import KNOWN_ACCURACY_THRESHOLD, Answer, Dialect, Task

PHASE_NAME = "knowledge"
SAMPLES_PER_PROBE = 8  # for each probe
PROBE_TEMPERATURE = 0.7
MAX_CONCURRENT_PROBES = 64  # concurrent samples


async def measure_knowledge(context: RunContext, model: Path) -> None:
    """Measure the probes of the run's world, and replace the data source by the one for this model.
    Existing samples are reused."""
    world = context.data_source.world
    if world is None or not (probes := world.probes()):
        return
    journal = context.folder.knowledge_file
    cached = (
        get_fieldcraft_cache()
        / "knowledge"
        / f"{_make_cache_key(model, world, probes, context.recipe)}.jsonl"
    )
    tallies, missing = _read_tallies(journal, cached, probes)
    if missing:
        waiting = LogMessage(f"{PHASE_NAME}: another run is measuring this model; waiting for it")
        async with lock_shared_file_async(cached, lambda: context.emit(waiting)):
            tallies, missing = _read_tallies(journal, cached, probes)
            if missing:
                await _sample_probes(context, model, tallies, probes, world.max_probe_tokens)
                with atomic_file(cached) as draft:
                    shutil.copyfile(journal, draft)
                context.emit(
                    LogMessage(
                        f"{PHASE_NAME}: {len(missing)} probes were answered {SAMPLES_PER_PROBE}"
                        " times each"
                    )
                )
    context.set_data_source(with_knowledge(context.data_source, journal))
    for line in (*describe_knowledge(tallies, probes), *context.data_source.warnings()):
        context.emit(LogMessage(line))


def _read_tallies(
    journal: Path, cached: Path, probes: Sequence[Task]
) -> tuple[TallyJournal, list[Task]]:
    """Return the tallies of a run, which are those in the cache if it has none of its own, and the
    probes that are not measured."""
    if cached.exists() and not journal.exists():
        shutil.copyfile(cached, journal)
    tallies = TallyJournal(journal)
    measured = tallies.get_tallies(PROBED_MODEL)
    return tallies, [probe for probe in probes if probe.id not in measured]


async def _sample_probes(
    context: RunContext, model: Path, tallies: TallyJournal, probes: list[Task], max_tokens: int
) -> None:
    dialect = load_dialect(context.recipe, model)
    engine = context.make_engine(context.load_policy_model(model), dialect)
    prober = KnowledgeProber(engine, dialect, Grader(context.verdict_reward), max_tokens)

    def on_task(done: int) -> None:
        context.emit(JobsCompleted(PHASE_NAME, done, ""))

    with track_phase(context.emit, PHASE_NAME, len(probes), "jobs"):
        async with prober.cache_examples(probes) as num_sessions:
            free_sessions = max(context.recipe.max_num_seqs - num_sessions, 1)
            await sample_answers(
                tallies,
                PROBED_MODEL,
                probes,
                SAMPLES_PER_PROBE,
                min(MAX_CONCURRENT_PROBES, free_sessions),
                prober.is_correct,
                on_task,
            )


class KnowledgeProber:
    """Prober of a model, which continues probes as text. Its samples are the same in every run, so
    that runs with different seeds assume the same knowledge."""

    def __init__(self, engine: Engine, dialect: Dialect, grader: Grader, max_tokens: int) -> None:
        self.max_tokens = max_tokens
        self.engine = engine
        self.dialect = dialect
        self.grader = grader

    @asynccontextmanager
    async def cache_examples(self, probes: Sequence[Task]) -> AsyncIterator[int]:
        """Keep the examples with which all probes of a kind begin in the engine's cache, in one
        session for each kind. Yields the number of sessions."""
        prompts = defaultdict[str, list[list[int]]](list)
        for probe in probes:
            ids = encode_policy_text(self.dialect.tokenizer, probe.question)
            prompts[str(probe.meta["kind"])].append(ids)
        prefixes = {
            f"examples/{kind}": find_common_prefix(found) for kind, found in prompts.items()
        }
        sessions = [session for session, ids in prefixes.items() if ids]
        try:
            for session in sessions:  # with one token, because nothing is computed for none
                await self.engine.generate(prefixes[session], SamplingParams(1), session)
            yield len(sessions)
        finally:
            for session in sessions:
                self.engine.release(session)

    async def is_correct(self, probe: Task, key: str) -> bool:
        """Return whether the first line of one continuation is an accepted answer."""
        sampling = SamplingParams(
            self.max_tokens,
            PROBE_TEMPERATURE,
            stop=("\n",),
            seed=zlib.crc32(key.encode()),
        )
        ids = encode_policy_text(self.dialect.tokenizer, probe.question)
        try:
            completion = await self.engine.generate(ids, sampling, key)
        finally:
            self.engine.release(key)
        answer = Answer(extract_answer(self.dialect.turn_end.strip(completion.text)))
        return await self.grader.grade(probe, [answer]) is True


def extract_answer(text: str) -> str:
    """Return the answer in a continuation: its first line, without the full stop of a sentence. If
    it is a calculation, return the last result."""
    return text.partition("\n")[0].rpartition("=")[2].strip().rstrip(".")


def describe_knowledge(tallies: TallyJournal, probes: list[Task]) -> list[str]:
    """Return two sentences: the number of known probes of each kind, and the share of correct
    samples of each kind."""
    rates: dict[str, list[float]] = {}
    for probe in probes:
        tally = tallies.get_tallies(PROBED_MODEL)[probe.id]
        rates.setdefault(str(probe.meta["kind"]), []).append(tally.rate or 0.0)
    known = ", ".join(
        f"{kind} {sum(rate >= KNOWN_ACCURACY_THRESHOLD for rate in found)} of {len(found)}"
        for kind, found in rates.items()
    )
    shares = ", ".join(f"{kind} {fmean(found):.2f}" for kind, found in rates.items())
    return [
        f"{PHASE_NAME}: known in {KNOWN_ACCURACY_THRESHOLD} of the samples or more: {known}",
        f"{PHASE_NAME}: share of correct samples: {shares}",
    ]


def _make_cache_key(model: Path, world: World, probes: list[Task], recipe: Recipe) -> str:
    """Return a cache key of the measurement: the model's weights, the probes, the prompt settings,
    and the graders of the answers."""
    files = sorted((*model.glob("*.safetensors"), *model.glob("tokenizer.json")))
    digest = hashlib.sha256("".join(map(hash_file, files)).encode())
    settings = (SAMPLES_PER_PROBE, PROBE_TEMPERATURE, world.max_probe_tokens, recipe.policy_dtype)
    digest.update(repr(settings).encode())
    digest.update(repr((recipe.judge.model, recipe.judge.votes, recipe.rubric)).encode())
    for probe in probes:
        grader = resolve_reward_name(recipe.verdict_reward, probe)
        digest.update(repr((probe.id, probe.question, probe.answers, grader)).encode())
    return digest.hexdigest()[:32]
