"""Simulated observations of an RL stage: schedule, simulating model, and exact tokens of both."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bandit import bandit, settings
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.train.batch import to_sample
from fieldcraft.train.stages.rl import RlStage, is_simulated_step
from fieldcraft.types import Author, Trajectory, UserError
from training_parts import assert_same, plain_logprobs_of, run_stage, step, weights

# -- schedule ------------------------------------------------------------------------------------


def schedule(steps: int, **given: Any) -> list[bool]:
    s = settings(**given)
    return [is_simulated_step(s, number) for number in range(steps)]


def test_every_sixth_step_of_a_mixed_stage_is_real() -> None:
    """The ratio is AutoCoA's 5:1 exactly, although 5/6 is not an exact float."""
    assert schedule(6000, observations="mixed") == [True, True, True, True, True, False] * 1000


@given(st.fractions(Fraction(1, 50), Fraction(49, 50), max_denominator=50), st.integers(1, 300))
def test_the_share_holds_from_the_first_step_on(share: Fraction, steps: int) -> None:
    found = schedule(steps, observations="mixed", simulated_share=float(share))
    assert sum(found) == ceil(steps * share)


def test_an_unmixed_stage_never_changes() -> None:
    assert set(schedule(20, observations="real")) == {False}
    assert set(schedule(20, observations="simulated")) == {True}


# -- simulating model ----------------------------------------------------------------------------


class Watched:
    """Engine wrapper that records completions, and started and released sessions."""

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.begun: set[str] = set()
        self.released: set[str] = set()
        self.done: list[Completion] = []
        self.slept = 0

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        self.begun.add(session)
        self.done.append(await self.engine.generate(ids, sampling, session))
        return self.done[-1]

    def release(self, session: str) -> None:
        self.released.add(session)
        self.engine.release(session)

    async def sleep(self) -> None:
        self.slept += 1
        await self.engine.sleep()

    async def update_weights(self, version: int) -> None:
        await self.engine.update_weights(version)


def watch(stage: RlStage) -> tuple[Watched, Watched, list[Trajectory]]:
    """Wrap the stage's two engines and collect the rollouts of its later steps."""
    assert isinstance(stage.sampler.engine, LocalEngine)
    assert isinstance(stage.sampler.frozen_engine, LocalEngine)
    policy, frozen, seen = Watched(stage.sampler.engine), Watched(stage.sampler.frozen_engine), []

    def keep(done: Sequence[Trajectory]) -> dict[str, Any]:
        seen.extend(done)
        return {"fidelity/n": len(done)}

    stage.sampler = replace(stage.sampler, engine=policy, frozen_engine=frozen)
    stage.measure_fidelity = keep
    return policy, frozen, seen


def texts(found: Sequence[Trajectory], author: Author) -> list[tuple[int, ...]]:
    return sorted(tuple(s.ids) for t in found for s in t.segments if s.author is author and s.ids)


class Temperatures(Watched):
    """Engine wrapper that also records the temperatures of all calls."""

    def __init__(self, engine: LocalEngine) -> None:
        super().__init__(engine)
        self.seen: set[float] = set()

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        self.seen.add(sampling.temperature)
        return await super().generate(ids, sampling, session)


@pytest.mark.parametrize(("own", "meant"), [(None, 0.8), (0.0, 0.0), (0.3, 0.3)])
def test_a_simulator_has_a_temperature_of_its_own(own: float | None, meant: float) -> None:
    stage = bandit(
        observations="simulated", simulator="frozen", temperature=0.8, simulator_temperature=own
    )
    assert isinstance(stage.sampler.engine, LocalEngine)
    assert isinstance(stage.sampler.frozen_engine, LocalEngine)
    policy, frozen = Temperatures(stage.sampler.engine), Temperatures(stage.sampler.frozen_engine)
    stage.sampler = replace(stage.sampler, engine=policy, frozen_engine=frozen)
    step(stage, 0)
    assert (policy.seen, frozen.seen) == ({0.8}, {meant})


def test_a_simulators_temperature_belongs_to_simulated_observations() -> None:
    with pytest.raises(UserError, match="applies to simulated steps only"):
        settings(simulator_temperature=0.5)


def test_a_frozen_simulator_and_the_policy_keep_to_their_engines() -> None:
    stage = bandit(observations="simulated", simulator="frozen", temperature=0.8)
    policy, frozen, seen = watch(stage)
    before = weights(frozen.engine.model)
    start = weights(policy.engine.model)
    row = step(stage, 0)
    assert row["fidelity/n"] == len(seen) == 48
    assert texts(seen, Author.POLICY) == sorted(tuple(d.ids) for d in policy.done)
    frame = {tuple(stage.sampler.env.dialect.tokenizer.encode(tag)) for tag in "<>"}
    written = [ids for ids in texts(seen, Author.SIMULATOR) if ids not in frame]
    assert len(written) > 10
    sampled = sorted(tuple(d.ids) for d in frozen.done)
    assert [ids for ids in sampled if ids not in frame] == written
    # no session remains in either engine
    assert policy.begun <= policy.released
    assert frozen.begun <= frozen.released
    assert frozen.begun
    # the policy learns, the frozen model does not
    assert_same(before, weights(frozen.engine.model))
    assert any((start[n] != w).any() for n, w in weights(policy.engine.model).items())
    # a run that resumes here would not have any caches either
    assert (policy.slept, frozen.slept) == (2, 2)


def test_what_is_simulated_is_the_frozen_models_and_never_trained() -> None:
    stage = bandit(observations="simulated", simulator="frozen", temperature=0.8)
    _, frozen, _ = watch(stage)
    compared = 0
    groups = asyncio.run(stage.sampler.sample(0)).groups
    for trajectory in (t for group in groups for t in group):
        exact = plain_logprobs_of(frozen.engine.model, trajectory.ids, 0.8).numpy()
        weight = to_sample(trajectory, {Author.POLICY}).weight
        place = 0
        for segment in trajectory.segments:
            here = slice(place, place + len(segment.ids))
            assert (weight[here] == (segment.author is Author.POLICY)).all()
            assert len(weight) >= here.stop or segment.author is not Author.POLICY
            if segment.author is Author.SIMULATOR and any(segment.logprobs):
                np.testing.assert_allclose(
                    segment.logprobs, exact[here.start - 1 : here.stop - 1], atol=1e-4
                )
                compared += len(segment.ids)
            place = here.stop
    assert compared > 10


def test_a_real_step_of_a_mixed_stage_asks_the_tool_and_no_simulator() -> None:
    stage = bandit(observations="mixed", simulated_share=0.5, simulator="frozen")
    _, frozen, seen = watch(stage)
    rows = [step(stage, number) for number in range(2)]
    assert ["fidelity/n" in row for row in rows] == [True, False]
    calls = len(frozen.done)
    assert calls > 5
    [search] = stage.sampler.env.tools
    assert len(search.queries) > 5  # type: ignore[attr-defined]
    rows.append(step(stage, 3))
    assert (len(frozen.done), len(seen)) == (calls, 48)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"simulator": "frozen"}, "simulator: frozen needs its model"),
        (
            {"simulator": "endpoint", "endpoint": {"url": "http://h/v1", "model": "m"}},
            "simulator: endpoint needs its model",
        ),
    ],
)
def test_a_stage_without_its_simulator_is_refused(given: dict[str, Any], sentence: str) -> None:
    whole = bandit()
    other = replace(whole.sampler, settings=settings(observations="simulated", **given))
    with pytest.raises(UserError, match=sentence):
        RlStage(sampler=other, algorithm=whole.learner.algorithm, models=whole.models)


# -- resuming ------------------------------------------------------------------------------------

KINDS = {
    "mixed": {"observations": "mixed", "simulated_share": 0.6},
    "frozen": {"observations": "simulated", "simulator": "frozen"},
    "mixed and frozen": {"observations": "mixed", "simulated_share": 0.6, "simulator": "frozen"},
}


def train(stage: RlStage, folder: Path) -> list[dict[str, Any]]:
    tokenizer = stage.sampler.env.dialect.tokenizer
    found = run_stage(stage, stage.settings, folder, tokenizer)
    return [{k: v for k, v in row.items() if "second" not in k} for row in found]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("killed_in", [1, 2, 3])
def test_a_stage_that_is_killed_ends_with_the_same_numbers(
    kind: str, killed_in: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def new() -> RlStage:
        return bandit(
            **KINDS[kind], steps=5, questions_per_step=2, group_size=6, checkpoint_every=2
        )

    whole, killed, last = new(), new(), new()
    rows = train(whole, tmp_path / "whole")
    append = MetricsLog.append

    def die(log: MetricsLog, row: dict[str, Any]) -> None:
        append(log, row)
        if row["step"] == killed_in:
            raise KeyboardInterrupt

    monkeypatch.setattr(MetricsLog, "append", die)
    with pytest.raises(KeyboardInterrupt):
        train(killed, tmp_path / "killed")
    monkeypatch.setattr(MetricsLog, "append", append)
    assert train(last, tmp_path / "killed") == rows
    assert_same(weights(whole.trainer.model), weights(last.trainer.model))
