"""Routing of sessions to engines, with numbers of turns and speeds computed by hand."""

from fieldcraft.extensions.cluster.session_router import SessionRouter


def test_a_session_stays_until_its_engine_is_much_busier() -> None:
    router = SessionRouter(2)
    assert router.route("s", range(1280), {0, 1}) == (0, None)
    router.record(0, 100, 1.0)
    others = [router.route(f"other {i}", [i], {0}) for i in range(10)]
    assert router.route("s", range(1280), {0, 1}) == (0, None)
    router.record(0, 100, 1.0)
    assert others == [(0, None)] * 10
    for i in range(100):
        router.route(f"one more {i}", [i], {0})
    assert router.route("s", range(1280), {0, 1}) == (1, 0)
    assert router.forget("s") == 1
    assert router.forget("s") is None


def test_a_session_moves_when_its_engine_is_lost() -> None:
    router = SessionRouter(2)
    assert router.route("s", range(9), {0, 1}) == (0, None)
    router.record(0, 0, 1.0)
    assert router.route("s", range(9), {1}) == (1, 0)
    router.record(1, 5, 1.0)
    assert router.route("s", range(9), {0, 1}) == (1, None)


def test_a_new_session_goes_where_its_prompt_is_or_to_the_least_busy_engine() -> None:
    router = SessionRouter(3)
    assert [router.route(f"s{i}", [i] * 500, {0, 1, 2})[0] for i in range(3)] == [0, 1, 2]
    assert router.route("s3", [1] * 500, {0, 1, 2}) == (1, None)
    assert router.route("s4", [4] * 500, {0, 1, 2}) == (0, None)
    for session in ("s1", "s3"):
        router.forget(session)
        router.record(1, 5, 1.0)
    router.route("s5", [5] * 500, {1})
    router.route("s6", [5] * 500, {1})
    assert router.route("s7", [1] * 500, {0, 1, 2}) == (2, None)  # no session has it any more


def test_a_slow_engine_gets_fewer_turns() -> None:
    router = SessionRouter(2)
    router.seconds_per_token = [0.04, 0.02]
    engines = [router.route(f"s{i}", [i], {0, 1})[0] for i in range(160)]
    # 0.04 x (64 + 32) = 0.02 x (64 + 128)
    assert engines.count(0) == 32


def test_a_short_turn_after_a_long_text_does_not_make_an_engine_slow() -> None:
    router = SessionRouter(2)
    router.seconds_per_token = [0.01, 0.01]
    router.route("s", range(10_000), {0})
    router.record(0, 1, 1.0)
    engines = [router.route(f"s{i}", [i], {0, 1})[0] for i in range(20)]
    assert 0 in engines


def test_an_engine_that_was_slow_gets_a_turn_again_some_time() -> None:
    router = SessionRouter(2)
    router.seconds_per_token = [5.0, 1.0]
    active = [router.route(f"s{i}", [i], {0, 1})[0] for i in range(15)]
    assert set(active) == {1}
    later = []
    for i in range(5000):
        router.record(active.pop(0), tokens=60, seconds=60.0)
        router.forget(f"s{i}")
        active.append(router.route(f"s{i + 15}", [i + 15], {0, 1})[0])
        later.append(active[-1])
    assert 0 not in later[:500]
    assert later[-500:].count(0) > 100  # as fast as the other one
