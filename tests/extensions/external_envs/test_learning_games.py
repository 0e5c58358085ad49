"""A tiny model learns text games from a recipe, synchronously and with concurrent sampling."""

from pathlib import Path

import pytest
from learning import STAGE, learn, rises, trained_as_sampled, write_player

import fieldcraft as fc
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.types import Status, UserError

GAME = {"name": "text", "env": "games_parts:Partners", "num_seeds": 8}


@pytest.mark.long
def test_the_reward_of_a_game_rises(tmp_path: Path) -> None:
    rows = learn(tmp_path, GAME)
    rises(rows)
    trained_as_sampled(rows)
    evaluated = list(read_trajectories(tmp_path / "run" / "evaluations" / "rl.jsonl"))
    assert [t.status for t in evaluated] == [Status.ANSWERED] * 4
    assert {t.correct for t in evaluated} == {"environment"}
    again = fc.load(tmp_path / "run").evaluate([t.task for t in evaluated])
    assert again["em"] == sum(t.is_correct is True for t in evaluated) / 4


@pytest.mark.slow
def test_so_it_does_while_it_is_sampled(tmp_path: Path) -> None:
    rows = learn(tmp_path, GAME, **{"async": {"max_staleness": 1}})
    rises(rows, by=0.15)  # the order of asynchronous rollouts, and so the rise, differs each time
    assert max(row["staleness_max"] for row in rows) == 1


def test_an_agent_is_trained_by_games_about_questions(tmp_path: Path) -> None:
    agent = fc.load(write_player(tmp_path / "player", 0)).train(
        [fc.Task(f"q{n}", "abcd"[n], (str(n),)) for n in range(4)],
        {
            "rl": fc.Rl.model_validate(
                STAGE | {"steps": 2, "questions_per_step": 2, "group_size": 4}
            )
        },
        out=tmp_path / "run",
        environment={"name": "text", "env": "games_parts:AsksTask"},
        budget={"max_turn_tokens": 4, "max_context_tokens": 40},
        evaluation={"splits": {"heldout": 2}},
    )
    assert (agent.recipe.verdict_reward, agent.recipe.tools) == ("environment", ())
    assert agent.ask("a").segments[0].text == "a>"


@pytest.mark.long
def test_games_that_fail_do_not_stop_the_others(tmp_path: Path) -> None:
    rows = learn(tmp_path, {**GAME, "env": "games_parts:SometimesRaises", "num_seeds": 4}, steps=2)
    assert [row["status/error"] for row in rows] == [0.25, 0.25]
    assert all("loss" in row for row in rows)


def test_a_game_that_always_fails_stops_the_run(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no board"):
        learn(tmp_path, {**GAME, "env": "games_parts:RaisesInReset"}, steps=2)


@pytest.mark.slow
def test_with_any_seed(tmp_path: Path) -> None:
    for seed in range(3):
        rises(learn(tmp_path / str(seed), GAME, seed))
