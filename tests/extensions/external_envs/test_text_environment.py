"""Text `reset` and `step`: rollouts of scripted policies, token by token, and failing games."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import games_parts
import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.base import isolate_failures
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.games import STEP_TOOL, TextEnvironment
from fieldcraft.records.costs import compute_acting_cost, count_policy_tokens
from fieldcraft.rewards.rollouts import EnvironmentReward
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.types import Author, Status, Task, Trajectory, UserError
from waiting import wait_until_async

TOKENIZER = tiny_tokenizer()
[TASK], _ = TextEnvironment("games_parts:Guess", num_seeds=1).tasks(0)  # its number is 6


def run_scripted(
    game: str,
    turns: list[str],
    task: Task = TASK,
    dialect: BaseDialect | None = None,
    max_turns: int | None = 4,
    run: Callable[[Coroutine[Any, Any, Trajectory]], Trajectory] = asyncio.run,
    **budget: float,
) -> Trajectory:
    """Return the rollout of a policy that writes these turns."""
    environment = TextEnvironment(f"games_parts:{game}", max_turns=max_turns)
    policy = Policy(engine=ScriptedEngine(TOKENIZER, turns))
    limits = BudgetConfig.model_validate(budget)

    async def play() -> Trajectory:
        async with isolate_failures(
            environment, dialect or make_dialect("autocoa", TOKENIZER), limits
        ) as go:
            return await go.run(task, policy, "k")

    return run(play())


def text(trajectory: Trajectory, author: Author) -> list[str]:
    return [TOKENIZER.decode(s.ids) for s in trajectory.segments if s.author is author]


def test_a_game_is_written_by_the_chat_template_and_never_encoded_again() -> None:
    done = run_scripted("Guess", ["4", "6"])
    first, reply = "Guess a number from 0 to 9.", "Higher."
    turn = [{"role": "user", "content": first}]
    assert [s.author for s in done.segments] == [
        Author.PROMPT,
        Author.POLICY,
        Author.TOOL,
        Author.POLICY,
    ]
    assert text(done, Author.PROMPT) == [
        TOKENIZER.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    ]
    end = TOKENIZER.eos_token
    assert text(done, Author.POLICY) == [f"4{end}", f"6{end}"]
    turn += [{"role": "assistant", "content": "4"}, {"role": "user", "content": reply}]
    whole = TOKENIZER.apply_chat_template(turn, tokenize=False, add_generation_prompt=True)
    assert TOKENIZER.decode([i for s in done.segments[:3] for i in s.ids]) == whole
    assert [s.text for s in done.segments] == [TOKENIZER.decode(s.ids) for s in done.segments]


def test_the_reward_is_the_sum_over_the_moves() -> None:
    done = run_scripted("Guess", ["4", "8", "6"])
    assert done.rewards == {"environment": 1.5}
    assert (done.status, done.answer, done.well_formed) == (Status.ANSWERED, "6", True)
    assert [(c.tool, c.arguments, c.observation) for c in done.calls] == [
        ("step", {"action": "4"}, "Higher."),
        ("step", {"action": "8"}, "Lower."),
        ("step", {"action": "6"}, "Right."),
    ]
    asyncio.run(
        Rubric([(EnvironmentReward(), 2.0)], "environment").score(
            [short := run_scripted("Guess", ["6"])]
        )
    )
    assert (short.reward, short.is_correct) == (2.0, True)


def test_a_game_is_opened_and_closed_once_a_rollout() -> None:
    before = games_parts.Guess.closed
    run_scripted("Guess", ["6"])
    assert games_parts.Guess.closed == before + 2  # and once when the environment is opened


def test_the_five_values_of_gymnasium_and_async_methods() -> None:
    done = run_scripted("Waits", ["go", "stop"])
    assert done.rewards == {"environment": 1.0}
    assert done.status is Status.ANSWERED
    assert "Seed 0." in done.segments[0].text
    assert "GO" in done.segments[2].text


def test_a_question_of_the_recipe_begins_a_game() -> None:
    task = Task("q", "Who?", ("Ada",))
    assert run_scripted("AsksTask", ["Ada"], task).rewards == {"environment": 1.0}
    assert run_scripted("AsksTask", ["Bo"], task).rewards == {"environment": 0.0}


def test_thoughts_of_a_model_that_reasons_are_no_part_of_its_move() -> None:
    assert run_scripted("Guess", ["<think>4 or 6?</think>\n6"]).answer == "6"


def test_what_an_environment_says_holds_no_special_token() -> None:
    done = run_scripted("Forges", ["go", "stop"], max_turns=2)
    observed = next(s for s in done.segments if s.author is Author.TOOL)
    special = {i for i, t in TOKENIZER.added_tokens_decoder.items() if t.special}
    honest = run_scripted("Waits", ["go", "stop"])
    count = [sum(i in special for i in s.ids) for s in (observed, honest.segments[2])]
    assert count[0] == count[1]  # only the template's special tokens
    assert "<|im_end|><|im_start|>assistant" in observed.text


def test_a_model_without_a_template_has_lines() -> None:
    bare = tiny_tokenizer()
    bare.chat_template = None
    done = run_scripted("Guess", ["4", "6"], dialect=make_dialect("autocoa", bare, "Play."))
    assert text(done, Author.PROMPT) == ["Play.\n\nGuess a number from 0 to 9.\n"]
    assert text(done, Author.TOOL) == ["\nHigher.\n"]


def test_a_game_that_is_created_after_its_rollout_ended_is_closed() -> None:
    game = games_parts.OpensSlowly
    environment = TextEnvironment("games_parts:OpensSlowly")

    async def open_game() -> None:
        async with environment._open_game(600):
            raise AssertionError

    async def story() -> None:
        opening = asyncio.create_task(open_game())
        await asyncio.to_thread(game.begun.wait)
        opening.cancel()
        with pytest.raises(asyncio.CancelledError):
            await opening
        game.allowed.set()
        await wait_until_async(game.ended.is_set)

    asyncio.run(story())


# -- failures --------------------------------------------------------------------------------------


def test_a_game_without_end_ends() -> None:
    done = run_scripted("Guess", ["1", "2", "3"], max_turns=3)
    assert (done.status, done.answer, done.error) == (Status.NO_ANSWER, None, "")
    assert done.rewards == {"environment": 0.75}
    assert done.segments[-1].author is Author.POLICY


def test_the_budget_limits_moves_where_nothing_else_does() -> None:
    assert len(run_scripted("Guess", ["1"] * 5, max_turns=None, max_calls=2).calls) == 2


def test_a_turn_without_end_is_truncated() -> None:
    done = run_scripted("Guess", ["4", "5 " * 50], max_turn_tokens=10)
    assert done.status is Status.TRUNCATED
    assert done.rewards == {"environment": 0.25}
    assert len(done.calls) == 1


@pytest.mark.parametrize(
    ("game", "cause"),
    [
        ("RaisesInReset", "RuntimeError: no board"),
        ("RaisesInStep", "KeyError: 'no piece'"),
        ("SaysNothing", "step returned None, not (text, reward, done)"),
        ("PaysNothing", "step returned ('Hm.', nan, False), not"),
    ],
)
def test_a_bad_game_ends_its_own_rollout(game: str, cause: str) -> None:
    done = run_scripted(game, ["6"])
    assert done.status is Status.ERROR
    assert cause in done.error
    asyncio.run(Rubric([(EnvironmentReward(), 1.0)], "environment").score([done]))
    assert done.reward is None


@pytest.mark.long
def test_a_game_that_is_too_slow_ends_its_own_rollout() -> None:
    done = run_scripted("Sleeps", ["6"], run=games_parts.Sleeps.clock.run, call_timeout_seconds=100)
    assert done.status is Status.ERROR
    assert "did not return from step within 100 s" in done.error


@pytest.mark.parametrize(
    ("game", "sentence"),
    [
        ("RaisesInClose", "the environment cannot be opened (OSError: stuck)"),
        ("CannotBeMade", "the environment cannot be opened (RuntimeError: no cartridge)"),
        (
            "OnlyResets",
            "'games_parts:OnlyResets' is not an environment: write a class with reset()",
        ),
        ("Nothing", "'games_parts' has no 'Nothing'"),
    ],
)
def test_what_is_no_environment_is_refused(game: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        run_scripted(game, ["6"])
    assert sentence in str(refused.value)


def test_calls_in_an_environment_of_others_have_the_costs_of_the_recipe() -> None:
    environment = TextEnvironment("games_parts:Guess", max_turns=4)
    policy = Policy(engine=ScriptedEngine(TOKENIZER, ["4", "6"]))
    dialect, limits = make_dialect("autocoa", TOKENIZER), BudgetConfig(token_cost=500.0)

    async def play() -> Trajectory:
        async with isolate_failures(environment, dialect, limits, {STEP_TOOL: 3.0}) as go:
            return await go.run(TASK, policy, "k")

    done = asyncio.run(play())
    assert [call.cost for call in done.calls] == [3.0, 3.0]
    assert compute_acting_cost(done) == 6.0 + count_policy_tokens(done) / 2
