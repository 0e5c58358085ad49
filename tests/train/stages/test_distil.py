"""On-policy distillation: prompts of the teacher, scores of tokens, and the resulting training."""

from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch

from bandit import LIMITS, TASKS, small_model
from distil_parts import KINDS, Fixed, Ungradable, distil, good_teacher, scripted, settings, taught
from fieldcraft.dialects import make_dialect
from fieldcraft.environments.tool_environment import ToolEnvironment
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.train.batch import Sample, SampleUnit, get_teacher_view, to_sample
from fieldcraft.train.stages.base import StepMetrics
from fieldcraft.train.teacher import TeacherScorer, make_privileged_prompt, make_privileged_question
from fieldcraft.train.trainer import Trainer
from fieldcraft.types import Author, Segment, Status, Task, Trajectory, UserError
from rl_parts import RIGHT, SEARCH, TOKENIZER, WRONG, written
from training_parts import FixedTool, assert_same, step, weights

# -- settings -------------------------------------------------------------------------------------


def test_tokens_count_alike_and_rewards_are_not_trained_on_unless_told() -> None:
    s = settings()
    assert (s.kind, s.loss_aggregation, s.baseline, s.advantage_scale) == (
        "rl",
        "token",
        "group",
        "none",
    )
    assert (s.kl, s.reward_weight) == ("sampled", 0)
    assert settings(algorithm="grpo").advantage_scale == "group"


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"teacher": {}}, "no teacher is set: set stage or checkpoint, or, for"),
        ({"teacher": {"stage": "a", "checkpoint": "b"}}, "remove one of them"),
        ({"teacher": {"privileged": "hint"}}, "must be 'answer' or 'plan', not 'hint'"),
        ({"teacher": {"stag": "a"}}, "did you mean 'stages.distil.teacher.stage'?"),
        ({"teacher": {"stage": "sft"}}, "reads the model of 'sft', which does not come before it"),
        ({"kl": "top-k"}, "kl: top-k and top_k need each other"),
        ({"top_k": 5}, "kl: top-k and top_k need each other"),
        ({"kl_rollouts": "wrong"}, "must be 'all' or 'incorrect', not 'wrong'"),
        ({"reward_weight": -1}, "must be 0.0 or more, not -1"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UserError) as error:
        settings(**given)
    assert sentence in str(error.value)
    assert str(error.value).count(". ") == 0


# -- prompts of the teacher -----------------------------------------------------------------------


def test_a_teacher_that_knows_more_reads_the_same_tokens_after_another_prompt() -> None:
    def prompt(task: Task) -> list[int]:
        return [1, 2, 3, int(task.answers[0])]

    trajectory = Trajectory(
        Task("t", "?", ("9",)),
        [
            Segment(Author.PROMPT, [5, 6], ""),
            Segment(Author.POLICY, [20, 21], "", [-1.0, -2.0]),
            Segment(Author.TOOL, [30, 31, 32], ""),
            Segment(Author.POLICY, [22], "", [-3.0]),
            Segment(Author.TOOL, [33], ""),
        ],
    )
    model = Fixed()
    teacher = TeacherScorer(model=model, make_prompt=prompt)
    sample = to_sample(trajectory, {Author.POLICY})
    sample.teacher_view = teacher.make_teacher_view(trajectory, sample)
    teacher.fill_logprobs([(sample,)], 1.0)
    [seen] = model.read
    assert seen.ids.tolist() == [1, 2, 3, 9, 20, 21, 30, 31, 32, 22]
    assert seen.weight.tolist() == [0, 0, 0, 0, 1, 1, 0, 0, 0, 1]
    # at the positions of the student's tokens, and 0 at the observation
    assert sample.ids.tolist() == [5, 6, 20, 21, 30, 31, 32, 22]
    assert sample.teacher_logp.tolist() == [0, 0, -0.5, -0.75, 0, 0, 0, -1.0]


def test_a_model_scores_what_it_is_shown_as_a_plain_forward_does() -> None:
    model = small_model(3)
    trainer = Trainer(model, settings().optim, 1)
    trajectory = Trajectory(
        TASKS[0],
        [Segment(Author.PROMPT, [2, 3], ""), Segment(Author.POLICY, [6, 7, 0], "", [-1.0] * 3)],
    )
    teacher = TeacherScorer(model=trainer, make_prompt=lambda task: [4, 4, 5])
    sample = to_sample(trajectory, {Author.POLICY})
    sample.teacher_view = teacher.make_teacher_view(trajectory, sample)
    with torch.no_grad():
        plain = model(torch.tensor([[4, 4, 5, 6, 7, 0]])).logits[0, 2:-1] / 0.5
    logits = trainer.predict([get_teacher_view(sample)], 0.5).compute_logits(slice(None))
    torch.testing.assert_close(logits, plain, rtol=0, atol=1e-5)
    teacher.fill_logprobs([(sample,)], 0.5)
    expected = plain.log_softmax(-1)[torch.arange(3), torch.tensor([6, 7, 0])]
    assert sample.teacher_logp.tolist() == pytest.approx([0, 0, *expected.tolist()], abs=1e-5)


def test_what_is_shown_follows_the_question_as_plain_text() -> None:
    task = Task("t", "Who? ", ("<|endoftext|>", "Kalo"))
    env = ToolEnvironment(make_dialect("autocoa", TOKENIZER, ""), [FixedTool(str)], LIMITS)
    prompts = {
        privileged: make_privileged_prompt(
            make_privileged_question(privileged, lambda task: "First, search."), env
        )(task)
        for privileged in ("answer", "plan")
    }
    bare = TOKENIZER.decode(env.dialect.encode_prompt("Who?", env.schemas))
    hints = {
        "answer": "Who?\n\n(For reference, the answer is: <|endoftext|>)",
        "plan": "Who?\n\n(For reference, a way to the answer is:\nFirst, search.)",
    }
    for privileged, ids in prompts.items():
        assert TOKENIZER.decode(ids) == bare.replace("Who?", hints[privileged])
    special = set(TOKENIZER.all_special_ids)
    assert [i for i in prompts["answer"] if i in special] == [
        i for i in env.dialect.encode_prompt("Who?", env.schemas) if i in special
    ]


def test_a_task_without_an_answer_cannot_be_shown_one() -> None:
    with pytest.raises(UserError, match=r"task 't' has no answer for the teacher's prompt"):
        make_privileged_question("answer", str)(Task("t", "?", ()))


# -- advantages -----------------------------------------------------------------------------------


def test_the_log_ratio_is_the_advantage_of_a_token_and_an_observation_has_none() -> None:
    """The script was certain (log-probability 0) and the teacher was less certain."""
    stage, trainer = scripted(Rubric([(ExactMatch(), 1.0)]))
    row = step(stage, 0)
    assert len(trainer.samples) == 4  # groups of equal reward are included
    sample = trainer.samples[0]
    turns = [len(TOKENIZER.encode(SEARCH)), len(written([RIGHT]))]
    spoken = sample.weight > 0
    assert spoken.sum() == sum(turns)
    assert sample.advantage[spoken].tolist() == pytest.approx(np.linspace(-0.5, -1, sum(turns)))
    assert not sample.advantage[~spoken].any()
    assert row["teacher_kl"] == pytest.approx(0.75)
    assert trainer.totals == [sum(turns) + 3 * len(written([WRONG]))]


def test_rewards_are_added_with_their_weight() -> None:
    stage, trainer = scripted(Rubric([(ExactMatch(), 1.0)]), reward_weight=4.0)
    step(stage, 0)
    by_reward = {"right": 4 * 0.5, "wrong": -4 * 0.5, "equal": 0.0}
    first = [float(sample.advantage[sample.weight > 0][0]) for sample in trainer.samples]
    assert first == pytest.approx(
        [by_reward[group] - 0.5 for group in ("right", "wrong", "equal", "equal")]
    )


@pytest.mark.parametrize(("weight", "trained"), [(0.0, 4), (1.0, 0)])
def test_what_cannot_be_graded_is_learnt_from_where_no_reward_is(
    weight: float, trained: int
) -> None:
    stage, trainer = scripted(
        Rubric([(ExactMatch(), 0.0), (Ungradable(), 1.0)]), reward_weight=weight
    )
    step(stage, 0)
    assert len(trainer.samples) == trained


def test_a_rollout_that_failed_before_its_first_token_is_not_trained_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage, trainer = scripted(Rubric([(ExactMatch(), 1.0)]))
    run, number = ToolEnvironment.run, count()

    async def fail_once(env: ToolEnvironment, task: Task, policy: Any, key: str) -> Trajectory:
        if next(number) == 0:
            return Trajectory(task, status=Status.ERROR, error="an external program ended")
        return await run(env, task, policy, key)

    monkeypatch.setattr(ToolEnvironment, "run", fail_once)
    step(stage, 0)
    assert len(trainer.samples) == 3


# -- learning -------------------------------------------------------------------------------------


@pytest.mark.parametrize("rollouts", ["all", "incorrect"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_student_becomes_like_its_teacher_without_a_reward(kind: str, rollouts: str) -> None:
    stage = distil(good_teacher(), kl_rollouts=rollouts, **KINDS[kind])
    rows = [step(stage, number) for number in range(20)]
    assert rows[0]["em"] < 0.4
    assert sum(row["em"] for row in rows[-5:]) / 5 > 0.8
    assert rows[0]["teacher_kl"] > 0.5
    assert rows[-1]["teacher_kl"] < rows[0]["teacher_kl"] / 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_teacher_like_the_student_leaves_the_weights_bit_for_bit(kind: str) -> None:
    """With a cap the trainer computes both scores of a sampled token, so no rounding differences
    remain. The KL over several words has the trainer's scores anyway."""
    cap: dict[str, Any] = {"sampler_is_cap": 2.0} if kind == "sampled" else {}
    stage = distil(small_model(1), **cap, **KINDS[kind])
    before = weights(stage.trainer.model)
    row = step(stage, 0)
    assert (row["loss"], row["teacher_kl"], row["grad_norm"]) == (0, 0, 0)
    assert_same(before, weights(stage.trainer.model))


def test_what_a_simulator_wrote_is_not_scored(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated text is sampled too and has log-probabilities."""
    stage = distil(good_teacher(), observations="simulated")
    trained: list[Sample] = []

    def keep(units: Sequence[SampleUnit], *_: Any, **__: Any) -> StepMetrics:
        trained.extend(sample for unit in units for sample in unit)
        return {"loss": 0.0}

    monkeypatch.setattr(stage.trainer, "step", keep)
    step(stage, 0)
    simulated = [(s.sampled_logp != 0) & (s.weight == 0) for s in trained]
    assert any(places.any() for places in simulated)
    for sample in trained:
        assert not sample.advantage[sample.weight == 0].any()
        assert sample.advantage[sample.weight > 0].all()


def test_the_teacher_stays_as_it_is() -> None:
    teacher = good_teacher()
    stage = distil(teacher, kl="full")
    step(stage, 0)
    assert_same(weights(teacher), taught())


def timeless(row: StepMetrics) -> StepMetrics:
    """Remove the entries that depend on a clock."""
    return {name: value for name, value in row.items() if "seconds" not in name}


@pytest.mark.parametrize("kind", KINDS)
def test_a_stage_goes_on_where_it_was(kind: str) -> None:
    """Four steps equal two steps, then a new stage with the saved state and two more steps."""
    case = KINDS[kind] | {"reward_weight": 0.5, "minibatches": 2}
    whole, first, second = (distil(good_teacher(), **case) for _ in range(3))
    rows = [timeless(step(whole, number)) for number in range(4)]
    for number in range(2):
        step(first, number)
    second.trainer.model.load_state_dict(first.trainer.model.state_dict())
    second.trainer.load_state_dict(first.trainer.state_dict())
    second.load_state_dict(first.state_dict())
    assert [timeless(step(second, number)) for number in (2, 3)] == rows[2:]
    assert_same(weights(whole.trainer.model), weights(second.trainer.model))


def test_micro_batches_change_nothing() -> None:
    """The teacher's logits are aligned with the student's for every split of a step."""
    losses = []
    for micro_tokens in (16, 4096):
        stage = distil(
            good_teacher(), kl="full", optim={"lr": 1e-3, "micro_batch_tokens": micro_tokens}
        )
        losses.append(step(stage, 0)["loss"])
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
