"""Declarations of metrics: what an added metric shows, and rules of the file."""

import io
import re
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError
from rich.console import Console
from starlette.testclient import TestClient

import fieldcraft.records
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.evaluation.tables import build_detail_tables
from fieldcraft.extensions.studio.run_view import load_run_views
from fieldcraft.extensions.studio.server import create_app
from fieldcraft.extensions.studio.training_charts import draw_learning_curves
from fieldcraft.records.metrics import METRICS, CollapseSignal, Column, Metric
from fieldcraft.terminal.progress import PhaseProgress
from fieldcraft.train.collapse_detector import CollapseDetector
from fieldcraft.train.learner import average_per_token
from fieldcraft.types import Trajectory
from report_parts import SAMPLES, run
from training_parts import random_samples
from view_parts import write_run

ADDED = Metric(
    "hunger",
    "Hunger of the model",
    "in volts",
    (Column("tools", "Hunger", "Volts per question.", "hunger", "volts a question"),),
    digits=1,
    progress="hunger {:.1f}",
    per_token=True,
    signals=(CollapseSignal("rose", 2.0, 0.1, "feed it"),),
)
ROWS = [
    {"step": n, "reward_mean": 1.0, "em": float(n < 40), "hunger": 1.0 if n < 40 else 99.0}
    for n in range(60)
]


@pytest.fixture
def added(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(METRICS, ADDED.key, ADDED)


@pytest.mark.usefixtures("added")
def test_one_declaration_shows_a_metric_everywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = Console(file=io.StringIO(), width=200)
    PhaseProgress("rl", 1, out).update(1, ROWS[-1])
    evals = {"rl1": summarise_evaluation(SAMPLES["rl1"]) | {"hunger": 7.25}}
    for table in build_detail_tables(evals):
        out.print(table)
    text = out.file.getvalue()  # type: ignore[attr-defined]
    assert "rl  1/1  EM 0.000  hunger 99.0" in text
    assert "  7.2\n" in text
    assert "hunger: volts a question." in text

    [chart] = [c for c in draw_learning_curves({"rl": ROWS}, {"rl": 0}) if c.title == ADDED.title]
    assert chart.note == "in volts"

    detector = CollapseDetector(score_key="em", threshold=0.5, max_grad_norm=1.0)
    report = detector.detect(ROWS)
    assert report is not None
    sentence = report.format_message("rl", "kept")
    assert "likely cause: hunger of the model rose from 1 to 99" in sentence
    assert "feed it" in sentence

    [sample] = random_samples(1)
    weight = float(sample.weight.sum())
    means = average_per_token({"hunger": 2.0, "loss": 2.0}, [(sample,)], weight / 2, 0)
    assert means == {"hunger": pytest.approx(1.0), "loss": 2.0}

    monkeypatch.setattr(
        "report_parts.summarise_evaluation",
        lambda *given: summarise_evaluation(*given) | {"hunger": 7.25},
    )
    _, page = run(tmp_path / "report.html", SAMPLES, curves={"rl1": ROWS})
    assert '<td data-label="Hunger">7.2</td>' in page
    assert re.search(r"<dfn>Hunger</dfn></dt><dd>Volts per question.</dd>", page)
    assert "<b>Hunger of the model</b> <span>in volts</span>" in page
    assert list_metrics(tmp_path)[-1] == "hunger"


def measure_hunger(trajectories: Sequence[Trajectory]) -> float:
    return 0.5 * len(trajectories)


def test_a_declared_function_computes_a_metric_of_evaluations(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    declared = Metric("hunger", compute=f"{__name__}:measure_hunger")
    monkeypatch.setitem(METRICS, "hunger", declared)
    trajectories = SAMPLES["rl1"]
    assert summarise_evaluation(trajectories)["hunger"] == 0.5 * len(trajectories)


def list_metrics(folder: Path) -> list[str]:
    """Return the metrics that the live page knows."""
    views = load_run_views([write_run(folder / "run")])
    app = create_app(views)
    with TestClient(app, "http://127.0.0.1") as page:
        metrics: list[str] = page.get("/api/runs").json()["metrics"]
    return metrics


def test_a_key_that_is_not_declared_is_in_no_chart_and_no_mean() -> None:
    rows = [row | {"own": 1.0} for row in ROWS]
    assert "own" not in {chart.title for chart in draw_learning_curves({"rl": rows}, {"rl": 0})}
    assert average_per_token({"own": 2.0}, [(random_samples(1)[0],)], 2.0, 0) == {"own": 2.0}


def test_no_key_is_declared_twice() -> None:
    """The loader refuses a repeated key, so only the two parts may have the same one."""
    file = Path(fieldcraft.records.__path__[0]) / "metrics.yaml"
    declared = yaml.safe_load(file.read_text("utf-8"))
    names = [*declared["metrics"], *declared["others"]]
    assert sorted(names) == sorted(METRICS)


def test_a_field_that_nothing_reads_is_refused() -> None:
    with pytest.raises(ValidationError, match="colour"):
        Metric(key="hunger", colour="red")  # type: ignore[call-arg]


def test_figures_next_to_others_and_in_groups_are_declared() -> None:
    columns = [column for metric in METRICS.values() for column in metric.columns]
    assert {column.companion for column in columns} - {""} <= METRICS.keys()
    heldout = {metric.heldout for metric in METRICS.values()} - {""}
    assert heldout == {"eval/em", "eval/calls_mean"}
    assert heldout <= METRICS.keys()
    known = METRICS["known.em"]
    assert known.read({"known": {"em": 0.5}}) == 0.5
    assert [known.read({"known": None}), known.read({})] == [None, None]
