"""OpenEnv's client against an OpenEnv server on the loopback interface."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("openenv")

from learning import TEMPLATE, learn, rises, trained_as_sampled
from openenv.core.env_server import Action, Environment, Observation, State, create_fastapi_app

from bandit import letters
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.base import isolate_failures
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.openenv import OpenEnvEnvironment
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Author, Status, Trajectory, UserError

LIMITS = BudgetConfig(max_turn_tokens=4, max_context_tokens=40, max_calls=2)
PARTNERS = {"a": "0", "b": "3", "c": "1", "d": "2"}
SESSIONS = 4


class Named(Action):
    message: str


class LetterObservation(Observation):
    letter: str = ""
    left: int = 0


class Partners(Environment[Named, LetterObservation, State]):
    """An environment that shows two letters in succession; the partner of each must be named."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(
        self, seed: int | None = None, episode_id: str | None = None, **kwargs: Any
    ) -> LetterObservation:
        self.asked = ["abcd"[(seed or 0) % 4], "abcd"[((seed or 0) + 1) % 4]]
        return LetterObservation(letter=self.asked[0], left=2)

    def step(
        self, action: Named, timeout_s: float | None = None, **kwargs: Any
    ) -> LetterObservation:
        if action.message == "?":
            raise RuntimeError("no such letter")
        right = action.message == PARTNERS[self.asked.pop(0)]
        letter = self.asked[0] if self.asked else ""
        return LetterObservation(
            letter=letter, left=len(self.asked), reward=0.5 * right, done=not self.asked
        )

    @property
    def state(self) -> State:
        return State()


@pytest.fixture
def url() -> Iterator[str]:
    app = create_fastapi_app(Partners, Named, LetterObservation, max_concurrent_envs=SESSIONS)
    with serve_in_thread(app) as url:
        yield url


def run_scripted(
    environment: OpenEnvEnvironment, turns: list[str], rollouts: int = 1
) -> list[Trajectory]:
    tokenizer = letters()
    tokenizer.chat_template = TEMPLATE
    policy = Policy(engine=ScriptedEngine(tokenizer, turns))
    tasks, _ = environment.tasks(0)

    async def all_of_them() -> list[Trajectory]:
        async with isolate_failures(environment, make_dialect("autocoa", tokenizer), LIMITS) as go:
            jobs = (go.run(tasks[0], policy, f"k{i}") for i in range(rollouts))
            return await asyncio.gather(*jobs)

    return asyncio.run(all_of_them())


def test_fields_of_actions_and_observations_are_text(url: str) -> None:
    [done] = run_scripted(OpenEnvEnvironment(url, observation="letter"), ["0", "3"])
    assert [(s.author, s.text) for s in done.segments] == [
        (Author.PROMPT, "a>"),
        (Author.POLICY, "0<end>"),
        (Author.TOOL, "b>"),
        (Author.POLICY, "3<end>"),
    ]
    assert (done.status, done.rewards) == (Status.ANSWERED, {"environment": 1.0})


def test_without_a_field_the_policy_reads_all_of_them(url: str) -> None:
    [done] = run_scripted(OpenEnvEnvironment(url), ["0", "3"])
    assert done.calls[0].observation == '{"letter": "b", "left": 1}'


def test_more_rollouts_than_the_server_has_sessions_wait(url: str) -> None:
    environment = OpenEnvEnvironment(url, observation="letter", sessions=SESSIONS)
    done = run_scripted(environment, ["0", "3"], 3 * SESSIONS)
    assert [t.rewards for t in done] == [{"environment": 1.0}] * 3 * SESSIONS


def test_a_server_that_raises_ends_one_rollout(url: str) -> None:
    environment = OpenEnvEnvironment(url, observation="letter")
    [bad] = run_scripted(environment, ["?"])
    assert bad.status is Status.ERROR
    assert "no such letter" in bad.error
    assert run_scripted(environment, ["0", "3"])[0].status is Status.ANSWERED


def test_a_field_that_is_not_there_is_named(url: str) -> None:
    [bad] = run_scripted(OpenEnvEnvironment(url, observation="word"), ["0"])
    assert "no field 'word', only letter, left" in bad.error


def test_no_server_is_a_sentence() -> None:
    with pytest.raises(UserError, match="does not answer"):
        run_scripted(OpenEnvEnvironment("http://127.0.0.1:1"), ["0"])


def test_a_server_that_dies_ends_its_rollouts() -> None:
    app = create_fastapi_app(Partners, Named, LetterObservation)
    environment = OpenEnvEnvironment("", observation="letter")
    tokenizer = letters()
    tokenizer.chat_template = TEMPLATE
    policy = Policy(engine=ScriptedEngine(tokenizer, ["0", "3"]))
    [task], _ = OpenEnvEnvironment("", num_seeds=1).tasks(0)

    async def before_and_after() -> list[Trajectory]:
        server = serve_in_thread(app)
        environment.url = server.__enter__()
        async with isolate_failures(environment, make_dialect("autocoa", tokenizer), LIMITS) as go:
            before = await go.run(task, policy, "k0")
            await asyncio.to_thread(server.__exit__, None, None, None)
            return [before, await go.run(task, policy, "k1"), await go.run(task, policy, "k2")]

    before, *after = asyncio.run(before_and_after())
    assert before.status is Status.ANSWERED
    assert [t.status for t in after] == [Status.ERROR] * 2


def choice(url: str) -> dict[str, Any]:
    """Return a recipe's environment section with as many games as the text environment has."""
    settings = {"observation": "letter", "sessions": SESSIONS, "num_seeds": 8}
    return {"name": "openenv", "url": url, **settings}


@pytest.mark.slow
def test_the_reward_rises(url: str, tmp_path: Any) -> None:
    rows = learn(tmp_path, choice(url))
    rises(rows)
    trained_as_sampled(rows)


@pytest.mark.slow
def test_with_any_seed(url: str, tmp_path: Any) -> None:
    for seed in range(3):
        rises(learn(tmp_path / str(seed), choice(url), seed))
