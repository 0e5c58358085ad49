"""Run folders in the format of `fieldcraft run`, made in milliseconds."""

import json
from collections.abc import Iterable
from pathlib import Path

from fieldcraft.config.recipe import dump_recipe
from fieldcraft.recipes.loading import parse_recipe
from fieldcraft.records.timeline import SLOTS_PER_STEP, StepTimes, append_step_times
from fieldcraft.records.training_rollouts import TrainingRollout, write_training_rollouts
from fieldcraft.records.trajectories import to_json, write_trajectories
from fieldcraft.types import Author, CallOutcome, CallRecord, Segment, Status, Task, Trajectory

HOSTILE = (
    "<img src=x onerror=document.title='owned'><script>document.title='owned'</script>"
    "<svg onload=alert(1)> javascript:alert(1) \"' &lt;b&gt; ${7*7} {{7*7}} </textarea>"
)
RECIPE = {
    "name": "small",
    "world": {"name": "atlas"},
    "stages": {
        "sft1": {"type": "sft", "dataset": "demonstrations", "steps": 3, "optim": {"lr": 0.001}},
        "rl1": {"type": "rl", "steps": 5, "optim": {"lr": 0.001}, "rewards": {"em": 1.0}},
    },
}


def trajectory(
    task: str = "t0",
    *,
    correct: bool | None = True,
    calls: int = 1,
    split: str = "heldout",
    question: str = "Where is Kelm?",
    found: str = "Kelm lies in Sor.",
    status: Status = Status.ANSWERED,
    version: int = 3,
) -> Trajectory:
    """Return a trajectory that calls a tool and answers; it has one id per word."""
    searched = [
        (
            Segment(Author.POLICY, [4, 5], "search Kelm", [-0.5, -2.0], [(version, 2)]),
            Segment(Author.TOOL, [6, 7, 8], found),
        )
        for _ in range(calls)
    ]
    end = Segment(Author.POLICY, [9, 2], "answer Sor", [-0.1, -0.2], [(version, 2)])
    score = None if correct is None else float(correct)
    return Trajectory(
        Task(task, question, ("Sor",), {"split": split, "hops": 1}),
        [Segment(Author.PROMPT, [1, 3], question), *(s for pair in searched for s in pair), end],
        [
            CallRecord("search", {"query": "Kelm"}, found, CallOutcome.OK, 0.25)
            for _ in range(calls)
        ],
        status,
        "Sor" if status is Status.ANSWERED else None,
        True,
        {"em": score},
        score,
        seconds=1.5,
    )


def write_recipe(run: Path, **changes: object) -> None:
    run.mkdir(parents=True, exist_ok=True)
    recipe = parse_recipe(json.loads(json.dumps(RECIPE | changes)))
    (run / "recipe.json").write_text(json.dumps(dump_recipe(recipe)))


def write_evaluation(run: Path, name: str, trajectories: Iterable[Trajectory]) -> None:
    records = list(trajectories)
    folder = run / "evaluations"
    folder.mkdir(exist_ok=True)
    write_trajectories(folder / f"{name}.jsonl", records)
    correct = sum(bool(t.is_correct) for t in records) / len(records)
    part = {"n": len(records), "em": correct, "em_ci95": [correct / 2, correct], "calls_mean": 1.0}
    summary = part | {"splits": {"heldout": part}}
    (folder / f"{name}.json").write_text(json.dumps({"seconds": 1.0, "summary": summary}))


def write_metrics(run: Path, stage: str, steps: int) -> None:
    folder = run / stage
    folder.mkdir(exist_ok=True)
    rows = [
        {"step": n, "reward_mean": n / 10, "em": n / 10, "loss": 1 / (n + 1), "seconds": 2.0}
        | {"a_key_of_ones_own": float(n)}
        | ({"eval/em": n / 10} if n % 2 else {})
        for n in range(steps)
    ]
    (folder / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def training_rollout(step: int, number: int, correct: bool) -> TrainingRollout:
    one = trajectory(f"q{step}", correct=correct, split="train", version=step)
    size = 0.5 if correct else -0.5
    values = [0.0, 0.0, size, size, 0.0, 0.0, 0.0, size, size]
    return TrainingRollout(
        step, values, one, [abs(v) + number for v in values], [1 + v / 2 for v in values]
    )


def step_times(step: int) -> StepTimes:
    busy = [4.0] * (SLOTS_PER_STEP // 2) + [0.0] * (SLOTS_PER_STEP // 2)
    phases = [("wait", 0.0, 5.0), ("train", 5.0, 9.0), ("publish", 9.0, 9.5)]
    return StepTimes(step, 1000.0 + 10 * step, 10.0, phases, busy, [v / 4 for v in busy])


def write_run(run: Path, **changes: object) -> Path:
    """Write a run with two stages, their evaluations, and the rollouts of two steps."""
    write_recipe(run, **changes)
    write_metrics(run, "sft1", 3)
    write_metrics(run, "rl1", 5)
    questions = [("t0", "Where is Kelm?"), ("t1", "Who met Dro?"), ("t2", "What is Vel?")]
    for stage, rights in (("sft1", (False, False, True)), ("rl1", (True, False, True))):
        write_evaluation(
            run,
            stage,
            [
                trajectory(task, correct=correct, question=question, calls=calls)
                for calls, ((task, question), correct) in enumerate(
                    zip(questions, rights, strict=True)
                )
            ],
        )
    for step in (0, 4):
        group = [training_rollout(step, number, bool(number % 2)) for number in range(4)]
        write_training_rollouts(run / "rl1" / "rollouts", group)
    for step in range(5):
        append_step_times(run / "rl1" / "timeline.jsonl", step_times(step))
    return run


def append(path: Path, one: Trajectory) -> None:
    with path.open("a") as file:
        file.write(f"{to_json(one)}\n")
