"""A group of engines with modelled durations, in virtual time and with real routing."""

import asyncio
import math

import pytest

from cluster_parts import EngineGroupRig, ModelledEngine, make_probe, run_groups, run_rollout
from fieldcraft.extensions.cluster.engine_group import MAX_CONSECUTIVE_FAILURES
from fieldcraft.sampling import Completion, SamplingParams
from fieldcraft.types import UserError
from virtual_time import virtually


def modelled_engines(count: int, **how: float) -> list[ModelledEngine]:
    return [ModelledEngine(number, **how) for number in range(count)]


async def steps(
    rig: EngineGroupRig, count: int, groups: int
) -> tuple[float, list[list[Completion]]]:
    """Run steps that start with a publication, and return their seconds and completions."""
    clock = asyncio.get_running_loop().time
    await rig.group.update_weights(0)
    began, done = clock(), []
    for step in range(count):
        done += await run_groups(rig.group, step, groups)
    return clock() - began, done


def test_samples_do_not_depend_on_how_many_engines_there_are() -> None:
    _, one = virtually(steps(EngineGroupRig(*modelled_engines(1)), 1, 4))
    _, four = virtually(steps(EngineGroupRig(*modelled_engines(4)), 1, 4))
    assert one == four


def test_engines_share_the_work() -> None:
    rig = EngineGroupRig(*modelled_engines(4))
    virtually(steps(rig, 3, 16))
    sampled = [engine.sampled for engine in rig.engines]
    assert min(sampled) > 0.8 * max(sampled)


def test_a_group_is_read_by_one_engine() -> None:
    rig = EngineGroupRig(*modelled_engines(4))

    async def group() -> None:
        await rig.group.update_weights(0)
        prompt = list(range(200))
        jobs = [rig.group.generate(prompt, SamplingParams(99, seed=i), f"s{i}") for i in range(8)]
        await asyncio.gather(*jobs)

    virtually(group())
    assert sorted(engine.read for engine in rig.engines) == [0, 0, 0, 1600]


def test_a_large_group_is_cut_before_the_others_are_idle() -> None:
    rig = EngineGroupRig(*modelled_engines(2))

    async def group() -> None:
        await rig.group.update_weights(0)
        prompt = list(range(200))
        jobs = [rig.group.generate(prompt, SamplingParams(99, seed=i), f"s{i}") for i in range(200)]
        await asyncio.gather(*jobs)

    virtually(group())
    assert min(engine.read for engine in rig.engines) > 0.4 * max(
        engine.read for engine in rig.engines
    )


@pytest.mark.parametrize("groups", [8, 32])
def test_a_straggler_costs_less_than_a_fifth(groups: int) -> None:
    """One of eight engines is five times slower, which lowers the total capacity by a tenth."""
    even, _ = virtually(steps(EngineGroupRig(*modelled_engines(8)), 6, groups))
    straggling = [ModelledEngine(0, slow=5.0), *modelled_engines(8)[1:]]
    rig = EngineGroupRig(*straggling)
    uneven, _ = virtually(steps(rig, 6, groups))
    assert uneven < even / 0.8
    assert rig.engines[0].sampled > 0  # it is still in use


@pytest.mark.parametrize("when", [1.2, 1.5, 2.5])
def test_what_a_dead_engine_was_asked_is_asked_again(when: float) -> None:
    rig = EngineGroupRig(*modelled_engines(3))

    async def killed() -> list[list[Completion]]:
        asyncio.get_running_loop().call_later(when, rig.engines[1].die)
        return (await steps(rig, 2, 6))[1]

    _, expected = virtually(steps(EngineGroupRig(*modelled_engines(3)), 2, 6))
    assert virtually(killed()) == expected
    assert rig.group.engine_restarts == 1
    assert len(rig.messages) == 1
    assert rig.messages[0].startswith("engine 1 crashed")
    assert rig.messages[0].endswith("it is restarted, and its requests are retried")
    assert rig.engines[1].holds is not None


def test_an_engine_that_comes_back_holds_the_newest_weights() -> None:
    rig = EngineGroupRig(*modelled_engines(2))

    async def scene() -> None:
        await rig.group.update_weights(1)
        rig.engines[0].die()
        await asyncio.gather(*(run_rollout(rig.group, f"a{i}", [i]) for i in range(20)))
        rig.weights = 1.0
        await rig.group.update_weights(2)
        await run_groups(rig.group, 0, 4)

    virtually(scene())
    assert [engine.holds.version for engine in rig.engines if engine.holds] == [2, 2]
    assert [engine.holds.handle.logprobs[0] for engine in rig.engines if engine.holds] == [
        1.0,
        1.0,
    ]


def test_engines_sample_on_while_the_weights_travel() -> None:
    rig = EngineGroupRig(*modelled_engines(2))

    async def scene() -> list[Completion]:
        await rig.group.update_weights(1)
        turns = [
            asyncio.create_task(rig.group.generate([i], SamplingParams(200, seed=i), f"s{i}"))
            for i in range(8)
        ]
        await asyncio.sleep(0.05)
        await rig.group.update_weights(2)
        return await asyncio.gather(*turns)

    assert len(virtually(scene())) == 8
    assert rig.group.last_update_metrics["publish_bytes"] == 2000.0
    assert math.isclose(rig.group.last_update_metrics["publish_seconds"], 1.1)


def test_sessions_continue_while_the_weights_are_brought_together() -> None:
    rig = EngineGroupRig(*modelled_engines(2))

    async def scene() -> tuple[list[Completion], int]:
        await rig.group.update_weights(1)
        rig.gathering = 1000.0
        publishing = asyncio.create_task(rig.group.update_weights(2))
        rig.engines[0].die()  # it restarts, and waits for the same weights
        done = await run_rollout(rig.group, "a", [1])
        before = rig.loads
        assert not publishing.done()
        await publishing
        return done, before

    done, before = virtually(scene())
    assert len(done) == 3
    assert before == rig.loads == 2
    assert all(engine.holds is not None and engine.holds.version == 2 for engine in rig.engines)


def test_an_engine_with_other_weights_stops_the_run() -> None:
    rig = EngineGroupRig(*modelled_engines(2))

    class Stale(ModelledEngine):
        async def load_snapshot(self, snapshot):  # type: ignore[no-untyped-def]
            await super().load_snapshot(snapshot)
            return make_probe(0.5)

    rig = EngineGroupRig(modelled_engines(1)[0], Stale(1))
    with pytest.raises(UserError, match=r"engine 1 does not sample .* 0\.5 nats"):
        virtually(rig.group.update_weights(1))


def test_engines_that_always_die_end_the_run_with_a_sentence() -> None:
    class Mortal(ModelledEngine):
        async def generate(self, *args):  # type: ignore[no-untyped-def]
            self.die()
            return await super().generate(*args)

    rig = EngineGroupRig(Mortal(0), Mortal(1))
    with pytest.raises(UserError, match="all engines failed"):
        virtually(run_rollout(rig.group, "a", [1]))
    assert rig.group.engine_restarts == 2 * MAX_CONSECUTIVE_FAILURES
    assert sum("given up" in line for line in rig.messages) == 2


def test_the_group_does_not_sleep_while_it_is_generating() -> None:
    rig = EngineGroupRig(*modelled_engines(1))

    async def scene() -> None:
        turn = asyncio.create_task(rig.group.generate([1], SamplingParams(9), "s"))
        await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="cannot sleep"):
            await rig.group.sleep()
        await turn
        await rig.group.sleep()

    virtually(scene())


def test_a_session_is_released_where_it_is() -> None:
    rig = EngineGroupRig(*modelled_engines(2))
    virtually(run_rollout(rig.group, "a", [1]))
    assert [engine.released for engine in rig.engines] == [["a"], []]


def test_a_group_is_closed_after_its_event_loop() -> None:
    rig = EngineGroupRig(*modelled_engines(2))
    virtually(rig.group.update_weights(1))
    asyncio.run(rig.group.close())
