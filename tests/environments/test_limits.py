"""Time limits, the gate, long observations, and hostile tools."""

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.base import encode_untrusted
from fieldcraft.environments import guards
from fieldcraft.environments.guards import BrokenToolError, truncate_middle
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.tool_session import ToolSession
from fieldcraft.tools.base import tool
from fieldcraft.types import (
    CallOutcome,
    CallRecord,
    MalformedCall,
    Task,
    ToolCall,
    ToolError,
    UserError,
)
from virtual_time import virtually

TOKENIZER = tiny_tokenizer()
DIALECT = make_dialect("hermes", TOKENIZER)
TASK = Task("t", "who?", ())
SCHEMA: dict[str, Any] = {"type": "function", "function": {"name": "act", "parameters": {}}}


class Acting:
    """The tool `act(what)`, which does what a test requests."""

    name = "act"
    schema = SCHEMA

    def __init__(self) -> None:
        self.running = self.most = 0
        self.finished: list[Any] = []

    async def __call__(self, **arguments: Any) -> Any:
        self.running += 1
        self.most = max(self.most, self.running)
        try:
            return await self.act(arguments["what"])
        finally:
            self.running -= 1
            self.finished.append(arguments["what"])

    async def act(self, what: Any) -> Any:
        match what:
            case float():
                await asyncio.sleep(what)
                return f"after {what:g}"
            case asyncio.Event():
                await what.wait()
            case BaseException():
                raise what
            case {"piece": piece, "times": times}:
                return piece * times
        return what


def environment(**budget: Any) -> ToolEnvironment:
    return ToolEnvironment(DIALECT, [Acting()], BudgetConfig(**budget))


def act(env: ToolEnvironment, *given: Any, before: int = 0) -> list[CallRecord]:
    moves = [w if isinstance(w, MalformedCall) else ToolCall("act", {"what": w}) for w in given]

    async def run() -> list[CallRecord]:
        async with env.open_session(TASK) as episode:
            return await episode.run_calls(moves, before)

    return virtually(run())


# -- several calls at once -----------------------------------------------------------------------


def test_calls_of_a_turn_run_side_by_side_and_keep_their_order() -> None:
    env = environment(max_calls=4)
    calls = act(env, 0.02, "b", MalformedCall("no call"), ToolError("down"), "e")
    assert [(call.observation, call.outcome) for call in calls] == [
        ("after 0.02", CallOutcome.OK),
        ("b", CallOutcome.OK),
        ("no call", CallOutcome.MALFORMED),
        ("down", CallOutcome.FAILED),
        ("The limit of calls is reached; answer with what you know.", CallOutcome.REFUSED),
    ]
    [tool] = env.tools
    assert isinstance(tool, Acting)
    assert tool.finished[-1] == 0.02  # the first call ended last
    assert tool.most == 2  # the other calls do not wait


def test_a_defect_in_one_call_stops_the_others_and_a_users_mistake_comes_first() -> None:
    env = environment()
    with pytest.raises(BrokenToolError, match="ZeroDivisionError: a defect"):
        act(env, asyncio.Event(), ZeroDivisionError("a defect"))
    [tool] = env.tools
    assert isinstance(tool, Acting)
    assert len(tool.finished) == 2  # only this cancellation ends the first call
    with pytest.raises(UserError, match="no index"):
        act(env, ZeroDivisionError("a defect"), UserError("no index"))


# -- the gate ------------------------------------------------------------------------------------


def test_few_calls_run_at_once_in_one_event_loop_after_another() -> None:
    env = environment(max_concurrent_calls=2, max_calls=9)
    for _ in range(2):
        calls = act(env, *[0.001] * 6)
        assert {call.outcome for call in calls} == {CallOutcome.OK}
    [tool] = env.tools
    assert isinstance(tool, Acting)
    assert tool.most == 2


def test_the_gate_counts_the_calls_of_all_rollouts_and_waiting_takes_no_time_of_theirs() -> None:
    env = environment(max_concurrent_calls=1, call_timeout_seconds=1.0)

    async def one() -> list[CallRecord]:
        async with env.open_session(TASK) as episode:
            return await episode.run_calls([ToolCall("act", {"what": 0.1})], 0)

    async def several() -> list[list[CallRecord]]:
        return await asyncio.gather(*(one() for _ in range(12)))

    for [call] in virtually(several()):
        assert (call.outcome, call.seconds) == (CallOutcome.OK, pytest.approx(0.1))


def test_a_call_that_does_not_wait_is_answered_in_the_same_turn_of_the_event_loop() -> None:
    async def run(episode: ToolSession) -> list[str]:
        order = []
        asyncio.get_running_loop().call_soon(order.append, "the loop")
        [call] = await episode.run_calls([ToolCall("act", {"what": "the tool"})], 0)
        order.append(call.observation)
        await asyncio.sleep(0)
        return order

    async def run_in_session() -> list[str]:
        async with environment().open_session(TASK) as episode:
            return await run(episode)

    assert asyncio.run(run_in_session()) == ["the tool", "the loop"]


# -- time ----------------------------------------------------------------------------------------


def test_a_slow_tool_is_a_failed_call_that_the_model_is_told_of() -> None:
    [call] = act(environment(call_timeout_seconds=0.05), asyncio.Event())
    assert (call.observation, call.outcome) == (
        "The tool did not answer within 0.05 s.",
        CallOutcome.UNAVAILABLE,
    )
    assert call.seconds == pytest.approx(0.05)


def test_a_tool_that_swallows_its_cancellation_is_late_nevertheless() -> None:
    async def answer() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "late"
        raise AssertionError

    with pytest.raises(guards.ToolTimeoutError, match="did not answer within"):
        asyncio.run(guards.run_with_timeout(answer(), 0.05))


def test_a_timeout_of_the_tools_own_is_its_defect() -> None:
    with pytest.raises(BrokenToolError, match="TimeoutError: mine"):
        act(environment(), TimeoutError("mine"))


NEVER_RETURNS = """
import asyncio, time
from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.environments.turns import Policy
from fieldcraft.tools.base import tool
from fieldcraft.types import Task

@tool
def sleep() -> str:
    '''Sleep.'''
    while True:
        time.sleep(1)

tokenizer = tiny_tokenizer()
budget = BudgetConfig(call_timeout_seconds=0.1)
env = ToolEnvironment(make_dialect("hermes", tokenizer, ""), [sleep], budget)
turns = ['<tool_call>{"name": "sleep", "arguments": {}}</tool_call>', "Oslo"]
policy = Policy(engine=ScriptedEngine(tokenizer, turns))
done = asyncio.run(env.run(Task("t", "who?", ()), policy, "key"))
print(done.status, done.answer, done.calls[0].observation)
"""


@pytest.mark.long
def test_a_tool_that_never_returns_does_not_keep_the_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NEVER_RETURNS],
        env={"PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        timeout=300,  # otherwise it waits for the tool
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "answered Oslo The tool did not answer within 0.1 s.\n"


# -- long observations ---------------------------------------------------------------------------


def tokens(text: str) -> int:
    return len(encode_untrusted(TOKENIZER, text))


def test_a_long_observation_keeps_its_head_and_its_tail() -> None:
    text = "".join(f"{i:5d}" for i in range(1000))
    [call] = act(environment(max_observation_tokens=64), text)
    head, gap, tail = call.observation.split("\n")
    assert gap == f"[{call.cut} characters left out]"
    assert text.startswith(head)
    assert text.endswith(tail)
    assert call.cut == len(text) - len(head) - len(tail)
    assert abs(len(head) - len(tail)) <= 1
    assert 40 < tokens(call.observation) <= 64


def test_a_text_that_just_fits_is_left_alone() -> None:
    fits = "a b" * 30 + "c" * 4  # 64 tokens
    assert tokens(fits) == 64
    assert truncate_middle(fits, 64, TOKENIZER) == (fits, 0)
    excerpt, cut = truncate_middle(fits + "x", 64, TOKENIZER)
    assert cut > 0
    assert tokens(excerpt) <= 64


@settings(deadline=None)
@given(st.text(st.characters(), max_size=300), st.sampled_from([64, 100]))
def test_never_too_many_tokens_and_always_text(text: str, most: int) -> None:
    excerpt, cut = truncate_middle(text, most, TOKENIZER)
    assert tokens(excerpt) <= most
    excerpt.encode()
    if not cut:
        assert len(excerpt) <= len(text)


@pytest.mark.parametrize("piece", ["x", "word ", "\U0001f600", "\ud800", "\n"])
def test_of_fifty_megabytes_little_is_read(piece: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The amount that is encoded and sanitised is proportional to the amount that may be shown."""
    read = Counter[str]()
    for name in ("encode_untrusted", "replace_lone_surrogates"):
        work = getattr(guards, name)

        def counted(*given: Any, name: str = name, work: Callable[..., Any] = work) -> Any:
            read[name] += len(given[-1])
            return work(*given)

        monkeypatch.setattr(guards, name, counted)
    [call] = act(environment(), {"piece": piece, "times": 50_000_000 // len(piece)})
    assert call.cut > 49_000_000
    assert tokens(call.observation) <= 2048
    assert 0 < read["encode_untrusted"] < 10 * 2048 * guards.MAX_CHARACTERS_PER_TOKEN
    assert 0 < read["replace_lone_surrogates"] < 10 * 2048 * guards.MAX_CHARACTERS_PER_TOKEN


def test_what_the_model_is_told_of_a_failure_is_short_too() -> None:
    [call] = act(environment(max_observation_tokens=64), ToolError("x" * 9999))
    assert call.outcome is CallOutcome.FAILED
    assert call.cut > 9000
    [call] = act(environment(max_observation_tokens=64), MalformedCall("y" * 9999))
    assert call.cut > 9000


# -- hostile tools -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "type_name"), [(None, "NoneType"), (b"bytes", "bytes"), (3, "int"), ([], "list")]
)
def test_what_is_no_text_is_a_defect(result: Any, type_name: str) -> None:
    with pytest.raises(BrokenToolError, match=f"the tool 'act' returned {type_name}, not text"):
        act(environment(), result)


class Odd(BaseException):
    """A BaseException that is not an Exception."""


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (SystemExit(3), "the tool raised SystemExit: 3"),
        (GeneratorExit("x"), "the tool raised GeneratorExit: x"),
        (Odd("x"), "the tool raised Odd: x"),
        (asyncio.CancelledError(), "the tool cancelled itself"),
    ],
)
@pytest.mark.parametrize("count", [1, 2])
def test_what_would_end_the_run_is_a_defect(
    raised: BaseException, message: str, count: int
) -> None:
    with pytest.raises(BrokenToolError, match=message):
        act(environment(), *["fine", raised][-count:])


@pytest.mark.parametrize("raised", [SystemExit, KeyboardInterrupt, StopIteration, Odd])
def test_so_it_is_in_a_thread(raised: type[BaseException]) -> None:
    @tool
    def fail() -> str:
        """Fail."""
        raise raised

    async def run() -> None:
        async with ToolEnvironment(DIALECT, [fail]).open_session(TASK) as episode:
            await episode.run_calls([ToolCall("fail", {})], 0)

    with pytest.raises(BrokenToolError, match=f"raised {raised.__name__}"):
        asyncio.run(run())


def test_halves_of_characters_are_replaced_and_pairs_joined() -> None:
    [call] = act(environment(), "a\ud800b\ud83d\ude00")
    assert call.observation == "a\ufffdb\U0001f600"
    DIALECT.encode_observation(call.observation)


def test_an_argument_may_have_any_name() -> None:
    @tool
    async def greet(name: str) -> str:
        """Greet.

        Args:
            name: whom.
        """
        return name

    async def run() -> list[CallRecord]:
        async with ToolEnvironment(DIALECT, [greet]).open_session(TASK) as episode:
            return await episode.run_calls([ToolCall("greet", {"self": 1})], 0)

    [call] = asyncio.run(run())
    assert call.outcome is CallOutcome.MALFORMED
    assert "self" in call.observation
