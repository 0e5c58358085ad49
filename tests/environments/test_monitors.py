"""Monitors that stop an evaluation or a stage whose rollouts do not represent the policy."""

import asyncio
from collections.abc import Sequence

import pytest

from environment_parts import FunctionEnvironment
from fieldcraft.environments.monitors import (
    EvaluationMonitor,
    ToolFailureMonitor,
    find_defect,
    require_usable_rollouts,
)
from fieldcraft.evaluation.evaluate import evaluate_tasks, make_verdict_rubric
from fieldcraft.records.events import Event, EventHandler, LogMessage, ignore_event
from fieldcraft.types import (
    Author,
    CallOutcome,
    CallRecord,
    Segment,
    Status,
    Task,
    Trajectory,
    UserError,
)

TASK = Task("t", "Who?", ("Ada",))
OK, FAILED, GONE = CallOutcome.OK, CallOutcome.FAILED, CallOutcome.UNAVAILABLE
BROKEN = CallOutcome.BROKEN


def made(
    *outcomes: CallOutcome, error: str = "", last: Author = Author.PROMPT, simulated: bool = False
) -> Trajectory:
    """Return a rollout with these calls. Its error, if any, follows a segment of `last`."""
    calls = [CallRecord("search", {}, f"It is {o.value}.", o, 0.0, simulated) for o in outcomes]
    status = Status.ERROR if error else Status.ANSWERED
    return Trajectory(TASK, [Segment(last, [1], "")], calls, status, error=error)


def raised(last: Author = Author.POLICY) -> Trajectory:
    calls = (BROKEN,) if last is Author.POLICY else ()
    return made(*calls, error="KeyError: 'city'", last=last)


# -- evaluations --------------------------------------------------------------------------------


def graded(
    trajectories: Sequence[Trajectory], emit: EventHandler = ignore_event, most_broken: float = 0.02
) -> list[Trajectory]:
    """Run an evaluation with the given rollouts."""
    left = iter(trajectories)

    async def run(task: Task, key: str) -> Trajectory:
        return next(left)

    tasks = [TASK] * len(trajectories)
    grading = evaluate_tasks(
        tasks,
        FunctionEnvironment(run),
        None,
        make_verdict_rubric(),
        1,
        "sft: evaluation",
        emit,
        max_broken=most_broken,
    )
    return asyncio.run(grading)


@pytest.mark.parametrize(
    ("bad", "cause"),
    [
        (made(OK, GONE), "It is unavailable"),
        (made(GONE, OK), "It is unavailable"),  # the model may have continued without it
        (raised(), "KeyError: 'city'"),
        (raised(last=Author.PROMPT), "KeyError: 'city'"),
    ],
)
def test_an_evaluation_bears_one_outage_or_defect_in_fifty(bad: Trajectory, cause: str) -> None:
    fine = made(OK)
    assert len(graded([bad, *[fine] * 49])) == 50
    with pytest.raises(UserError) as stopped:
        graded([*[fine] * 20, bad, bad, *[fine] * 28])
    assert str(stopped.value) == (
        "'sft: evaluation' was stopped, because 2 of its 50 questions had a tool or engine"
        f" failure, the last one: '{cause}': correct it and run the same command again, or allow"
        " more failures with a higher evaluation.max_broken (now 0.02); the results of this"
        " evaluation were not saved."
    )


def test_it_stops_as_soon_as_it_is_sure() -> None:
    watch = EvaluationMonitor("sft: evaluation", 100, 0.02)
    for _ in range(2):
        watch.add(made(GONE))
    with pytest.raises(UserError, match="3 of its 100 questions"):
        watch.add(made(GONE))


def test_an_evaluation_tells_the_rate_of_what_failed_and_stops_above_its_bound() -> None:
    messages: list[Event] = []
    assert len(graded([raised(), *[made(OK)] * 9], messages.append, most_broken=0.1)) == 10
    assert [event.text for event in messages if isinstance(event, LogMessage)] == [
        "10.0% of the rollouts of 'sft: evaluation' had a tool or engine failure, the last one:"
        " 'KeyError: 'city''."
    ]
    with pytest.raises(UserError, match="2 of its 10 questions"):
        graded([raised(), raised(), *[made(OK)] * 8], most_broken=0.1)


def test_a_long_cause_keeps_its_place() -> None:
    long = made(error=f"KeyError: '{'city ' * 90}' (weather.py:12)")
    cause = find_defect(long)
    assert cause is not None
    assert cause.startswith("KeyError")
    assert cause.endswith("(weather.py:12)")
    assert len(cause) == 200


def test_a_tool_may_refuse_much_of_what_a_policy_asks() -> None:
    """An interpreter, for example, refuses most programs of a weak model."""
    assert len(graded([made(FAILED)] * 10)) == 10


# -- steps --------------------------------------------------------------------------------------


def test_a_step_in_which_nearly_every_rollout_raised() -> None:
    require_usable_rollouts([*[raised()] * 9, made()], 3)
    with pytest.raises(UserError, match=r"^19 of the 20 rollouts of step 3 ended .*KeyError: 'ci"):
        require_usable_rollouts([*[raised()] * 19, made()], 3)
    with pytest.raises(UserError, match=r"^all 2 rollouts of step 3 ended in an exception"):
        require_usable_rollouts([raised()] * 2, 3)
    require_usable_rollouts([], 3)


def watch_of(
    steps: Sequence[Sequence[Trajectory]], watch: ToolFailureMonitor | None = None
) -> ToolFailureMonitor:
    watch = watch or ToolFailureMonitor(0.9)
    for number, step in enumerate(steps):
        watch.add_step(step, number)
    return watch


def test_a_tool_that_raises_in_every_call_of_a_policy_that_calls_seldom() -> None:
    """Two rollouts of five call it and end in its exception; the others answer."""
    step = [raised(), raised(), made(), made(), made()]
    watch_of([step, step])
    with pytest.raises(UserError, match=r"^6 of the 6 tool calls of steps 0 to 2 failed, the last"):
        watch_of([step, step, step])


def test_a_tool_that_answers_now_and_then_is_no_dead_one() -> None:
    step = [raised(), made(FAILED), made(OK), made(), made()]
    watch_of([step] * 20)


def test_exceptions_outside_of_calls_do_not_count_as_calls() -> None:
    """Exceptions when opening a tool and exceptions of the engine have a separate limit."""
    watch_of([[raised(last=Author.PROMPT), made(), made()]] * 20)


def test_what_came_before_an_interruption_is_counted() -> None:
    step = [raised(), made(), made()]
    before = watch_of([step, step])
    resumed = ToolFailureMonitor(0.9)
    resumed.load_state_dict(before.state_dict())
    with pytest.raises(UserError, match=r"^3 of the 3 tool calls of steps 0 to 2 failed"):
        resumed.add_step(step, 2)
