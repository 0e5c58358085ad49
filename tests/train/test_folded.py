"""Training on folded rollouts: masks, credit, weights, and the same probabilities as sampling."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.concurrency import run_concurrently
from fieldcraft.config.rl import Rl
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.records.chains import concat_ids, split_chains
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.train.advantages import ScoredRollout, StepBatch, compute_advantages
from fieldcraft.train.algorithm import PolicyGradient, StepModels
from fieldcraft.train.batch import SampleUnit, split_micro_batches, to_sample, to_samples
from fieldcraft.train.learner import PolicyLearner, compute_correct_negative_rate
from fieldcraft.types import Author, Segment, Status, Task, Trajectory
from rl_parts import RecordingTrainer
from training_parts import Chatty, FixedTool, chatty_engine, make_trainer

PROMPT = Segment(Author.PROMPT, [1, 2], "")
READ = Segment(Author.TOOL, [7, 8, 9], "")
ASKED = Segment(Author.PROMPT, [4], "")
AGAIN = Segment(Author.PROMPT, [1, 2, 5, 5], "")


def turn(*ids: int) -> Segment:
    return Segment(Author.POLICY, list(ids), "", [-0.5] * len(ids))


def folded(reward: float = 1.0, status: Status = Status.ANSWERED) -> Trajectory:
    """Return a rollout with a call of two tokens, a summary of three, and an answer in a second
    chain.
    """
    task = Task("q", "?", ("x",))
    segments = [PROMPT, turn(3, 3), READ, ASKED, turn(6, 6, 6), AGAIN, turn(11)]
    return Trajectory(task, segments, folds=[5], reward=reward, status=status)


def plain(size: int, reward: float) -> Trajectory:
    task = Task("q", "?", ("x",))
    segments = [PROMPT, turn(*[3] * size)]
    return Trajectory(task, segments, reward=reward, status=Status.ANSWERED)


def rl(**given: Any) -> Rl:
    stage = {
        "type": "rl",
        "steps": 1,
        "optim": {"lr": 1.0},
        "advantage_scale": "none",
        "baseline": "group",
    }
    return Rl.model_validate(stage | given)


def scored(trajectory: Trajectory, reward: float, correct: bool = False) -> ScoredRollout:
    trajectory.reward, trajectory.rewards = reward, {"em": float(correct)}
    return ScoredRollout(trajectory, to_samples(trajectory, {Author.POLICY}))


def assign(groups: list[list[ScoredRollout]], settings: Rl) -> None:
    batch = StepBatch(groups)
    batch.scatter(compute_advantages(batch, settings), "advantage")


def learn(group: list[Trajectory], **settings: Any) -> tuple[Any, RecordingTrainer]:
    trainer: Any = RecordingTrainer()
    learner = PolicyLearner(
        settings=rl(**settings),
        algorithm=PolicyGradient(rl(**settings)),
        models=StepModels(policy=trainer),
        total_tokens=10,
        seed=0,
    )
    return learner.learn([group], 0), trainer


def test_each_chain_is_a_sample_and_its_summary_is_trained() -> None:
    first, second = to_samples(folded(), {Author.POLICY}, advantage=2.0)
    assert first.ids.tolist() == [1, 2, 3, 3, 7, 8, 9, 4, 6, 6, 6]
    assert first.weight.tolist() == [0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1]
    assert second.ids.tolist() == [1, 2, 5, 5, 11]
    assert second.weight.tolist() == [0, 0, 0, 0, 1]
    assert first.advantage.tolist() == [0, 0, 2, 2, 0, 0, 0, 0, 2, 2, 2]
    assert second.advantage.tolist() == [0, 0, 0, 0, 2]
    with pytest.raises(ValueError, match="use to_samples"):
        to_sample(folded(), {Author.POLICY})
    [alone] = to_samples(plain(2, 0.0), {Author.POLICY})
    assert alone.ids.tolist() == to_sample(plain(2, 0.0), {Author.POLICY}).ids.tolist()


def test_the_chains_of_a_rollout_stay_in_one_micro_batch() -> None:
    units = [to_samples(folded(), {Author.POLICY}), to_samples(plain(6, 0.0), {Author.POLICY})]
    batches = list(split_micro_batches(units, max_tokens=16))
    assert [[len(s) for s in batch.samples] for batch in batches] == [[8], [11, 5]]
    # no token attends from one chain to the other
    assert batches[1].runs == [(0, 11, None), (11, 16, None)]


def test_all_chains_share_the_advantage_of_their_rollout() -> None:
    """Rewards 1, 0 and 0.2 have the mean 0.4 over rollouts, not over chains."""
    group = [folded(1.0), plain(2, 0.0), plain(1, 0.2)]
    members = [scored(t, t.reward or 0.0) for t in group]
    assign([members], rl())
    assert members[0].gather("advantage") == pytest.approx([0.6] * 6)
    assert members[1].gather("advantage") == pytest.approx([-0.4] * 2)
    assert compute_correct_negative_rate([scored(folded(), 1.0, correct=True)]) == 0


def test_gae_goes_on_from_chain_to_chain() -> None:
    """The result equals the result for six tokens in one turn."""
    whole, parts = scored(plain(6, 1.0), 1.0), scored(folded(), 1.0)
    values = np.array([0.1, 0.2, 0.3, 0.4, 0.5, 0.6])
    for member in (whole, parts):
        member.scatter(values, "value")
    critic = {"gamma": 0.9, "gae_lambda": 0.8}
    assign([[whole], [parts]], rl(baseline="critic", critic=critic))
    for field in ("advantage", "target"):
        assert parts.gather(field) == pytest.approx(whole.gather(field))
    assert parts.gather("target")[-1] == pytest.approx(1.0)
    # the last token of the first chain: 0.9 * 0.6 - 0.5 + 0.72 * (1 - 0.6)
    assert parts.gather("advantage")[4] == pytest.approx(0.328)


@pytest.mark.parametrize(
    ("loss_weight", "divisor", "weights"),
    [  # six tokens in two chains, and two tokens
        ("sequence", 2, [[1 / 6] * 5, [1 / 6], [1 / 2] * 2]),
        ("token", 8, [[1] * 5, [1], [1] * 2]),
        ("constant", 20, [[1] * 5, [1], [1] * 2]),  # two rollouts of ten tokens
    ],
)
def test_a_rollout_weighs_no_more_because_it_was_folded(
    loss_weight: str, divisor: float, weights: list[list[float]]
) -> None:
    _, trainer = learn([folded(1.0), plain(2, 0.0)], loss_aggregation=loss_weight)
    assert trainer.totals == [divisor]
    found = [sample.weight[sample.weight > 0].tolist() for sample in trainer.samples]
    assert [pytest.approx(part) for part in weights] == found
    # the same tokens in one chain
    _, alone = learn([plain(6, 1.0), plain(2, 0.0)], loss_aggregation=loss_weight)
    assert alone.totals == trainer.totals
    folds, whole = (
        sum(float((s.weight * s.advantage).sum()) for s in t.samples if s.advantage.max() > 0)
        for t in (trainer, alone)
    )
    assert folds == pytest.approx(whole)


def test_advantages_are_kept_along_the_whole_record() -> None:
    learned, _ = learn([folded(1.0), plain(2, 0.0)], loss_aggregation="token")
    folded_tokens, other = learned.tokens[0]
    half = 0.5
    first = [0, 0, half, half, 0, 0, 0, 0, half, half, half]
    assert folded_tokens.advantages.tolist() == [*first, 0, 0, 0, 0, half]
    assert other.advantages.tolist() == [0, 0, -half, -half]


def test_a_truncated_rollout_is_left_out_with_all_its_chains() -> None:
    cut = folded(0.0, Status.TRUNCATED)
    _, trainer = learn([cut, plain(2, 1.0)], train_truncated=False, loss_aggregation="sequence")
    assert trainer.totals == [1]
    assert [len(sample) for sample in trainer.samples] == [4]


# -- with a model -------------------------------------------------------------------------------


@dataclass(frozen=True)
class Folding(Chatty):
    """Dialect for a random model, whose text is followed by the tag when a summary is requested."""

    default_summary_instruction = "Sum up. "


class Summaries:
    """Engine wrapper that appends the tag to a random model's text when a summary is requested.

    The tag was not sampled, so its log-probability marks it as untrained.
    """

    def __init__(self, engine: LocalEngine) -> None:
        self.engine = engine
        self.tag = tiny_tokenizer().encode("</summary>", add_special_tokens=False)

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        done = await self.engine.generate(ids, sampling, session)
        if sampling.stop != ("</summary>",):
            return done
        return replace(
            done,
            ids=[*done.ids, *self.tag],
            logprobs=[*done.logprobs, *[float("-inf")] * len(self.tag)],
            text=f"{done.text}</summary>",
            stop_reason=StopReason.STOP,
        )

    def release(self, session: str) -> None:
        self.engine.release(session)


def folded_rollouts(engine: LocalEngine, count: int = 12) -> list[Trajectory]:
    tokenizer = tiny_tokenizer()
    budget = BudgetConfig.model_validate(
        {
            "max_turn_tokens": 12,
            "max_context_tokens": 300,
            "fold": {"trigger_tokens": 1, "max_folds": 2},
        }
    )
    tool = FixedTool(lambda query: "result 1: Ada Lind was born in Northport.")
    env = ToolEnvironment(Folding(tokenizer, ""), [tool], budget)
    policy = Policy(engine=Summaries(engine))
    jobs = [(Task(str(i), f"Who was born in Northport {i}?", ("x",)), str(i)) for i in range(count)]
    return asyncio.run(run_concurrently(jobs, lambda t, k: run_rollout(t, policy, env, k), count))


def test_what_is_sampled_in_every_chain_is_what_is_trained(tmp_path: Path) -> None:
    """The engine's session continues in the next chain, whose context starts from scratch."""
    trainer = make_trainer(tmp_path)
    engine = chatty_engine(trainer)
    done = folded_rollouts(engine)
    assert [t.error for t in done if t.error] == []
    parts = [len(split_chains(t)) for t in done]
    assert parts.count(3) >= 6, parts
    units: list[SampleUnit] = [to_samples(t, {Author.POLICY}) for t in done]
    units = [tuple(s for s in unit if s.weight.any()) for unit in units]
    trainer.fill_logprobs([unit for unit in units if unit], "old_logp", 1.0)
    for trajectory, unit in zip(done, units, strict=True):
        assert len(unit) in (len(split_chains(trajectory)), len(split_chains(trajectory)) - 1)
        for sample, chain in zip(unit, split_chains(trajectory), strict=False):
            assert sample.ids.tolist() == concat_ids(chain)[: len(sample)]
            spoken = sample.weight > 0
            np.testing.assert_allclose(
                sample.old_logp[spoken], sample.sampled_logp[spoken], rtol=0, atol=1e-3
            )


def test_folded_rollouts_are_the_same_again_and_alone(tmp_path: Path) -> None:
    """Every random choice follows from the seed and the place in the record.

    A run that is resumed before a step therefore samples the same rollouts again.
    """
    trainer = make_trainer(tmp_path)
    together = folded_rollouts(chatty_engine(trainer), count=6)
    again = folded_rollouts(chatty_engine(trainer), count=2)
    for one, other in zip(together, again, strict=False):
        assert (one.ids, one.folds) == (other.ids, other.folds)
    assert len({tuple(t.ids) for t in together}) == 6
