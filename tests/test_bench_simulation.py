"""Simulation of reinforcement learning in virtual time: properties that hold for all durations."""

import asyncio
import itertools
import random
from typing import Any

import pytest
from aiotools import VirtualClock
from hypothesis import given, settings
from hypothesis import strategies as st

from fieldcraft.sampling import Completion, SamplingParams
from script_modules import import_bench

engines, pipelines, workloads = (
    import_bench(f"simulation.{name}") for name in ("engines", "pipeline", "workload")
)
LogNormal, RolloutWorkload = workloads.LogNormal, workloads.RolloutWorkload
SimulatedEngine, SimulatedEngineGroup = engines.SimulatedEngine, engines.SimulatedEngineGroup
simulate = pipelines.simulate
SAME = RolloutWorkload(
    prompt_tokens=10, turn_tokens=LogNormal(100, 100)
)  # rollouts of one turn with 100 tokens
SLOW_TOOLS = RolloutWorkload(
    prompt_tokens=50,
    turn_tokens=LogNormal(20, 60, 80),
    mean_calls=1.5,
    max_calls=6,
    observation_tokens=30,
    tool_latency=LogNormal(0.2, 5.0),
)


class Constant:
    """Engine with steps of 10 ms, regardless of their rows, and prompts that take no time."""

    def decode_seconds(self, rows: int, cached_tokens: float) -> float:
        return 0.01

    def prefill_seconds(self, tokens: float) -> float:
        return 0.0


class Growing(Constant):
    """Engine with 1 ms a step for each row and 1 ms for each prompt token."""

    def decode_seconds(self, rows: int, cached_tokens: float) -> float:
        return 0.001 * rows

    def prefill_seconds(self, tokens: float) -> float:
        return 0.001 * tokens


def pipeline(**given: Any) -> Any:
    usual = {"workload": SAME, "speeds": [Constant()], "questions": 5, "group": 2, "rows": 10}
    return pipelines.PipelineModel(
        **{**usual, "learn_seconds": lambda tokens, rollouts: 0.5, **given}
    )


def virtually(calls: Any) -> Any:
    async def run() -> Any:
        with VirtualClock().patch_loop():
            return await calls()

    return asyncio.run(run())


def test_with_one_engine_and_no_tools_the_rate_is_that_of_the_formula() -> None:
    """Ten rollouts have 100 steps of 10 ms, and training takes 0.5 s. A step takes 1.5 s if the two
    alternate, and 1 s if they overlap. With five rows sampling takes two rounds.
    """
    assert simulate(pipeline()).rollouts_per_second == pytest.approx(10 / 1.5)
    assert simulate(pipeline(max_staleness=1)).rollouts_per_second == pytest.approx(10)
    assert simulate(pipeline(rows=5)).rollouts_per_second == pytest.approx(10 / 2.5)
    slow = simulate(pipeline(max_staleness=1, learn_seconds=lambda tokens, n: tokens / 500))
    assert slow.rollouts_per_second == pytest.approx(
        500 / 110
    )  # each has 110 tokens with its prompt
    assert slow.wait_share == pytest.approx(0)


def test_publishing_takes_time_from_both() -> None:
    """Sampling and training wait for 0.2 s. Then the engine reads 10 rollouts again."""
    assert simulate(pipeline(publish_seconds=0.2)).rollouts_per_second == pytest.approx(10 / 1.7)
    both = simulate(pipeline(max_staleness=1, publish_seconds=0.2, speeds=[Growing()]))
    alone = simulate(pipeline(max_staleness=1, speeds=[Growing()]))
    assert both.rollouts_per_second < alone.rollouts_per_second


def test_rows_share_an_engine() -> None:
    """Two rows take 2 ms a step: the short one ends after 10 steps, then the other is alone."""

    async def calls() -> list[float]:
        engine, loop = SimulatedEngine(Growing(), 10), asyncio.get_running_loop()

        async def one(tokens: int) -> float:
            await engine.generate([], SamplingParams(tokens), str(tokens))
            return loop.time()

        return await asyncio.gather(one(10), one(30))

    assert virtually(calls) == pytest.approx([0.02, 0.04], abs=0.002)


def test_what_a_session_has_read_is_not_read_again_until_weights_change() -> None:
    async def calls() -> list[float]:
        engine, loop, times = SimulatedEngine(Growing(), 10), asyncio.get_running_loop(), [0.0]
        for turn in range(3):
            if turn == 2:
                await engine.update_weights(1)
            await engine.generate(range(100 + 10 * turn), SamplingParams(10), "one")
            times.append(loop.time())
        return [later - earlier for earlier, later in itertools.pairwise(times)]

    # 100 tokens are read and 10 written; 0 and 10; all 120 again and 10
    assert virtually(calls) == pytest.approx([0.11, 0.01, 0.13], abs=0.002)


def test_a_turn_under_way_is_read_again_when_weights_change() -> None:
    """100 tokens are read and 50 of 100 written. Then 150 are read again and 50 written."""

    async def calls() -> float:
        engine, loop = SimulatedEngine(Growing(), 10), asyncio.get_running_loop()
        turn = asyncio.create_task(engine.generate(range(100), SamplingParams(100), "one"))
        await asyncio.sleep(0.15)
        await engine.update_weights(1)
        await turn
        return loop.time()

    assert virtually(calls) == pytest.approx(0.35, abs=0.002)


def test_tokens_know_the_version_that_sampled_them() -> None:
    async def calls() -> Completion:
        engine = SimulatedEngine(Constant(), 1)
        turn = asyncio.create_task(engine.generate([], SamplingParams(10), "one"))
        await asyncio.sleep(0.04)
        await engine.update_weights(1)
        await asyncio.sleep(0.03)
        await engine.update_weights(2)
        return await turn

    assert virtually(calls).versions == [(0, 4), (1, 3), (2, 3)]


def test_a_turn_that_is_given_up_leaves_its_engine() -> None:
    async def calls() -> tuple[float, float]:
        engine = SimulatedEngine(Growing(), 10)
        turn = asyncio.create_task(engine.generate(range(5), SamplingParams(1000), "long"))
        await asyncio.sleep(0.02)
        turn.cancel()
        await asyncio.wait([turn])
        began = asyncio.get_running_loop().time()
        await engine.generate([], SamplingParams(10), "short")
        return asyncio.get_running_loop().time() - began, engine.active_tokens

    assert virtually(calls) == pytest.approx((0.01, 0.0), abs=0.002)


def test_a_session_stays_with_its_engine_and_a_new_one_gets_the_idle_one() -> None:
    async def calls() -> list[int]:
        several = SimulatedEngineGroup([SimulatedEngine(Constant(), 10) for _ in range(3)])
        for session in "abcd":
            await several.generate([], SamplingParams(1), session)
        several.release("b")
        await several.generate([], SamplingParams(1), "e")
        await several.generate([], SamplingParams(1), "a")
        return [several.assigned_engine[session] for session in "aced"]

    first, third, again, fourth = virtually(calls)
    assert {first, third} == {0, 2}
    assert again == 1
    assert fourth == 0


@settings(deadline=None, max_examples=8)
@given(
    staleness=st.integers(1, 4),
    learning=st.floats(0.01, 20),
    latency=st.floats(0.2, 30),
    seed=st.integers(0, 99),
)
def test_no_token_is_older_than_it_may_be(
    staleness: int, learning: float, latency: float, seed: int
) -> None:
    work = RolloutWorkload(20, LogNormal(10, 40), 1.0, 4, 10, LogNormal(0.2, latency))
    found = simulate(
        pipeline(
            workload=work,
            max_staleness=staleness,
            learn_seconds=lambda tokens, rollouts: learning,
            steps=6,
            seed=seed,
        )
    )
    assert max(step.staleness for step in found.steps) <= staleness
    assert all(step.rollouts + step.dropped >= 8 for step in found.steps)


def test_more_engines_are_never_slower() -> None:
    rates = [
        simulate(pipeline(speeds=[Growing()] * n, steps=4)).rollouts_per_second
        for n in (1, 2, 5, 10)
    ]
    assert rates == sorted(rates)
    assert rates[-1] > 2 * rates[0]


def test_working_ahead_hides_slow_tools() -> None:
    rates = [
        simulate(
            pipeline(workload=SLOW_TOOLS, questions=10, max_staleness=n, steps=9)
        ).rollouts_per_second
        for n in (0, 1, 4)
    ]
    assert rates == sorted(rates)
    assert rates[1] > 1.5 * rates[0]


def test_calls_wait_at_the_gate() -> None:
    """Ten rollouts have two turns with a call of 3 s between them, all at once or two at a time."""
    calls = RolloutWorkload(10, LogNormal(100, 100), 1e9, 1, 5, LogNormal(3, 3))
    assert simulate(pipeline(workload=calls)).rollouts_per_second == pytest.approx(
        10 / (1 + 3 + 1 + 0.5)
    )
    few = simulate(pipeline(workload=calls, concurrent_calls=2))
    assert few.rollouts_per_second == pytest.approx(10 / (1 + 5 * 3 + 1 + 0.5))


def test_a_step_gives_up_no_more_than_its_twentieth() -> None:
    """Two of 40 rollouts may be dropped, together with the groups of two that contain them."""
    steps = simulate(
        pipeline(workload=SLOW_TOOLS, questions=20, group=2, max_staleness=2, steps=6)
    ).steps
    assert max(step.dropped for step in steps) <= 4
    assert any(step.dropped for step in steps)


def test_a_simulation_repeats() -> None:
    again = [simulate(pipeline(workload=SLOW_TOOLS, max_staleness=1)).steps for _ in range(2)]
    assert again[0] == again[1]


def test_tails_have_the_median_and_the_99th_percentile_that_they_say() -> None:
    rng, tail = random.Random(0), LogNormal(0.2, 5.0)
    drawn = sorted(tail.sample(rng) for _ in range(20_000))
    assert drawn[10_000] == pytest.approx(0.2, rel=0.05)
    assert drawn[19_800] == pytest.approx(5.0, rel=0.1)
    assert LogNormal(3, 3).sample(rng) == 3
    assert max(LogNormal(3, 30, 5).sample(rng) for _ in range(100)) == 5
    calls = [SLOW_TOOLS.sample_num_calls(rng) for _ in range(20_000)]
    assert sum(calls) / len(calls) == pytest.approx(1.5, rel=0.1)
    assert max(calls) == 6
