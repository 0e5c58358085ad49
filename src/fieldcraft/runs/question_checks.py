"""Checks of the questions of a recipe: their tools, gold answers, and budgets of rollouts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence

from fieldcraft.config.components import BUILTIN_COMPONENTS, RUBRIC, ComponentKind
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.data.gold_forms import AnswerForm, detect_form, make_plausible_variants
from fieldcraft.dialects.folding import check_fold_budget
from fieldcraft.dialects.tool_names import ToolNameMap, get_offered_names
from fieldcraft.engine.sizes import get_max_positions, get_rope_length_limit
from fieldcraft.environments.termination import count_reserved_tokens
from fieldcraft.rewards.answers import ExactMatch
from fieldcraft.rewards.grading import (
    GRADED_BY_META,
    JUDGE,
    MATH,
    UNREFERENCED_GRADERS,
    resolve_reward_name,
)
from fieldcraft.rewards.verdict import grade_verdicts
from fieldcraft.runs.build import make_verdict_reward
from fieldcraft.runs.event_loop import run_async
from fieldcraft.runs.examples import round_trip_answer
from fieldcraft.runs.setup import EXPENSIVE_GRADERS, CheckContext, CheckReport, PlaceholderReward
from fieldcraft.runs.sources import CheckWarning
from fieldcraft.types import DEFAULT_VERDICT_REWARD, Dialect, Reward, Task, Trajectory, UserError

TEXT_GRADERS = (DEFAULT_VERDICT_REWARD, "cover_em")  # graders that compare texts
SAMPLE_QUESTIONS = 3  # questions whose plausible answers are graded


# -- tools and gold answers


def check_dialect(context: CheckContext, report: CheckReport) -> None:
    """Check that questions only use tools of the recipe."""
    name, reason = context.dialect_choice.name, context.dialect_choice.why
    report.note(f"{name}, because {reason} (dialect=)" if reason else name)
    names = {schema["function"]["name"] for schema in context.schemas}
    for task in context.tasks:
        if unknown := {*(get_offered_names(task) or ())} - names:
            raise UserError(
                f"the question '{task.id}' offers the tool '{min(unknown)}', which the recipe does"
                " not have: add it to tools."
            )


def check_gold_answers(context: CheckContext, report: CheckReport) -> None:
    """Check that every task has the data for its grader, and that the grader is available. A gold
    answer that is rendered by the dialect and parsed back must score 1."""
    graders = [resolve_reward_name(context.recipe.verdict_reward, task) for task in context.tasks]
    counts = Counter(graders)
    if counts.keys() != {DEFAULT_VERDICT_REWARD}:
        report.note(*(f"{count} graded by {name}" for name, count in counts.most_common()))
    if counts[JUDGE] and context.judge is None:
        report.error(
            f"{counts[JUDGE]} of {len(context.tasks)} questions are graded by a judge, but none is"
            " configured: set judge.url and judge.model, or give the questions accepted answers."
        )
    if counts[RUBRIC] and not context.recipe.rubric:
        report.error(
            f"{counts[RUBRIC]} of {len(context.tasks)} questions are graded by the reward 'rubric',"
            " which has no criteria: name them in the section rubric."
        )
    pairs = zip(context.tasks, graders, strict=True)
    if ungradable := [pair for pair in pairs if not _is_gradable(*pair)]:
        task, grader = ungradable[0]
        report.error(
            f"{len(ungradable)} of {len(context.tasks)} questions, such as task '{task.id}', have"
            f" nothing that the reward '{grader}' grades by: set verdict_reward=auto, which follows"
            " what each has, or remove them."
        )
    answered = [task for task in context.tasks if task.answers]
    unscorable = [task for task in answered if not any(_score_gold_answers(context.dialect, task))]
    report.note(f"{len(answered) - len(unscorable)} of {len(answered)} score 1")
    if unscorable:
        report.error(
            f"{len(unscorable)} of {len(answered)} questions can never be graded correct, because"
            f" their gold answers do not round-trip through the dialect '{context.dialect.name}',"
            f" such as {unscorable[0].answers[0]!r} of task '{unscorable[0].id}': remove or rewrite"
            " them."
        )


def _is_gradable(task: Task, grader: str) -> bool:
    """Return whether a task has the data required by a reward; for user-defined rewards this is
    unknown."""
    if grader in GRADED_BY_META:
        return GRADED_BY_META[grader] in task.meta
    return (
        bool(task.answers)
        or grader in UNREFERENCED_GRADERS
        or grader not in BUILTIN_COMPONENTS[ComponentKind.REWARD]
    )


def _score_gold_answers(dialect: Dialect, task: Task) -> Iterator[bool]:
    for gold in task.answers:
        answered = Trajectory(task, answer=round_trip_answer(dialect, gold))
        yield ExactMatch()([answered]) == [1.0]


def check_answer_forms(context: CheckContext, report: CheckReport) -> None:
    """Note which answers look like more than plain text, with a suitable reward, and the scores of
    a few plausible correct answers. None of this is an error, because any text may be an answer."""
    graders = {
        task.id: resolve_reward_name(context.recipe.verdict_reward, task) for task in context.tasks
    }
    compared = [task for task in context.tasks if task.answers and graders[task.id] in TEXT_GRADERS]
    forms = defaultdict[AnswerForm, list[Task]](list)
    for task in compared:
        if (form := detect_form(task.answers[0])) is not None:
            forms[form].append(task)
    for form, tasks in forms.items():
        report.note(
            CheckWarning(
                f"{len(tasks)} of {len(compared)} look like {form.name}, such as"
                f" {tasks[0].answers[0]!r} of '{tasks[0].id}': {form.advice}"
            )
        )
    first = [tasks[0] for tasks in forms.values()]
    others = [t for t in context.tasks if t.answers and graders[t.id] in (*TEXT_GRADERS, MATH)]
    sample = list({task.id: task for task in (*first, *others)}.values())[:SAMPLE_QUESTIONS]
    if sample:
        verdict_reward = make_verdict_reward(
            context.recipe, *map(PlaceholderReward, EXPENSIVE_GRADERS)
        )
        for task in sample:
            report.note(_score_plausible_answers(verdict_reward, task, graders[task.id]))


def _score_plausible_answers(verdict_reward: Reward, task: Task, grader: str) -> str:
    """Return the scores of plausible answers to a question."""
    answers = make_plausible_variants(task.answers[0])
    attempts = [Trajectory(task, answer=answer) for answer in answers]
    run_async(grade_verdicts(verdict_reward, attempts))
    correct = [t.answer or "" for t in attempts if t.is_correct]
    wrong = [t.answer or "" for t in attempts if not t.is_correct]
    return (
        f"{grader} of {task.answers[0]!r}: 1 for {_join_reprs(correct)}; 0 for {_join_reprs(wrong)}"
    )


def _join_reprs(texts: Sequence[str]) -> str:
    return ", ".join(map(repr, texts)) or "none"


# -- budgets


def collect_budgets(recipe: Recipe) -> Mapping[str, BudgetConfig]:
    """Return the distinct budgets of a recipe, by their keys."""
    found = {"budget": recipe.budget}
    if (evaluated := recipe.evaluation_recipe.budget) != recipe.budget:
        found["evaluation.budget"] = evaluated
    for name, stage in recipe.stages.items():
        for number, phase in enumerate(stage.budget_periods(recipe.budget)):
            if phase.budget not in found.values():
                found[f"stages.{name}.budget.{number}"] = phase.budget
    return found


def check_budgets(context: CheckContext, report: CheckReport) -> None:
    """Check that the model's context fits a whole rollout, and that a rollout has room for more
    than a prompt."""
    check_positions(context, report)
    longest = max(context.tasks, key=lambda task: len(task.question))
    prompt = len(
        context.dialect.encode_prompt(
            longest.question, ToolNameMap(longest, context.schemas).schemas
        )
    )
    turns, room_for = (2, "a search and an answer") if context.schemas else (1, "an answer")
    totals = []
    for key, budget in collect_budgets(context.recipe).items():
        reserved = count_reserved_tokens(context.dialect, budget)
        report.error(*check_fold_budget(key, budget, context.dialect, prompt, reserved))
        if budget.max_context_tokens not in totals:
            totals.append(budget.max_context_tokens)
        if prompt + turns * budget.max_turn_tokens + reserved > budget.max_context_tokens:
            reserve_note = (
                f", in addition to {reserved} reserved for an answer," if reserved else ""
            )
            report.error(
                f"the prompt of task '{longest.id}' has {prompt} tokens, which leaves no room for"
                f" {room_for} of {budget.max_turn_tokens} "
                f"tokens{' each' if turns > 1 else ''}{reserve_note}"
                f" within {key}.max_context_tokens={budget.max_context_tokens}: raise it."
            )
    report.note(f"the longest prompt has {prompt} of {' or '.join(map(str, totals))} tokens")


def check_positions(context: CheckContext, report: CheckReport) -> None:
    """Check that a rollout fits into the positions of the model, and into a session of the
    engine."""
    config = context.sizes.config
    max_positions, limit = get_max_positions(config), get_rope_length_limit(config)
    reason = (
        ", beyond which its rotary embeddings change for all texts"
        if max_positions == limit
        else ""
    )
    session_tokens = context.recipe.engine.settings.get("max_model_len")
    for key, budget in collect_budgets(context.recipe).items():
        tokens = budget.max_context_tokens
        if max_positions is not None and tokens > max_positions:
            report.error(
                f"{key}.max_context_tokens={tokens} is more than the {max_positions} positions of"
                f" the model{reason}: set {key}.max_context_tokens={max_positions} or less."
            )
        elif isinstance(session_tokens, int) and tokens > session_tokens:
            report.error(
                f"{key}.max_context_tokens={tokens} is more than"
                f" engine.max_model_len={session_tokens}, where the engine would end every session:"
                f" raise engine.max_model_len, or lower {key}.max_context_tokens."
            )
