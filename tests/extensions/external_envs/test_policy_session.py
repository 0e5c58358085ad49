"""The policy session of one rollout, and traces read with the turns sampled in it."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from bandit import letters
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.engine.base import Engine
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.base import EnvironmentContractError
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.generate_api import GenerateRequest, RequestRejectedError
from fieldcraft.extensions.external_envs.policy_session import PolicySession, SampledTurn
from fieldcraft.extensions.external_envs.verifiers import TraceReader
from fieldcraft.records.chains import validate_folds
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.types import Author, Task, Trajectory

TOKENIZER = letters()
LIMITS = BudgetConfig(max_turn_tokens=4, max_context_tokens=8)


def ids(text: str) -> list[int]:
    return [0 if c == "." else TOKENIZER.convert_tokens_to_ids(c) for c in text]


def line(engine: Engine) -> PolicySession:
    return PolicySession(Policy(engine=engine, temperature=0.7), TOKENIZER, LIMITS, "s", "k")


def ask(text: str, **params: Any) -> GenerateRequest:
    return GenerateRequest.model_validate({"token_ids": ids(text), "sampling_params": params})


class Noting(ScriptedEngine):
    """An engine that records its sampling parameters."""

    def __init__(self, turns: Sequence[str]) -> None:
        super().__init__(TOKENIZER, turns)
        self.noted: list[SamplingParams] = []

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        self.noted.append(sampling)
        return await super().generate(ids, sampling, session)


def test_the_run_says_how_a_line_is_sampled() -> None:
    engine = Noting(["0", "1", "2"])
    own = line(engine)

    async def three() -> None:
        for text in ("a", "abcdab", "a"):
            await own.generate(ask(text, temperature=1.5, seed=3, max_tokens=3))

    asyncio.run(three())
    assert [s.max_tokens for s in engine.noted] == [3, 2, 3]  # by the program, and by the budget
    assert {s.temperature for s in engine.noted} == {0.7}
    assert len({s.seed for s in engine.noted}) == 3
    assert [list(make_turn.prompt_ids) for make_turn in own.turns] == [
        ids("a"),
        ids("abcdab"),
        ids("a"),
    ]
    assert not own.budget_exhausted


def test_a_budget_that_is_used_up_is_told() -> None:
    cut = line(Noting(["0123"]))
    asyncio.run(cut.generate(ask("a")))
    assert cut.budget_exhausted
    own_limit = line(Noting(["0123"]))
    asyncio.run(own_limit.generate(ask("a", max_tokens=2)))
    assert not own_limit.budget_exhausted
    without_room = line(Noting(["0"]))
    with pytest.raises(RequestRejectedError, match="context length of 8 tokens"):
        asyncio.run(without_room.generate(ask("abcdabcd")))
    assert without_room.budget_exhausted


def test_what_the_engine_raises_is_kept() -> None:
    broken = line(Noting([]))
    with pytest.raises(IndexError):
        asyncio.run(broken.generate(ask("a")))
    assert isinstance(broken.failure, IndexError)


class Pausing(ScriptedEngine):
    """An engine whose sessions sample one turn at a time, each until `resume` is set."""

    def __init__(self, turns: Sequence[str]) -> None:
        super().__init__(TOKENIZER, turns)
        self.busy: set[str] = set()
        self.sessions: list[str] = []
        self.released: list[str] = []
        self.resume = asyncio.Event()

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        if session in self.busy:
            raise RuntimeError("already generating")
        self.busy.add(session)
        self.sessions.append(session)
        await self.resume.wait()
        self.busy.remove(session)
        return await super().generate(ids, sampling, session)

    def release(self, session: str) -> None:
        self.released.append(session)


def test_agents_of_one_rollout_may_sample_at_the_same_time() -> None:
    async def sample() -> tuple[Pausing, PolicySession]:
        engine = Pausing(["0", "1", "2", "3"])
        own = line(engine)
        requests = [asyncio.create_task(own.generate(ask("a"))) for _ in range(3)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        engine.resume.set()
        await asyncio.gather(*requests)
        await own.generate(ask("a"))
        return engine, own

    engine, own = asyncio.run(sample())
    first, second, third, fourth = engine.sessions
    assert (first, fourth) == ("s", "s")
    assert sorted(engine.released) == sorted({second, third} - {"s"})
    assert len({first, second, third}) == 3
    assert (len(own.turns), own.failure) == (4, None)


def test_a_client_that_hangs_up_may_ask_again() -> None:
    async def ask_again() -> None:
        engine = Pausing(["0", "1"])
        own = line(engine)
        late = asyncio.create_task(own.generate(ask("a")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        late.cancel()
        await asyncio.wait([late])
        again = asyncio.create_task(own.generate(ask("a")))
        await asyncio.sleep(0)
        engine.resume.set()
        await again
        assert own.failure is None

    asyncio.run(ask_again())


def test_who_hangs_up_ends_what_is_being_sampled() -> None:
    class Waiting(ScriptedEngine):
        async def generate(self, *_: Any) -> Completion:
            await asyncio.Event().wait()
            raise AssertionError

    async def hang_up() -> None:
        own = line(Waiting(TOKENIZER, []))
        request = asyncio.create_task(own.generate(ask("a")))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        await own.cancel()
        with pytest.raises(RequestRejectedError, match="the rollout is over"):
            await request

    asyncio.run(hang_up())


# -- traces --------------------------------------------------------------------------------------


def make_turn(read: str, wrote: str, version: int = 0) -> SampledTurn:
    logprobs = [-0.5 - i for i in range(len(wrote))]
    done = Completion(ids(wrote), logprobs, wrote, StopReason.EOS, [(version, len(wrote))])
    return SampledTurn(ids(read), done)


def node(prompt: str, sampled: str = "") -> dict[str, Any]:
    mask = [False] * len(prompt) + [True] * len(sampled)
    own = {"ids": ids(prompt + sampled), "mask": mask, "text": sampled, "sampled": bool(sampled)}
    return own | {"parent": None, "calls": {}, "result_of": None}


def read(trace: dict[str, Any], *whole: SampledTurn) -> Trajectory:
    trajectory = Trajectory(Task("t", "?", ()))
    TraceReader(whole, TOKENIZER).append_trace(trajectory, trace)
    validate_folds(trajectory)
    return trajectory


def list_segments(trajectory: Trajectory) -> list[tuple[Author, list[int]]]:
    return [(segment.author, segment.ids) for segment in trajectory.segments]


def test_the_nodes_of_a_path_are_the_segments_of_a_chain() -> None:
    trace = {
        "nodes": [node("a"), node(">", "0."), node("b"), node("b>", "1.")],
        "branches": [[0, 1, 2, 3]],
    }
    done = read(trace, make_turn("a>", "0."), make_turn("a>0.bb>", "1.", version=2))
    assert list_segments(done) == [
        (Author.PROMPT, ids("a>")),
        (Author.POLICY, ids("0.")),
        (Author.TOOL, ids("bb>")),
        (Author.POLICY, ids("1.")),
    ]
    assert [s.logprobs for s in done.segments] == [[], [-0.5, -1.5], [], [-0.5, -1.5]]
    assert [s.versions for s in done.segments] == [[], [(0, 2)], [], [(2, 2)]]


def test_what_two_paths_share_is_trained_once() -> None:
    """One answer with two continuations; the second path ends with a message that is never
    answered."""
    trace = {
        "nodes": [node("a>", "0."), node("b>", "1."), node("c>", "2."), node("d")],
        "branches": [[0, 1], [0, 2, 3]],
    }
    done = read(trace, make_turn("a>", "0."), make_turn("a>0.b>", "1."), make_turn("a>0.c>", "2."))
    assert list_segments(done) == [
        (Author.PROMPT, ids("a>")),
        (Author.POLICY, ids("0.")),
        (Author.TOOL, ids("b>")),
        (Author.POLICY, ids("1.")),
        (Author.PROMPT, ids("a>0.c>")),
        (Author.POLICY, ids("2.")),
    ]
    assert done.folds == [4]


def test_tokens_that_nobody_sampled_there_are_refused() -> None:
    trace = {"nodes": [node("a>", "0.")], "branches": [[0]]}
    with pytest.raises(EnvironmentContractError, match="did not sample there"):
        read(trace, make_turn("b>", "0."))
    with pytest.raises(EnvironmentContractError, match="did not sample there"):
        read(trace, make_turn("a>", "1."))


def message(parent: int | None, text: str, **given: Any) -> dict[str, Any]:
    """Return a message of the policy for calls by id, and the result of a call for `result_of`."""
    return node(*("", text) if "calls" in given else (text,)) | {"parent": parent} | given


def test_calls_with_a_result_are_recorded() -> None:
    """Ids may repeat in later turns. A result that is repeated, a call without one, and a call that
    the policy did not sample do not count."""
    nodes = [
        message(None, "a"),
        message(0, "0.", calls={"0": ["find", '{"x": 1}'], "1": ["look", "free text"]}),
        message(1, "b", result_of="1", result="it is free"),
        message(2, "b", result_of="0", result="one"),
        message(3, "1.", calls={"0": ["find", '{"x": 2}'], "1": ["lost", "{}"]}),
        message(4, "b", result_of="0", result="two"),
        message(2, "b", result_of="0", result="one again"),
        message(6, "2.", calls={"0": ["given", "{}"]}) | {"sampled": False},
        message(7, "b", result_of="0", result="given"),
        message(8, "b", result_of="none", result="of no call"),
    ]
    calls = read({"nodes": nodes, "branches": []}).calls
    assert [(c.tool, c.arguments, c.observation) for c in calls] == [
        ("look", {"input": "free text"}, "it is free"),
        ("find", {"x": 1}, "one"),
        ("find", {"x": 2}, "two"),
    ]
