"""The command `agreement`: a judge measured by human labels."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from fieldcraft.cli.app import LimitOption, app, make_judge_settings
from fieldcraft.config.sections import JudgeConfig
from fieldcraft.data.labelled_answers import LabelledAnswer, read_labelled_answers
from fieldcraft.evaluation.agreement import measure_grader
from fieldcraft.records.files import require_writable, write_json
from fieldcraft.rewards.criteria import JudgedCriterion
from fieldcraft.rewards.judge import JudgeReward, JudgingMeter
from fieldcraft.runs.event_loop import run_async
from fieldcraft.terminal.console import CleanConsole, print_line
from fieldcraft.terminal.figure_table import FigureTable
from fieldcraft.tools.chat_client import ChatClient
from fieldcraft.types import UserError


@app.command()
def agreement(
    file: Annotated[
        Path, typer.Argument(help="Records with question, response, label, and optional answers.")
    ],
    judge_url: Annotated[str, typer.Option(help="OpenAI-compatible endpoint of the judge.")],
    judge_model: Annotated[str, typer.Option(help="Name of the judge's model.")],
    judge_votes: Annotated[int, typer.Option(min=1, help="Number of votes on each answer.")] = 1,
    question: Annotated[
        str | None, typer.Option(help="Judge this criterion instead of correctness.")
    ] = None,
    limit: LimitOption = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder for agreement.json and the judge's replies.")
    ] = None,
) -> None:
    """Measure how often a judge agrees with human labels: accuracy and Cohen's kappa."""
    settings = make_judge_settings(judge_url, judge_model, judge_votes)
    if question is not None and not question.strip():
        raise UserError("the question is empty: write the criterion, in quotation marks.")
    if out is not None:
        require_writable(out)
    answers = read_labelled_answers(file, limit)
    if len({answer.accepted for answer in answers}) < 2:
        raise UserError(
            f"all {len(answers)} answers of {file} have the same label, and agreement beyond chance"
            " needs both: add answers with the other label, or raise --limit."
        )
    result = run_async(_measure(settings, question, answers, out))
    console = CleanConsole()
    console.print(_build_table(result["agreement"]))
    costs = ", ".join(f"{k.partition('/')[2]} {v:g}" for k, v in result["judging"].items())
    console.print(f"judge: {costs}", highlight=False)
    if out is not None:
        write_json(out / "agreement.json", {"file": str(file), **result})
        print_line(out / "agreement.json")


async def _measure(
    settings: JudgeConfig, question: str | None, answers: list[LabelledAnswer], out: Path | None
) -> dict[str, Any]:
    """Return the agreement by source of the answers, and what the judge cost."""
    assert settings.url is not None
    assert settings.model is not None
    cache = None if out is None else out / "judge.sqlite"
    endpoint = ChatClient(
        settings.url, settings.model, api_key_env=settings.api_key_env, cache=cache
    )
    await endpoint.require_available()
    judge, meter = JudgeReward(endpoint, settings.votes), JudgingMeter(endpoint)
    meter.read()  # of the first request
    try:
        criterion = None if question is None else JudgedCriterion(question, judge.panel)
        grade = judge.score_trajectory if criterion is None else criterion.score
        found = await measure_grader(grade, answers)
    finally:
        await judge.close()
    record = {"judge": settings.model_dump(), "question": question}
    return record | {"agreement": found, "judging": meter.read()}


def _build_table(agreement_by_source: dict[str, dict[str, Any]]) -> FigureTable:
    headers = ["n", "accepted", "accuracy [95 %]", "kappa [95 %]", "precision", "recall"]
    legend = {
        "accepted": "by people",
        "kappa [95 %]": "Cohen's kappa, agreement beyond chance: 0 is chance, 1 is perfect",
    }
    table = FigureTable([*headers, "not graded"], legend=legend)
    for name, entry in agreement_by_source.items():
        if entry["n"] == 0:
            table.add_row(name, "0", "", "", "", "", "", str(entry["not_graded"]))
            continue
        table.add_row(
            name,
            str(entry["n"]),
            str(entry["accepted_by_people"]),
            _format_interval(entry["accuracy"], entry["accuracy_ci95"]),
            _format_interval(entry["kappa"], entry["kappa_ci95"]),
            _format_number(entry["precision"]),
            _format_number(entry["recall"]),
            str(entry["not_graded"]),
        )
    return table


def _format_number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"


def _format_interval(value: float | None, interval: list[float] | None) -> str:
    if value is None or interval is None:
        return _format_number(value)
    return f"{value:.3f} [{interval[0]:.3f}, {interval[1]:.3f}]"
