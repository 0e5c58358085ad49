"""Tokens sampled in a game are the tokens trained, with equal probabilities."""

import asyncio

from learning import TEMPLATE

from bandit import letters, small_model
from fieldcraft.config.sections import BudgetConfig, Optim
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.environments.base import isolate_failures
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.external_envs.games import TextEnvironment
from fieldcraft.train.losses import PolicyGradientLoss
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Author, Trajectory
from training_parts import assert_agree

GAME = TextEnvironment("games_parts:Partners")
LIMITS = BudgetConfig(max_turn_tokens=4, max_context_tokens=40, max_calls=2)


def rollouts(engine: LocalEngine, seed: int) -> list[Trajectory]:
    tokenizer = letters()
    tokenizer.chat_template = TEMPLATE
    policy = Policy(engine=engine, temperature=0.7, seed=seed)
    tasks, _ = GAME.tasks(0)

    async def all_of_them() -> list[Trajectory]:
        async with isolate_failures(GAME, make_dialect("autocoa", tokenizer), LIMITS) as runner:
            return await asyncio.gather(*(runner.run(task, policy, task.id) for task in tasks[:64]))

    return asyncio.run(all_of_them())


def test_engine_and_trainer_agree_about_games() -> None:
    model = small_model()
    trainer = Trainer(model, Optim(lr=1e-2), 10)
    engine = LocalEngine(model, letters(), max_num_seqs=64)
    done = rollouts(engine, 0)
    both = [t for t in done if [s.author for s in t.segments].count(Author.POLICY) == 2]
    assert both
    units = assert_agree(trainer, both, 0.7)
    total = sum(float(sample.weight.sum()) for (sample,) in units)
    row = trainer.step(units, PolicyGradientLoss(), total, 0.7)
    assert row["sampler_logp_diff"] < 1e-4
    asyncio.run(engine.update_weights(1))
    versions = {v for t in rollouts(engine, 0) for s in t.segments for v, _ in s.versions}
    assert versions == {1}


def test_a_rollout_follows_from_its_key_and_the_seed() -> None:
    engine = LocalEngine(small_model(), letters(), max_num_seqs=64)
    first, second = rollouts(engine, 0), rollouts(engine, 0)
    assert [t.ids for t in first] == [t.ids for t in second]
    assert [t.ids for t in rollouts(engine, 1)] != [t.ids for t in first]
