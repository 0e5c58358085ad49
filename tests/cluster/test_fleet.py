"""A fleet over engines with modelled durations, in virtual time: real code deals, nothing waits."""

import asyncio
import math

import pytest

from cluster_parts import ModelledSeat, Yard, play, play_groups, proof
from fieldcraft.cluster.dealing import ALONE, Dealer
from fieldcraft.cluster.fleet import MOST_DEATHS
from fieldcraft.sampling import Sampling
from fieldcraft.train.sampler import Travelling
from fieldcraft.types import Completion, UserError
from virtual_time import virtually


def seats(count: int, **how: float) -> list[ModelledSeat]:
    return [ModelledSeat(number, **how) for number in range(count)]


async def steps(yard: Yard, count: int, groups: int) -> tuple[float, list[list[Completion]]]:
    """Seconds of so many steps that publish before each, and what was sampled."""
    clock = asyncio.get_running_loop().time
    await yard.fleet.publish(0)
    began, done = clock(), []
    for step in range(count):
        done += await play_groups(yard.fleet, step, groups)
    return clock() - began, done


def test_samples_do_not_depend_on_how_many_engines_there_are() -> None:
    _, one = virtually(steps(Yard(*seats(1)), 1, 4))
    _, four = virtually(steps(Yard(*seats(4)), 1, 4))
    assert one == four


def test_engines_share_the_work() -> None:
    yard = Yard(*seats(4))
    virtually(steps(yard, 3, 16))
    sampled = [seat.sampled for seat in yard.seats]
    assert min(sampled) > 0.8 * max(sampled)


def test_a_group_is_read_by_one_engine() -> None:
    yard = Yard(*seats(4))

    async def group() -> None:
        await yard.fleet.publish(0)
        prompt = list(range(200))
        jobs = [yard.fleet.generate(prompt, Sampling(99, seed=i), f"s{i}") for i in range(8)]
        await asyncio.gather(*jobs)

    virtually(group())
    assert sorted(seat.read for seat in yard.seats) == [0, 0, 0, 1600]


def test_a_large_group_is_cut_before_the_others_are_idle() -> None:
    yard = Yard(*seats(2))

    async def group() -> None:
        await yard.fleet.publish(0)
        prompt = list(range(200))
        jobs = [yard.fleet.generate(prompt, Sampling(99, seed=i), f"s{i}") for i in range(200)]
        await asyncio.gather(*jobs)

    virtually(group())
    assert min(seat.read for seat in yard.seats) > 0.4 * max(seat.read for seat in yard.seats)


@pytest.mark.parametrize("groups", [8, 32])
def test_a_straggler_costs_less_than_a_fifth(groups: int) -> None:
    """Of eight engines one is five times slower. What it does less is a tenth of everything."""
    even, _ = virtually(steps(Yard(*seats(8)), 6, groups))
    straggling = [ModelledSeat(0, slow=5.0), *seats(8)[1:]]
    yard = Yard(*straggling)
    uneven, _ = virtually(steps(yard, 6, groups))
    assert uneven < even / 0.8
    assert yard.seats[0].sampled > 0  # it is not given up


def test_an_engine_that_was_slow_gets_a_turn_again_some_time() -> None:
    dealer = Dealer(2)
    dealer.slowness = [5.0, 1.0]
    turns = [dealer.begin(f"s{i}", [i], {0, 1}, now=0.0) for i in range(15)]
    assert {turn.engine for turn in turns} == {1}
    later = []
    for i in range(5000):
        turn = turns.pop(0)
        dealer.end(f"s{i}", turn, ids=1, tokens=60, now=60.0 * (turn.beside + ALONE))
        dealer.forget(f"s{i}")
        turns.append(dealer.begin(f"s{i + 15}", [i + 15], {0, 1}, now=0.0))
        later.append(turns[-1].engine)
    assert 0 not in later[:500]
    assert later[-500:].count(0) > 100  # as fast as the other one


@pytest.mark.parametrize("when", [1.2, 1.5, 2.5])
def test_what_a_dead_engine_was_asked_is_asked_again(when: float) -> None:
    yard = Yard(*seats(3))

    async def killed() -> list[list[Completion]]:
        asyncio.get_running_loop().call_later(when, yard.seats[1].die)
        return (await steps(yard, 2, 6))[1]

    _, expected = virtually(steps(Yard(*seats(3)), 2, 6))
    assert virtually(killed()) == expected
    assert yard.fleet.lost == 1
    assert len(yard.said) == 1
    assert yard.said[0].startswith("engine 1 has died")
    assert yard.said[0].endswith("it is started again, and what it was asked for is asked again")
    assert yard.seats[1].holds is not None


def test_an_engine_that_comes_back_holds_the_newest_weights() -> None:
    yard = Yard(*seats(2))

    async def scene() -> None:
        await yard.fleet.publish(1)
        yard.seats[0].die()
        await asyncio.gather(*(play(yard.fleet, f"a{i}", [i]) for i in range(20)))
        yard.weights = 1.0
        await yard.fleet.publish(2)
        await play_groups(yard.fleet, 0, 4)

    virtually(scene())
    assert [seat.holds.version for seat in yard.seats if seat.holds] == [2, 2]
    assert [seat.holds.tensors.logprobs[0] for seat in yard.seats if seat.holds] == [1.0, 1.0]


def test_engines_sample_on_while_the_weights_travel() -> None:
    yard = Yard(*seats(2))

    async def scene() -> list[Completion]:
        await yard.fleet.publish(1)
        turns = [
            asyncio.create_task(yard.fleet.generate([i], Sampling(200, seed=i), f"s{i}"))
            for i in range(8)
        ]
        await asyncio.sleep(0.05)
        await yard.fleet.publish(2)
        return await asyncio.gather(*turns)

    assert len(virtually(scene())) == 8
    assert yard.fleet.published["publish_bytes"] == 2000.0
    assert math.isclose(yard.fleet.published["publish_seconds"], 1.1)
    assert isinstance(yard.fleet, Travelling)


def test_sessions_continue_while_the_weights_are_brought_together() -> None:
    yard = Yard(*seats(2))

    async def scene() -> tuple[list[Completion], int]:
        await yard.fleet.publish(1)
        yard.gathering = 1000.0
        publishing = asyncio.create_task(yard.fleet.publish(2))
        yard.seats[0].die()  # it comes back, and waits for the same weights
        done = await play(yard.fleet, "a", [1])
        before = yard.loads
        assert not publishing.done()
        await publishing
        return done, before

    done, before = virtually(scene())
    assert len(done) == 3
    assert before == yard.loads == 2
    assert all(seat.holds is not None and seat.holds.version == 2 for seat in yard.seats)


def test_an_engine_with_other_weights_stops_the_run() -> None:
    yard = Yard(*seats(2))

    class Stale(ModelledSeat):
        async def hold(self, cargo):  # type: ignore[no-untyped-def]
            await super().hold(cargo)
            return proof(0.5)

    yard = Yard(seats(1)[0], Stale(1))
    with pytest.raises(UserError, match=r"engine 1 does not sample .* 0\.5 nats"):
        virtually(yard.fleet.publish(1))


def test_engines_that_always_die_end_the_run_with_a_sentence() -> None:
    class Mortal(ModelledSeat):
        async def generate(self, *args):  # type: ignore[no-untyped-def]
            self.die()
            return await super().generate(*args)

    yard = Yard(Mortal(0), Mortal(1))
    with pytest.raises(UserError, match="no engine is left"):
        virtually(play(yard.fleet, "a", [1]))
    assert yard.fleet.lost == 2 * MOST_DEATHS
    assert sum("given up" in line for line in yard.said) == 2


def test_the_fleet_does_not_sleep_while_it_is_generating() -> None:
    yard = Yard(*seats(1))

    async def scene() -> None:
        turn = asyncio.create_task(yard.fleet.generate([1], Sampling(9), "s"))
        await asyncio.sleep(0.01)
        with pytest.raises(RuntimeError, match="cannot sleep"):
            await yard.fleet.sleep()
        await turn
        await yard.fleet.sleep()

    virtually(scene())


def test_a_session_is_released_where_it_is() -> None:
    yard = Yard(*seats(2))
    virtually(play(yard.fleet, "a", [1]))
    assert [seat.released for seat in yard.seats] == [["a"], []]
