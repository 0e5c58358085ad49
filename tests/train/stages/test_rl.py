"""One step of reinforcement learning: from sampled rollouts to the exact training samples."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from fieldcraft.config.rl import Rl
from fieldcraft.dialects import make_dialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.monitors import ToolFailureMonitor
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.records.timeline import StepTimes
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.rewards.answers import ExactMatch, F1Reward
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rewards.tool_cost import OtcPpoReward
from fieldcraft.tools.base import FunctionTool
from fieldcraft.train.algorithm import PolicyGradient
from fieldcraft.train.batch import SampleUnit
from fieldcraft.train.epochs import draw_epoch_batch
from fieldcraft.train.losses import LossFunction, PolicyGradientLoss
from fieldcraft.types import (
    CallOutcome,
    CallRecord,
    ToolError,
    Trajectory,
    UserError,
)
from rl_parts import (
    MIXED,
    RIGHT,
    SEARCH,
    TASKS,
    TOKENIZER,
    WRONG,
    FakeJudge,
    graded_by,
    stage,
    written,
)
from training_parts import (
    step,
)

# -- rewards, advantages, samples ---------------------------------------------------------------


def settings_of(**given: Any) -> Rl:
    return Rl.model_validate({"type": "rl", "steps": 1, "optim": {"lr": 1.0}} | given)


def loss_of(**given: Any) -> LossFunction:
    return PolicyGradient(settings_of(**given)).loss()


def test_a_judge_is_asked_before_rewards_are_read() -> None:
    rl, _, _ = stage(MIXED)
    graded_by(rl, ExactMatch(), FakeJudge())
    row = step(rl, 0)
    # One of the four answers is Northport, which this judge cannot grade.
    assert (row["reward_mean"], row["ungradable_rate"], row["em"]) == (1.0, 0.25, 0.25)


@pytest.mark.parametrize(("scale", "size"), [("none", 0.5), ("group", 0.5 / (0.5 + 1e-6))])
def test_rewards_become_the_advantages_of_exactly_these_samples(scale: str, size: float) -> None:
    rl, trainer, engine = stage(MIXED, advantage_scale=scale, loss_aggregation="token")
    row = step(rl, 3)
    questions = [TASKS[i].question for i in draw_epoch_batch(0, 0, 2, 2)]
    right, wrong = trainer.samples  # the second question's group has equal rewards and is left out
    dialect = rl.sampler.env.dialect
    prompt = dialect.encode_prompt(questions[0], rl.sampler.env.schemas)
    search = TOKENIZER.encode(SEARCH)
    observation = dialect.encode_observation("found Ada")
    end = written([RIGHT])
    assert right.ids.tolist() == [*prompt, *search, *observation, *end]
    mask = [0] * len(prompt) + [1] * len(search) + [0] * len(observation) + [1] * len(end)
    assert right.weight.tolist() == mask
    assert right.advantage.tolist() == pytest.approx([size * m for m in mask])
    assert wrong.ids.tolist() == [*prompt, *written([WRONG])]
    assert wrong.advantage.tolist() == pytest.approx([-size * m for m in wrong.weight.tolist()])
    # the loss is divided by the number of all tokens of the step
    tokens = len(written([SEARCH, RIGHT])) + 3 * len(written([WRONG]))
    assert trainer.totals == [tokens]
    assert (row["no_signal_group_rate"], row["reward_mean"], row["em"]) == (0.5, 0.25, 0.25)
    assert (engine.slept, engine.version) == (2, 4)


def test_a_group_that_differs_is_kept_with_the_advantages_of_its_tokens() -> None:
    rl, trainer, _ = stage(
        {**MIXED, "0/0": [WRONG], "1/0": [SEARCH, RIGHT]}, advantage_scale="none"
    )
    found: list[Sequence[TrainingRollout]] = []
    rl.record_rollouts = found.append
    step(rl, 0)
    [[right, wrong]] = found
    assert (right.step, right.trajectory.answer) == (0, "Northport")
    assert [right.advantages, wrong.advantages] == [s.advantage.tolist() for s in trainer.samples]
    assert right.advantages is not None
    assert right.advantages[-1] == 0.5
    assert right.advantages[0] == 0.0  # a prompt token
    ungraded, _, _ = stage(MIXED)
    ungraded.record_rollouts = found.append
    graded_by(ungraded, ExactMatch(), FakeJudge())
    step(ungraded, 8)
    assert [rollout.advantages is None for rollout in found[-1]] == [True, False]


def test_a_step_notes_who_was_at_work() -> None:
    rl, _, _ = stage({**MIXED, "0/0": [WRONG], "1/0": [SEARCH, RIGHT]})
    found: list[StepTimes] = []
    rl.record_times = found.append
    step(rl, 3)
    [times] = found
    assert times.step == 3
    assert [name for name, _, _ in times.trainer] == ["wait", "train", "publish"]
    edges = [edge for _, begin, end in times.trainer for edge in (begin, end)]
    assert edges == sorted(edges)
    assert sum(times.sampler) > 0


def test_weights_of_sequences_sum_to_one_each() -> None:
    rl, trainer, _ = stage(MIXED, loss_aggregation="sequence")
    step(rl, 0)
    assert [s.weight.sum() for s in trainer.samples] == pytest.approx([1, 1])
    assert trainer.totals == [pytest.approx(4)]
    assert len({w for w in trainer.samples[0].weight.tolist() if w}) == 1
    assert max(trainer.samples[0].advantage) == pytest.approx(1, abs=1e-5)


def test_the_metrics_of_tokens_are_means_over_those_trained_on() -> None:
    rl, trainer, _ = stage(MIXED)
    row = step(rl, 0)
    trained = sum(float(sample.weight.sum()) for sample in trainer.samples)
    assert row["loss"] == 0.25
    assert row["ratio_mean"] == pytest.approx(0.5 * trainer.totals[0] / trained)


def test_the_settings_reach_the_objective() -> None:
    class Reference:
        filled: tuple[int, str, float]

        def fill_logprobs(
            self, units: Sequence[SampleUnit], field: str, temperature: float
        ) -> None:
            self.filled = (len(units), field, temperature)

    reference = Reference()
    same: dict[str, Any] = {
        **{"clip_low": 0.1, "clip_high": 0.3, "dual_clip": 4.0},
        **{"kl_coef": 0.01, "entropy_coef": 0.02, "llds_coef": 0.03},
    }
    settings = same | {
        **{"ratio_level": "sequence", "sampler_is_level": "sequence", "sampler_is_cap": 1.5},
        **{"sampler_reject": "geometric", "sampler_reject_low": 0.7, "sampler_reject_high": 1.7},
    }
    objective = PolicyGradientLoss(
        **same,
        **{"ratio": "sequence", "importance": "sequence", "importance_cap": 1.5},
        **{"reject": "geometric", "reject_low": 0.7, "reject_high": 1.7},
    )
    rl, trainer, _ = stage(MIXED, **settings, epochs=2, temperature=0.8, reference=reference)
    step(rl, 0)
    assert trainer.objective == objective
    assert loss_of(clip_mode="cispo") == PolicyGradientLoss(clip="cispo")
    assert loss_of(kl_coef=0.1, kl_placement="reward") == PolicyGradientLoss()
    assert trainer.temperature == 0.8
    # with such terms a group of equal rewards is also trained on
    assert trainer.filled == [(4, "old_logp", 0.8)]
    assert reference.filled == (4, "ref_logp", 0.8)


def test_the_samplers_logprobs_are_trusted_unless_a_cap_is_given() -> None:
    rl, trainer, _ = stage(MIXED)
    step(rl, 0)
    assert trainer.filled == []
    assert all((s.old_logp == s.sampled_logp).all() for s in trainer.samples)


def test_equal_groups_train_nothing_and_are_counted() -> None:
    rl, trainer, engine = stage({key: [WRONG] for key in MIXED})
    row = step(rl, 0)
    assert trainer.samples == []
    assert (row["no_signal_group_rate"], "loss" in row) == (1.0, False)
    assert row["tokens"] > 0
    assert (engine.slept, engine.version) == (2, 1)  # the next step starts from an empty cache


# -- training samples and mini-batches ----------------------------------------------------------


def test_truncated_rollouts_can_be_left_out_of_the_loss_but_not_of_the_group() -> None:
    scripts = {**MIXED, "0/1": ["so " * 200]}
    settings: dict[str, Any] = {"budget": {"max_turn_tokens": 60}, "advantage_scale": "none"}
    rl, trainer, _ = stage(scripts, **settings, loss_aggregation="token")
    assert step(rl, 0)["status/truncated"] == 1 / 4
    [whole] = trainer.totals
    _, cut = trainer.samples
    assert cut.weight.sum() == 60
    rl, trainer, _ = stage(scripts, **settings, loss_aggregation="token", train_truncated=False)
    step(rl, 0)
    [only] = trainer.samples
    assert max(only.advantage) == 0.5  # the truncated rollout still counts in the mean
    assert trainer.totals == [whole - 60]


def test_the_constant_weight_divides_by_what_a_rollout_may_have() -> None:
    rl, trainer, _ = stage(MIXED, algorithm="dr-grpo", budget={"max_context_tokens": 500})
    step(rl, 0)
    assert trainer.totals == [4 * 500]
    assert {w for s in trainer.samples for w in s.weight.tolist()} == {0.0, 1.0}


def test_minibatches_share_the_divisor_and_the_learning_rate() -> None:
    scripts = {key: [RIGHT] if key[-1] == "0" else [WRONG] for key in MIXED}
    rl, trainer, _ = stage(scripts, minibatches=3, epochs=2, loss_aggregation="token")
    step(rl, 8)
    assert [len(part) for part in trainer.parts] == [2, 1, 1, 2, 1, 1]
    sample_ids = [id(sample) for part in trainer.parts for sample in part]
    assert set(sample_ids[:4]) == set(sample_ids[4:])
    assert len(set(sample_ids)) == 4
    assert sample_ids[:4] != sample_ids[4:]
    tokens = sum(float(s.weight.sum()) for part in trainer.parts[:3] for s in part)
    assert trainer.totals == pytest.approx([tokens / 3] * 6)
    assert trainer.done == 8  # a real trainer's position in the schedule, before each step
    again = stage(scripts, minibatches=3, epochs=2, loss_aggregation="token")
    step(again[0], 8)
    assert [[s.ids.tolist() for s in part] for part in again[1].parts] == [
        [s.ids.tolist() for s in part] for part in trainer.parts
    ]


def test_there_are_no_empty_minibatches() -> None:
    rl, trainer, _ = stage(MIXED, minibatches=16)
    row = step(rl, 0)
    assert [len(part) for part in trainer.parts] == [1, 1]
    assert row["loss"] == 0.25  # the mean over the optimiser steps


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "ppo"}, "needed are critic, and made were none"),
        ({"critic": object()}, "needed are none, and made were critic"),
        ({"kl_coef": 0.1}, "needed are reference, and made were none"),
        (
            {"group_filter": "accuracy", "rubric": Rubric([(F1Reward(), 1.0)])},
            "uses the reward 'em'",
        ),
    ],
)
def test_what_a_stage_lacks_is_named(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        stage(MIXED, **settings)


# -- failures -----------------------------------------------------------------------------------


def test_an_exception_ends_only_its_trajectory_and_is_no_zero() -> None:
    def sometimes(query: str) -> str:
        if query == "Ada":
            raise ZeroDivisionError("a defect")
        return "fine"

    scripts = {
        **{"0/0": [SEARCH], "0/1": [RIGHT], "0/2": [WRONG], "0/3": [WRONG]},
        **{f"1/{i}": [WRONG] for i in range(4)},
    }
    rl, trainer, _ = stage(scripts, sometimes, group_size=4, advantage_scale="none")
    row = step(rl, 0)
    third = 1 / 3  # the mean of 1, 0, 0: the failed one is not graded
    assert [max(s.advantage, key=abs) for s in trainer.samples] == pytest.approx(
        [1 - third, -third, -third]
    )
    assert (row["status/error"], row["ungradable_rate"]) == (1 / 8, 1 / 8)
    assert (row["status/answered"], row["em"]) == (7 / 8, 1 / 7)


def down(query: str) -> str:
    raise ToolError("no server")


def test_a_tool_that_never_answers_stops_the_run() -> None:
    rl, trainer, _ = stage({key: [SEARCH, RIGHT] for key in MIXED}, down)
    with pytest.raises(UserError, match="4 of the 4 tool calls of step 5 failed"):
        step(rl, 5)
    assert trainer.samples == []


def test_a_tool_that_sometimes_fails_does_not() -> None:
    def half(query: str) -> str:
        return "found" if query == "Bo" else down(query)

    fine = ["<begin_search> Bo </end_search>", RIGHT]
    scripts = {"0/0": [SEARCH, RIGHT], "0/1": [SEARCH, RIGHT], "1/0": [SEARCH, WRONG], "1/1": fine}
    rl, _, _ = stage(scripts, half, max_tool_failure_rate=0.75)
    assert step(rl, 0)["tool_failure_rate"] == 0.75
    rl, _, _ = stage(scripts, half, max_tool_failure_rate=0.74)
    with pytest.raises(UserError, match="3 of the 4 tool calls"):
        step(rl, 0)


def check_tools(trajectories: Sequence[Trajectory], number: int, most: float) -> None:
    ToolFailureMonitor(most).add_step(trajectories, number)


def test_what_the_policy_wrote_wrongly_is_no_failure_of_the_tool() -> None:
    def failed(tool: str, outcome: CallOutcome, simulated: bool = False) -> Trajectory:
        call = CallRecord(tool, {}, "", outcome, 0.0, simulated)
        return Trajectory(TASKS[0], calls=[call])

    harmless = [
        failed("", CallOutcome.MALFORMED),  # not a call
        failed("searhc", CallOutcome.MALFORMED),  # unknown tool
        failed("search", CallOutcome.MALFORMED),  # wrong arguments
        failed("search", CallOutcome.FAILED, simulated=True),
        failed("search", CallOutcome.REFUSED),
    ]
    check_tools(harmless, 0, 0.5)
    few = [failed("search", CallOutcome.FAILED), Trajectory(TASKS[0])]  # one call in two rollouts
    check_tools(few, 0, 0.5)
    with pytest.raises(UserError):
        check_tools(few[:1], 0, 0.5)
    mixed = failed("search", CallOutcome.FAILED)  # malformed calls do not hide it
    mixed.calls += [*harmless[0].calls, *harmless[2].calls]
    with pytest.raises(UserError, match="1 of the 1 tool calls"):
        check_tools([mixed], 0, 0.5)


def test_wrong_arguments_do_not_stop_a_run_and_a_dead_tool_does() -> None:
    """Wrong arguments and an unavailable tool pass through the dialect, the environment and a typed
    tool, and each has its message and its count.
    """

    def called(arguments: str) -> list[Trajectory]:
        call = f'<tool_call>\n{{"name": "search", "arguments": {arguments}}}\n</tool_call>'
        policy = Policy(engine=ScriptedEngine(TOKENIZER, [call, "\\boxed{Oslo}"]))

        async def search(query: str) -> str:
            """Search.

            Args:
                query: what to look for.
            """
            raise ToolError("no server")

        env = ToolEnvironment(make_dialect("hermes", TOKENIZER), [FunctionTool(search)])
        return [asyncio.run(run_rollout(TASKS[0], policy, env, "0"))]

    check_tools(called('{"q": "Ada"}'), 0, 0.5)
    check_tools(called('{"query": 3}'), 0, 0.5)
    with pytest.raises(UserError, match="1 of the 1 tool calls of step 4 failed"):
        check_tools(called('{"query": "Ada"}'), 4, 0.5)


def test_a_prompt_without_room_trains_nothing() -> None:
    rl, trainer, _ = stage(MIXED, budget={"max_context_tokens": 5}, entropy_coef=0.1)
    row = step(rl, 0)
    assert row["status/truncated"] == 1
    assert trainer.samples == []


# -- additions for code agents ------------------------------------------------------------------


def test_void_turns_are_left_out_of_training_but_not_of_their_group() -> None:
    scripts = {**MIXED, "0/1": ["I do not know."]}  # neither a call nor an answer
    rl, trainer, _ = stage(scripts, loss_aggregation="token", train_void=False)
    step(rl, 0)
    [right] = trainer.samples
    assert max(right.advantage.tolist()) == pytest.approx(0.5 / (0.5 + 1e-6))
    with_void, other, _ = stage(scripts, loss_aggregation="token")
    step(with_void, 0)
    assert len(other.samples) == 2


def test_the_share_of_right_rollouts_that_a_price_turns_against() -> None:
    """One of three correct rollouts made a needless call, and its advantage is negative."""
    scripts = {"0/0": [RIGHT], "0/1": [SEARCH, RIGHT], "1/0": [RIGHT], "1/1": [WRONG]}
    shares = []
    for floor in ("none", "correct"):
        rl, _, _ = stage(scripts, advantage_scale="none", advantage_floor=floor)
        graded_by(rl, ExactMatch(), OtcPpoReward(Doubled(), 4.0))
        shares.append(step(rl, 0)["correct_negative_rate"])
    assert shares == [pytest.approx(1 / 3), 0]


class Doubled(ExactMatch):
    """Exact match under another name, so that a rubric can contain both."""

    name = "doubled"
