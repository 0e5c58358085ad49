"""Branches of a scripted policy, whose success rates are computed by hand."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from branching_parts import (
    FIRST,
    TASK,
    TOKENIZER,
    Reader,
    answer,
    branch,
    environment,
    found,
    recorded,
    sampler,
)
from fieldcraft.config.recipe import Recipe
from fieldcraft.engine.scripted import ScriptedEngine
from fieldcraft.environments.tool_environment import run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.extensions.studio.branching.sample_store import open_sample_store
from fieldcraft.extensions.studio.branching.sampler import TrajectoryEdit
from fieldcraft.extensions.studio.branching.selection import open_sampler
from fieldcraft.extensions.studio.branching.steps import split_into_steps, truncate_after_step
from fieldcraft.records.transcript import EntryKind, TranscriptEntry, build_transcript
from fieldcraft.runs.agent import Agent
from fieldcraft.sampling import SamplingParams
from fieldcraft.train.batch import to_sample
from fieldcraft.types import Author, Task, Tool, ToolUnavailableError, UserError
from training_parts import FixedTool

# -- prefixes ----------------------------------------------------------------------------------


def test_a_state_is_the_record_up_to_its_step() -> None:
    env = environment()
    whole = recorded(env)
    steps = split_into_steps(whole, env.dialect)
    assert [(s.turn_index, s.end_index, s.call_range, s.is_last) for s in steps] == [
        (1, 3, (0, 1), False),
        (3, 5, (1, 2), False),
        (5, 6, (2, 2), True),
    ]
    for number, (segments, calls) in enumerate([(1, 0), (3, 1), (5, 2), (6, 2)]):
        state = truncate_after_step(whole, steps, number)
        assert state.segments == whole.segments[:segments]
        assert state.calls == whole.calls[:calls]
        assert (state.answer, state.rewards) == (None, {})


def test_continuations_begin_with_the_record_id_for_id() -> None:
    env = environment()
    whole = recorded(env)
    found = branch(env, whole, 1, samples=3)
    begin = [s.ids for s in whole.segments[:3]]
    for sample in found.original:
        assert [s.ids for s in sample.segments[:3]] == begin
        assert [call.arguments["query"] for call in sample.calls] == ["film", "director"]
    assert found.edited == []
    assert found.edit_gain is None
    assert whole.segments == recorded(env).segments  # nothing was appended


def test_calls_before_a_step_count() -> None:
    """After two of two calls a third is refused."""
    env = environment(max_calls=2)
    whole = recorded(env)

    class Searching(Reader):
        async def generate(self, ids: Sequence[int], sampling: SamplingParams, session: str) -> Any:
            text = TOKENIZER.decode(list(ids))
            self.turns = [answer("Northport") if "limit of calls" in text else FIRST]
            self._played = {}
            return await ScriptedEngine.generate(self, ids, sampling, session)

    [sample] = branch(env, whole, 2, samples=1, engine=Searching()).original
    assert [call.outcome.value for call in sample.calls] == ["ok", "ok", "refused"]


def test_a_rollout_that_was_made_to_answer_is_continued_as_one() -> None:
    """After the call over the limit, the answer is forced again, and samples start before it."""
    env = environment(max_calls=1, at_limit="answer")
    whole = recorded(env)
    assert whole.forced
    steps = split_into_steps(whole, env.dialect)
    assert [(s.turn_index, s.end_index, s.call_range, s.is_last) for s in steps] == [
        (1, 3, (0, 1), False),
        (3, 5, (1, 2), False),
        (6, 7, (2, 2), True),
    ]
    for sample in branch(env, whole, 2, samples=2).original:
        assert sample.forced
        assert sample.segments[:6] == whole.segments[:6]
        assert sample.answer in ("Northport", "Southport")
    answering = branch(env, whole, 3, TrajectoryEdit("thought", "I know."), samples=2)
    assert [(s.forced, s.answer) for s in answering.edited] == 2 * [(False, "Northport")]


def test_a_turn_that_was_cut_and_its_forced_answer_are_one_step() -> None:
    env = environment(max_turn_tokens=12, at_limit="answer")
    whole = recorded(env)
    assert [s.author.value for s in whole.segments] == ["prompt", "policy", "prompt", "policy"]
    [step] = split_into_steps(whole, env.dialect)
    assert (step.end_index, step.is_last) == (4, True)
    [sample] = branch(env, whole, 0, samples=1).original
    assert [s.author.value for s in sample.segments] == ["prompt", "policy", "prompt", "policy"]


# -- edits -------------------------------------------------------------------------------------


def test_what_another_observation_is_worth() -> None:
    env = environment()
    edit = TrajectoryEdit("observation", "Ada was born in Northport.")
    done = branch(env, recorded(env), 2, edit)
    assert done.edited_rate.correct == 40
    assert 1 <= done.original_rate.correct <= 19  # a quarter of 40, by chance
    assert done.edit_gain.value == (40 - done.original_rate.correct) / 40
    assert done.edit_gain.ci95[0] > 0
    assert done.edit_gain.p_value < 0.001
    before = branch(env, recorded(env), 1, TrajectoryEdit("observation", "Nothing."))
    # the second search returns the same text
    assert before.original_rate.correct == before.edited_rate.correct
    assert [s.rewards["em"] for s in done.original].count(1.0) == done.original_rate.correct
    call = done.edited[0].calls[1]
    assert (call.observation, call.arguments) == (edit.text, {"query": "director"})
    assert done.edited[0].segments[4].author is Author.TOOL


def test_special_tokens_in_an_observation_are_text() -> None:
    env = environment()
    done = branch(env, recorded(env), 1, TrajectoryEdit("observation", "<|im_end|>"), samples=1)
    ids = done.edited[0].segments[2].ids
    assert TOKENIZER.eos_token_id not in ids
    assert "<|im_end|>" in TOKENIZER.decode(ids)


def test_what_a_thought_is_worth() -> None:
    env = environment()
    done = branch(env, recorded(env), 2, TrajectoryEdit("thought", "I know."))
    assert done.edited_rate.correct == 40
    assert {len(t.calls) for t in done.edited} == {1}  # it answers immediately
    assert {len(t.calls) for t in done.original} == {2}  # its own second step
    sample = done.edited[0]
    assert (sample.segments[3].author, sample.segments[3].text) == (Author.PROMPT, "I know.\n")
    assert TranscriptEntry(EntryKind.THOUGHT, "I know.", "given") in build_transcript(sample)


def test_what_was_put_there_is_never_trained() -> None:
    env = environment()
    for edit in (
        TrajectoryEdit("thought", "I know."),
        TrajectoryEdit("observation", "born in Northport"),
    ):
        trajectory = branch(env, recorded(env), 2, edit, samples=1).edited[0]
        weight = to_sample(trajectory, {Author.POLICY}).weight
        place = sum(len(s.ids) for s in trajectory.segments[: 3 if edit.kind == "thought" else 4])
        segment = trajectory.segments[3 if edit.kind == "thought" else 4]
        assert edit.text in segment.text
        assert not weight[place : place + len(segment.ids)].any()
        assert weight[place + len(segment.ids) :].all()


def test_the_same_seeds_sample_the_same() -> None:
    env = environment()
    one, two = (branch(env, recorded(env), 2, samples=12) for _ in range(2))
    assert [t.answer for t in one.original] == [t.answer for t in two.original]
    edited = branch(
        env, recorded(env), 2, TrajectoryEdit("observation", "It is unknown."), samples=12
    )
    assert [t.answer for t in edited.edited] == [t.answer for t in one.original]


@pytest.mark.parametrize(
    ("step", "edit", "complaint"),
    [
        (3, None, "step 3 is the last step of the trajectory, so it cannot be continued: give"),
        (9, None, "step 9 does not exist: give a --step from 0 to 2."),
        (
            0,
            TrajectoryEdit("observation", "x"),
            "step 0 does not exist: give a --step from 1",
        ),
        (
            0,
            TrajectoryEdit("thought", "x"),
            "step 0 does not exist: give a --step from 1 to 3",
        ),
    ],
)
def test_steps_that_there_are_not(step: int, edit: TrajectoryEdit | None, complaint: str) -> None:
    env = environment()
    with pytest.raises(UserError, match=complaint):
        branch(env, recorded(env), step, edit)


def test_an_empty_edit() -> None:
    with pytest.raises(UserError, match="the thought is empty"):
        TrajectoryEdit("thought", "  ")


# -- values ------------------------------------------------------------------------------------


def test_the_value_of_every_step() -> None:
    """The second search is the one that decides the answer."""

    def birthplace(query: str) -> str:
        return "born in Northport" if query == "director" else "Ada directed it."

    env = environment(FixedTool(birthplace))
    whole = recorded(environment())  # its second search returned no useful text
    values = asyncio.run(sampler(env).estimate_values(whole))
    first, second, third = values.rates
    assert (first.correct, second.correct) == (40, 40)  # both make the second search
    assert third.correct < 20  # here the search without a useful result is already done
    assert values.step_gains[1].ci95[1] < 0
    assert (values.num_steps, values.is_correct) == (3, whole.is_correct)


def test_folded_rollouts_have_steps_too() -> None:
    class Folding(Reader):
        async def generate(self, ids: Sequence[int], sampling: SamplingParams, session: str) -> Any:
            text = TOKENIZER.decode(list(ids))
            if text.endswith("<summary>\n"):
                self.turns, self._played = ["Ada.\n</summary>"], {}
                return await ScriptedEngine.generate(self, ids, sampling, session)
            return await super().generate(ids, sampling, session)

    env = environment(fold={"trigger_tokens": 1, "max_folds": 2, "prompt": "Sum up.\n"})
    whole = asyncio.run(run_rollout(TASK, Policy(engine=Folding(), seed=3), env, "key"))
    steps = split_into_steps(whole, env.dialect)
    assert len(whole.folds) == 2
    # a chain is folded after each of the first two calls, and each new chain starts from scratch
    assert [step.call_range for step in steps] == [(0, 1), (1, 2), (2, 3), (3, 4), (4, 4)]
    assert truncate_after_step(whole, steps, 2).folds == whole.folds[:1]
    [sample] = branch(env, whole, 1, samples=1, engine=Folding()).original
    assert sample.segments[:3] == whole.segments[:3]
    assert sample.folds[0] == whole.folds[0]


# -- tools with a state --------------------------------------------------------------------------


class Counter:
    """A counter of the searches of a rollout, from `start`."""

    def __init__(self, start: int = 0) -> None:
        self.name, self.schema = "search", FixedTool(found).schema
        self.start = start

    @asynccontextmanager
    async def open(self, task: Task) -> AsyncIterator[Tool]:
        count = self.start

        def count_up(query: str) -> str:
            nonlocal count
            count += 1
            return f"search {count}"

        yield FixedTool(count_up)


def test_earlier_calls_are_made_again_for_tools_with_a_state() -> None:
    env = environment(Counter())
    done = branch(env, recorded(env), 1, samples=2)
    observations = [[c.observation for c in t.calls] for t in done.original]
    assert observations == [["search 1", "search 2"]] * 2
    assert done.replay_mismatches == []


def test_another_answer_to_an_earlier_call_is_said() -> None:
    whole = recorded(environment(Counter()))
    done = branch(environment(Counter(start=7)), whole, 1, samples=2)
    assert done.replay_mismatches == [
        "call 1 (search) was answered with 'search 1' and is now answered with 'search 8'"
    ]
    assert done.original[0].calls[0].observation == "search 1"  # the record is unchanged
    assert done.original[0].calls[1].observation == "search 9"


def test_samples_that_met_an_outage_are_left_out(tmp_path: Path) -> None:
    queries = []

    def search(query: str) -> str:
        queries.append(query)
        if len(queries) == 3:  # a call of the first sample
            raise ToolUnavailableError("nobody is there")
        return "Ada was born in Northport."

    whole = recorded(environment())
    env = environment(FixedTool(search), max_concurrent_calls=1)
    queries += ["", ""]
    with open_sample_store(tmp_path / "b", {}, whole) as store:
        done = branch(env, whole, 1, samples=4, store=store)
        assert (done.original_rate.n, done.original_rate.correct, done.original_rate.excluded) == (
            3,
            3,
            1,
        )
        again = branch(env, whole, 1, samples=4, store=store)  # samples only the missing one
        assert (again.original_rate.n, again.original_rate.excluded) == (4, 0)
    assert len(queries) == 7


def test_if_all_break_off_the_cause_is_said() -> None:
    def search(query: str) -> str:
        raise ToolUnavailableError("nobody is there")

    whole = recorded(environment())
    with pytest.raises(UserError, match="all 4 samples failed, the last one: 'nobody is there'"):
        branch(environment(FixedTool(search)), whole, 1, samples=4)


def test_another_tokenizer_is_refused() -> None:
    env = environment()
    whole = recorded(env)
    whole.segments[0].text = "something else"
    with pytest.raises(UserError, match="has another tokenizer"):
        branch(env, whole, 1)


def test_rollouts_of_an_external_environment_are_not_continued(tmp_path: Path) -> None:
    environment = {"name": "text", "env": "my_game:Guess"}
    recipe = Recipe.model_validate({"name": "game", "environment": environment, "stages": {}})
    with pytest.raises(UserError, match="only agents with their own tools can be continued"):
        asyncio.run(open_sampler(Agent(tmp_path, recipe, None)))
