"""A step of reinforcement learning: from what was sampled to exactly what is trained on."""

import asyncio
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from checkpoints import tiny_tokenizer
from fieldcraft.algos.losses import Objective, Surrogate
from fieldcraft.config.sections import Limits
from fieldcraft.config.stages import Rl
from fieldcraft.dialects import get_dialect
from fieldcraft.dialects.base import BaseDialect
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.rewards.answers import ExactMatch, StatelessReward
from fieldcraft.rewards.rubric import AskingReward, Rubric
from fieldcraft.rollout.loop import Policy, rollout
from fieldcraft.tools.base import FunctionTool
from fieldcraft.train.batch import Sample, Unit
from fieldcraft.train.stages.rl import RlStage, check_tools, rollout_metrics, surrogate
from fieldcraft.train.stages.sft import draw
from fieldcraft.types import (
    Author,
    Call,
    Completion,
    Outcome,
    Sampling,
    Segment,
    Status,
    Task,
    ToolError,
    Trajectory,
    UserError,
)
from training_parts import (
    Chatty,
    FixedTool,
    assert_same,
    chatty_engine,
    make_trainer,
    never,
    plain_logprobs_of,
    weights,
)

TOKENIZER = tiny_tokenizer()
SEARCH = "<begin_search> Ada </end_search>"
RIGHT = "So.\n</think>\n\n\\boxed{Northport}"
WRONG = "Well, so.\n</think>\n\n\\boxed{Southport}"
TASKS = [Task(str(i), f"Question {i}?", ("Northport",)) for i in range(2)]


class KeyedEngine(ScriptedEngine):
    """A script for every rollout of a step, by its place `question/member`."""

    def __init__(self, scripts: dict[str, Sequence[str]]) -> None:
        super().__init__(TOKENIZER, [])
        self.scripts = scripts
        self.versions = 0

    async def generate(self, ids: Sequence[int], sampling: Sampling, session: str) -> Completion:
        place = session.partition("#")[0].partition("/")[2]
        self.turns = list(self.scripts[place])
        return await super().generate(ids, sampling, session)

    def bump_version(self) -> None:
        self.versions += 1


class RecordingTrainer:
    """Keeps what it is asked to train on."""

    def __init__(self) -> None:
        self.filled: list[tuple[int, str, float]] = []
        self.samples: list[Sample] = []
        self.objective: Objective | None = None
        self.totals: list[float] = []  # of each optimiser step
        self.parts: list[list[Sample]] = []
        self.temperature = 0.0
        self.done = 0

    def fill_logprobs(self, units: Sequence[Unit], field: str, temperature: float) -> None:
        self.filled.append((len(units), field, temperature))

    def step(
        self, units: Sequence[Unit], objective: Objective, total: float, temperature: float
    ) -> dict[str, float]:
        self.samples = [sample for unit in units for sample in unit]
        self.parts.append(self.samples)
        self.totals.append(total)
        self.objective, self.temperature = objective, temperature
        return {"loss": 0.25, "ratio": 0.5}


def stage(
    scripts: dict[str, Sequence[str]],
    answer: Callable[[str], str] = "found {}".format,
    budget: dict[str, int] | None = None,
    reference: Any = None,
    critic: Any = None,
    **settings: Any,
) -> tuple[RlStage, RecordingTrainer, KeyedEngine]:
    given = {"type": "rl", "steps": 9, "questions": 2, "group": 2, "optim": {"lr": 1e-2}}
    trainer, engine = RecordingTrainer(), KeyedEngine(scripts)
    env = ToolEnvironment(
        get_dialect("autocoa", TOKENIZER, ""), [FixedTool(answer)], Limits(**(budget or {}))
    )
    recorder: Any = trainer
    return (
        RlStage(
            settings=Rl.model_validate(given | settings),
            tasks=TASKS,
            env=env,
            engine=engine,
            rubric=Rubric([(ExactMatch(), 1.0)]),
            trainer=recorder,
            reference=reference,
            critic=critic,
            seed=0,
        ),
        trainer,
        engine,
    )


MIXED = {"0/0": [SEARCH, RIGHT], "0/1": [WRONG], "1/0": [WRONG], "1/1": [WRONG]}


class Asked(AskingReward):
    """Accepts what the exact rule does not, and cannot tell about the rest."""

    name = "judge"

    async def ask(self, trajectory: Trajectory) -> float | None:
        return 1.0 if trajectory.answer == "Southport" else None


def written(trajectory_segments: Sequence[str]) -> list[int]:
    """Ids of the policy's turns; the last one ends with the end-of-sequence token."""
    *turns, last = trajectory_segments
    ids = [i for turn in turns for i in TOKENIZER.encode(turn)]
    return [*ids, *TOKENIZER.encode(last), TOKENIZER.eos_token_id]


# -- rewards, advantages, samples ---------------------------------------------------------------


def settings_of(**given: Any) -> Rl:
    return Rl.model_validate({"type": "rl", "steps": 1, "optim": {"lr": 1.0}} | given)


def test_a_judge_is_asked_before_rewards_are_read() -> None:
    rl, _, _ = stage(MIXED)
    rl = replace(rl, rubric=Rubric([(ExactMatch(), 0.0), (Asked(), 1.0)]))
    row = rl.step(0)
    # One of the four answers is Northport, about which this judge has no verdict.
    assert (row["reward_mean"], row["ungradable_rate"], row["em"]) == (1.0, 0.25, 0.25)


@pytest.mark.parametrize(("scale", "size"), [("none", 0.5), ("group", 0.5 / (0.5 + 1e-6))])
def test_rewards_become_the_advantages_of_exactly_these_samples(scale: str, size: float) -> None:
    rl, trainer, engine = stage(MIXED, scale=scale, loss_weight="token")
    row = rl.step(3)
    asked = [TASKS[i].question for i in draw(0, 3, 2, 2)]
    right, wrong = trainer.samples  # the second question's group is equal and left out
    dialect = rl.env.dialect
    prompt = dialect.prompt(asked[0], rl.env.schemas)
    search = TOKENIZER.encode(SEARCH)
    observation = dialect.encode_observation("found Ada")
    end = written([RIGHT])
    assert right.ids.tolist() == [*prompt, *search, *observation, *end]
    mask = [0] * len(prompt) + [1] * len(search) + [0] * len(observation) + [1] * len(end)
    assert right.weight.tolist() == mask
    assert right.advantage.tolist() == pytest.approx([size * m for m in mask])
    assert wrong.ids.tolist() == [*prompt, *written([WRONG])]
    assert wrong.advantage.tolist() == pytest.approx([-size * m for m in wrong.weight.tolist()])
    # what the loss is divided by counts every token of the step
    tokens = len(written([SEARCH, RIGHT])) + 3 * len(written([WRONG]))
    assert trainer.totals == [tokens]
    assert (row["equal_groups"], row["reward_mean"], row["em"]) == (0.5, 0.25, 0.25)
    assert engine.versions == 1


def test_weights_of_sequences_sum_to_one_each() -> None:
    rl, trainer, _ = stage(MIXED, loss_weight="sequence")
    rl.step(0)
    assert [s.weight.sum() for s in trainer.samples] == pytest.approx([1, 1])
    assert trainer.totals == [pytest.approx(4)]
    assert len({w for w in trainer.samples[0].weight.tolist() if w}) == 1
    assert max(trainer.samples[0].advantage) == pytest.approx(1, abs=1e-5)


def test_the_metrics_of_tokens_are_means_over_those_trained_on() -> None:
    rl, trainer, _ = stage(MIXED)
    row = rl.step(0)
    trained = sum(float(sample.weight.sum()) for sample in trainer.samples)
    assert row["loss"] == 0.25
    assert row["ratio"] == pytest.approx(0.5 * trainer.totals[0] / trained)


def test_the_settings_reach_the_objective() -> None:
    class Reference:
        filled: tuple[int, str, float]

        def fill_logprobs(self, units: Sequence[Unit], field: str, temperature: float) -> None:
            self.filled = (len(units), field, temperature)

    reference = Reference()
    settings: dict[str, Any] = {
        **{"ratio": "sequence", "clip_low": 0.1, "clip_high": 0.3, "dual_clip": 4.0},
        **{"kl_coef": 0.01, "entropy_coef": 0.02, "llds_coef": 0.03},
        **{"importance": "sequence", "importance_cap": 1.5},
        **{"reject": "geometric", "reject_low": 0.7, "reject_high": 1.7},
    }
    rl, trainer, _ = stage(MIXED, **settings, epochs=2, temperature=0.8, reference=reference)
    rl.step(0)
    assert trainer.objective == Surrogate(**settings)
    assert surrogate(settings_of(clip="cispo")) == Surrogate(clip="cispo")
    assert surrogate(settings_of(kl_coef=0.1, kl_in="reward")) == Surrogate()
    assert trainer.temperature == 0.8
    # with such terms a group of equal rewards is trained on too
    assert trainer.filled == [(4, "old_logp", 0.8)]
    assert reference.filled == (4, "ref_logp", 0.8)


def test_the_samplers_logprobs_are_trusted_unless_a_cap_is_given() -> None:
    rl, trainer, _ = stage(MIXED)
    rl.step(0)
    assert trainer.filled == []
    assert all((s.old_logp == s.sampled_logp).all() for s in trainer.samples)


def test_equal_groups_train_nothing_and_are_counted() -> None:
    rl, trainer, engine = stage({key: [WRONG] for key in MIXED})
    row = rl.step(0)
    assert trainer.samples == []
    assert (row["equal_groups"], "loss" in row) == (1.0, False)
    assert row["tokens"] > 0
    assert engine.versions == 1  # the next step starts from an empty cache in any case


# -- dynamic sampling ---------------------------------------------------------------------------

RIGHTS = {"0/0": [RIGHT], "0/1": [RIGHT], "1/0": [WRONG], "1/1": [WRONG]}


def test_a_step_is_filled_with_groups_that_teach() -> None:
    """Batch 0 has a group that is all right and one that is all wrong, batch 1 a mixed one, batch 2
    two: one is enough, and no fourth batch is sampled."""
    scripts = {
        **RIGHTS,
        **{"2/0": [RIGHT], "2/1": [WRONG], "3/0": [WRONG], "3/1": [WRONG]},
        **{"4/0": [WRONG], "4/1": [RIGHT], "5/0": [SEARCH, RIGHT], "5/1": [WRONG]},
    }
    rl, trainer, _ = stage(scripts, keep_groups="mixed-accuracy", scale="none", max_batches=4)
    row = rl.step(0)
    assert (row["batches"], row["groups_kept"], row["equal_groups"]) == (3, 2, 0)
    assert [max(s.advantage, key=abs) for s in trainer.samples] == [0.5, -0.5, -0.5, 0.5]
    assert row["em"] == 5 / 12  # of everything that was sampled
    assert row["tokens"] > sum(len(s.ids) for s in trainer.samples)


def test_the_number_of_batches_is_bounded() -> None:
    """Then the step goes on with what there is, be it nothing."""
    scripts = {**RIGHTS, "2/0": [RIGHT], "2/1": [WRONG], "3/0": [WRONG], "3/1": [WRONG]}
    rl, trainer, _ = stage(scripts, keep_groups="mixed-accuracy", max_batches=2)
    row = rl.step(0)
    assert (row["batches"], row["groups_kept"], len(trainer.samples)) == (2, 1, 2)
    rl, trainer, engine = stage(RIGHTS, keep_groups="mixed-accuracy", max_batches=1)
    row = rl.step(0)
    assert (row["batches"], row["groups_kept"], trainer.samples) == (1, 0, [])
    assert engine.versions == 1


def test_no_two_steps_share_a_batch_of_questions(monkeypatch: pytest.MonkeyPatch) -> None:
    places: list[int] = []
    real = draw

    def recorded(seed: int, step: int, size: int, batch: int) -> list[int]:
        places.append(step)
        return real(seed, step, size, batch)

    monkeypatch.setattr("fieldcraft.train.stages.rl.draw", recorded)
    scripts = {**RIGHTS, **{f"{2 + int(k[0])}{k[1:]}": v for k, v in RIGHTS.items()}}
    rl, _, _ = stage(scripts, keep_groups="mixed-accuracy", max_batches=2)
    for number in range(2):
        rl.step(number)
    assert places == [0, 1, 2, 3]


class Thrifty(StatelessReward):
    """Like OTC: right answers differ in their calls."""

    name = "thrifty"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [float(t.answer == "Northport") / (1 + t.executed_calls) for t in group]


@pytest.mark.parametrize(("keep", "kept"), [("mixed-accuracy", 0), ("mixed-reward", 1)])
def test_filters_look_at_accuracy_or_at_the_reward_as_told(keep: str, kept: int) -> None:
    """Trap: the reward differs in a group in which all are right. By accuracy it teaches nothing;
    whoever wants what OTC says about it filters by the reward."""
    scripts = {**RIGHTS, "0/0": [SEARCH, RIGHT]}
    rl, _, _ = stage(scripts, keep_groups=keep, max_batches=1)
    object.__setattr__(rl, "rubric", Rubric([(ExactMatch(), 0.0), (Thrifty(), 1.0)]))
    assert rl.step(0)["groups_kept"] == kept


def test_the_ungradable_make_no_group_mixed() -> None:
    rl, _, _ = stage(MIXED, keep_groups="mixed-accuracy")

    def group(*scores: float | None) -> list[Trajectory]:
        return [Trajectory(TASKS[0], rewards={"em": s}, reward=s) for s in scores]

    assert rl._teaches(group(1.0, None, 0.0))
    assert not rl._teaches(group(1.0, None, 1.0))
    assert not rl._teaches(group(None, 0.0))
    assert not rl._teaches(group(None, None))


# -- what is trained on, and how often ----------------------------------------------------------


def test_truncated_rollouts_can_be_left_out_of_the_loss_but_not_of_the_group() -> None:
    scripts = {**MIXED, "0/1": ["so " * 200]}
    settings: dict[str, Any] = {"budget": {"turn_tokens": 60}, "scale": "none"}
    rl, trainer, _ = stage(scripts, **settings, loss_weight="token")
    assert rl.step(0)["status/truncated"] == 1 / 4
    [whole] = trainer.totals
    _, cut = trainer.samples
    assert cut.weight.sum() == 60
    rl, trainer, _ = stage(scripts, **settings, loss_weight="token", train_truncated=False)
    rl.step(0)
    [only] = trainer.samples
    assert max(only.advantage) == 0.5  # the truncated one is still half of the mean
    assert trainer.totals == [whole - 60]


def test_the_constant_weight_divides_by_what_a_rollout_may_have() -> None:
    rl, trainer, _ = stage(MIXED, algorithm="dr-grpo", budget={"total_tokens": 500})
    rl.step(0)
    assert trainer.totals == [4 * 500]
    assert {w for s in trainer.samples for w in s.weight.tolist()} == {0.0, 1.0}


def test_minibatches_share_the_divisor_and_the_learning_rate() -> None:
    scripts = {key: [RIGHT] if key[-1] == "0" else [WRONG] for key in MIXED}
    rl, trainer, _ = stage(scripts, minibatches=3, epochs=2, loss_weight="token")
    rl.step(8)
    assert [len(part) for part in trainer.parts] == [2, 1, 1, 2, 1, 1]
    dealt = [id(sample) for part in trainer.parts for sample in part]
    assert set(dealt[:4]) == set(dealt[4:])
    assert len(set(dealt)) == 4
    assert dealt[:4] != dealt[4:]
    tokens = sum(float(s.weight.sum()) for part in trainer.parts[:3] for s in part)
    assert trainer.totals == pytest.approx([tokens / 3] * 6)
    assert trainer.done == 8  # a real trainer's place in the schedule, before each step
    again = stage(scripts, minibatches=3, epochs=2, loss_weight="token")
    again[0].step(8)
    assert [[s.ids.tolist() for s in part] for part in again[1].parts] == [
        [s.ids.tolist() for s in part] for part in trainer.parts
    ]


def test_there_are_no_empty_minibatches() -> None:
    rl, trainer, _ = stage(MIXED, minibatches=16)
    row = rl.step(0)
    assert [len(part) for part in trainer.parts] == [1, 1]
    assert row["loss"] == 0.25  # the mean over the optimiser steps


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"algorithm": "ppo"}, "a critic belongs to baseline: critic"),
        ({"critic": object()}, "a critic belongs to baseline: critic"),
        ({"kl_coef": 0.1}, "kl_coef needs a reference"),
        ({"keep_groups": "mixed-accuracy", "accuracy": "f1"}, "looks at the reward 'f1'"),
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
    rl, trainer, _ = stage(scripts, sometimes, group=4, scale="none")
    row = rl.step(0)
    third = 1 / 3  # the mean of 1, 0, 0: the broken one is not graded
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
        rl.step(5)
    assert trainer.samples == []


def test_a_tool_that_sometimes_fails_does_not() -> None:
    def half(query: str) -> str:
        return "found" if query == "Bo" else down(query)

    fine = ["<begin_search> Bo </end_search>", RIGHT]
    scripts = {"0/0": [SEARCH, RIGHT], "0/1": [SEARCH, RIGHT], "1/0": [SEARCH, WRONG], "1/1": fine}
    rl, _, _ = stage(scripts, half, max_tool_failures=0.75)
    assert rl.step(0)["tool_failure_rate"] == 0.75
    rl, _, _ = stage(scripts, half, max_tool_failures=0.74)
    with pytest.raises(UserError, match="3 of the 4 tool calls"):
        rl.step(0)


def test_what_the_policy_wrote_wrongly_is_no_failure_of_the_tool() -> None:
    def failed(tool: str, outcome: Outcome, simulated: bool = False) -> Trajectory:
        call = Call(tool, {}, "", outcome, 0.0, simulated)
        return Trajectory(TASKS[0], calls=[call])

    harmless = [
        failed("", Outcome.MALFORMED),  # no call at all
        failed("searhc", Outcome.MALFORMED),  # no such tool
        failed("search", Outcome.MALFORMED),  # wrong arguments
        failed("search", Outcome.FAILED, simulated=True),
        failed("search", Outcome.REFUSED),
    ]
    check_tools(harmless, 0, 0.5)
    few = [failed("search", Outcome.FAILED), Trajectory(TASKS[0])]  # one call in two rollouts
    check_tools(few, 0, 0.5)
    with pytest.raises(UserError):
        check_tools(few[:1], 0, 0.5)
    mixed = failed("search", Outcome.FAILED)  # nor do malformed calls hide that a tool is down
    mixed.calls += [*harmless[0].calls, *harmless[2].calls]
    with pytest.raises(UserError, match="1 of the 1 tool calls"):
        check_tools([mixed], 0, 0.5)


def test_wrong_arguments_do_not_stop_a_run_and_a_dead_tool_does() -> None:
    """Through the dialect, the environment and a typed tool: what each is told and counted as."""

    def called(arguments: str) -> list[Trajectory]:
        call = f'<tool_call>\n{{"name": "search", "arguments": {arguments}}}\n</tool_call>'
        policy = Policy(engine=ScriptedEngine(TOKENIZER, [call, "\\boxed{Oslo}"]))

        async def search(query: str) -> str:
            """Search.

            Args:
                query: what to look for.
            """
            raise ToolError("no server")

        env = ToolEnvironment(get_dialect("hermes", TOKENIZER), [FunctionTool(search)])
        return [asyncio.run(rollout(TASKS[0], policy, env, "0"))]

    check_tools(called('{"q": "Ada"}'), 0, 0.5)
    check_tools(called('{"query": 3}'), 0, 0.5)
    with pytest.raises(UserError, match="1 of the 1 tool calls of step 4 failed"):
        check_tools(called('{"query": "Ada"}'), 4, 0.5)


def test_a_prompt_without_room_trains_nothing() -> None:
    rl, trainer, _ = stage(MIXED, budget={"total_tokens": 5}, entropy_coef=0.1)
    row = rl.step(0)
    assert row["status/truncated"] == 1
    assert trainer.samples == []


# -- simulated observations ---------------------------------------------------------------------


def test_simulation_calls_no_tool_and_trains_no_observation() -> None:
    dream = " Ada was born in Northport. </search_result>"
    rl, trainer, _ = stage(
        {**MIXED, "0/0": [SEARCH, dream, RIGHT]}, never, observations="simulated"
    )
    row = rl.step(0)
    sample = trainer.samples[0]
    spoken = sample.ids[sample.weight > 0].tolist()
    assert spoken == written([SEARCH, RIGHT])
    block = TOKENIZER.encode("\n\n<search_result>") + TOKENIZER.encode(dream)
    block += TOKENIZER.encode("\n\n")
    inserted = sample.ids[sample.weight == 0].tolist()
    assert inserted[-len(block) :] == block
    assert (sample.advantage[sample.weight == 0] == 0).all()
    assert (row["calls_mean"], row["status/answered"]) == (0.25, 1)


# -- metrics ------------------------------------------------------------------------------------


def test_rates_by_hand() -> None:
    def done(status: Status, reward: float | None, calls: Sequence[Outcome]) -> Trajectory:
        return Trajectory(
            replace(TASKS[0], meta={"calls_optimal": 1, "known": status is Status.ANSWERED}),
            [
                Segment(Author.PROMPT, [1] * 9, ""),
                Segment(Author.POLICY, [1] * 6, "", [-float(reward or 9), *[-0.25] * 4, -math.inf]),
            ],
            [Call("search", {"query": "Ada"}, "", outcome, 0.5) for outcome in calls],
            status,
            well_formed=reward == 1,
            rewards={"em": reward},
            reward=None if reward is None else 2 * reward,
        )

    row = rollout_metrics(
        [
            done(Status.ANSWERED, 1.0, [Outcome.OK, Outcome.FAILED, Outcome.REFUSED]),
            done(Status.TRUNCATED, 0.0, []),
            done(Status.ERROR, None, [Outcome.OK, Outcome.MALFORMED]),
            done(Status.ANSWERED, 0.0, []),
        ]
    )
    assert row == {
        "reward_mean": pytest.approx(2 / 3),
        "em": pytest.approx(1 / 3),
        "correct_logp_mean": -2 / 5,  # of the five tokens of the first whose chance is known
        "calls_mean": 3 / 4,
        "calls_written_mean": 5 / 4,
        "calls_optimal_mean": 1,
        "optimal_rate": 0,  # the only right answer took two
        "needless_calls_mean": 1 / 4,
        "missing_calls_mean": 2 / 4,
        "calls_regret_mean": 3 / 4,
        "tool_productivity": 1 / 3,
        "offloading_rate": 1 / 2,
        "tool_seconds_mean": 5 * 0.5 / 4,
        "call_failed_rate": 1 / 5,
        "call_malformed_rate": 1 / 5,
        "call_refused_rate": 1 / 5,
        "call_duplicate_rate": 1 / 5,
        "policy_tokens_mean": 6,
        "format_rate": 1 / 4,
        "ungradable_rate": 1 / 4,
        "tool_failure_rate": 1 / 5,
        "status/answered": 0.5,
        "status/no_answer": 0,
        "status/truncated": 0.25,
        "status/error": 0.25,
    }


# -- with a real model --------------------------------------------------------------------------


class SaysMuch(StatelessReward):
    """More for a longer answer: nearly every group of a random model differs in it."""

    name = "much"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [float(len(t.ids)) for t in group]


class Same(StatelessReward):
    name = "same"

    def __call__(self, group: Sequence[Trajectory]) -> list[float | None]:
        return [1.0] * len(group)


def real_stage(folder: Path, reward: Any, **settings: Any) -> RlStage:
    trainer = make_trainer(folder, row_length=256)
    given = {"type": "rl", "steps": 9, "questions": 2, "group": 4, "optim": {"lr": 1e-2}}
    dialect: BaseDialect = Chatty(TOKENIZER, "")
    return RlStage(
        settings=Rl.model_validate(given | settings),
        tasks=TASKS,
        env=ToolEnvironment(dialect, [FixedTool("found {}".format)], Limits(turn_tokens=8)),
        engine=chatty_engine(trainer),
        rubric=Rubric([(reward, 1.0)]),
        trainer=trainer,
        reference=None,
        seed=0,
    )


@pytest.mark.parametrize("cap", [None, 2.0])
def test_a_step_on_policy_has_ratio_one_and_moves_the_policy(
    tmp_path: Path, cap: float | None
) -> None:
    rl = real_stage(tmp_path, SaysMuch(), importance_cap=cap)
    for number in range(2):
        before = weights(rl.trainer.model)
        row = rl.step(number)
        assert row["ratio"] == pytest.approx(1, abs=1e-4)
        assert row["sampler_gap"] < 1e-4
        assert row["grad_norm"] > 0
        after = weights(rl.trainer.model)
        assert any((before[name] != after[name]).any() for name in before)


def test_equal_rewards_leave_the_weights_bit_for_bit(tmp_path: Path) -> None:
    rl = real_stage(tmp_path, Same())
    before = weights(rl.trainer.model)
    row = rl.step(0)
    assert_same(before, weights(rl.trainer.model))
    assert row["equal_groups"] == 1


def test_what_is_rewarded_becomes_more_likely(tmp_path: Path) -> None:
    rl = real_stage(tmp_path, SaysMuch())
    rl.trainer.optim = rl.trainer.optim.model_copy(update={"lr": 1e-4})
    seen: list[Sample] = []
    units = rl._units

    def keep(groups: Any) -> Any:
        found = units(groups)
        seen.extend(sample for unit in found[0] for sample in unit)
        return found

    object.__setattr__(rl, "_units", keep)
    rl.step(0)
    gained = 0.0
    for sample in seen:
        spoken = sample.weight[1:] > 0
        now = plain_logprobs_of(rl.trainer.model, sample.ids.tolist()).numpy()
        change = now[spoken] - sample.sampled_logp[1:][spoken]
        gained += float(np.dot(change, sample.advantage[1:][spoken]))
    assert gained > 0
