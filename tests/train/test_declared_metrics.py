"""Keys that stages, evaluations and runs write: each is declared, and each declared one is written.

Stages run with tiny models; losses and engines that need settings of their own are called alone.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from stream_parts import Parts

from bandit import bandit
from cluster_parts import EngineGroupRig, ModelledEngine
from fieldcraft.data.world import SimulationVerdict
from fieldcraft.evaluation.fidelity import compute_fidelity_metrics
from fieldcraft.evaluation.report import sum_judging
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.records.metrics import METRICS
from fieldcraft.rewards.criteria import compute_criteria_means
from fieldcraft.rewards.judge import JudgingMeter
from fieldcraft.rewards.programs import compute_program_metrics
from fieldcraft.tools.chat_client import TokenUsage
from fieldcraft.train.distillation import DistillationLoss
from fieldcraft.train.losses import ContrastiveLoss, PolicyGradientLoss, TokenBatch
from fieldcraft.train.rollout_metrics import compute_tool_free_metrics
from report_parts import trajectory
from tiny_runs import run_tiny
from training_parts import step
from virtual_time import virtually


def rows_of_stages() -> Iterator[dict[str, Any]]:
    yield step(bandit(llds_coef=0.1, minibatches=2, algorithm="ppo"), 0)
    yield from Parts().run()
    right = replace(trajectory("a", correct=True), tool_free=True)
    yield compute_tool_free_metrics([right])
    yield compute_program_metrics([replace(right, rewards={"unit_tests": 1.0})])
    yield compute_criteria_means([replace(right, rewards={"rubric": 1.0, "pairwise": 0.5})])
    judge = SimpleNamespace(requests=1, cached_replies=0, usage=TokenUsage(9, 1, None), seconds=0.5)
    yield JudgingMeter(judge).read()  # type: ignore[arg-type]
    verdicts = [SimulationVerdict(True, True, False, f1=1.0, taught=t) for t in (True, False)]
    verdicts += [SimulationVerdict(True, True, recall=chance) for chance in (0.0, 0.25, 0.5, 1.0)]
    yield compute_fidelity_metrics(lambda _: list(verdicts), [right])


def metrics_of_parts() -> Iterator[dict[str, Any]]:
    ones, places = torch.ones(2), torch.zeros(2, dtype=torch.long)
    batch = TokenBatch(ones, ones, ones, places, places, ones, ones, ones, ones, 1, ones)
    corrected = PolicyGradientLoss(importance_cap=2.0, reject="token", kl_coef=0.1)
    yield DistillationLoss(policy_loss=corrected)(batch, 2.0)[1]
    yield ContrastiveLoss()(replace(batch, seq_T=torch.arange(2), num_sequences=2), 1.0)[1]
    rig = EngineGroupRig(ModelledEngine(0))
    virtually(rig.group.update_weights(0))
    yield rig.group.last_update_metrics


def summaries(run: Path) -> Iterator[dict[str, Any]]:
    yield from json.loads((run / "report.json").read_text())["evals"].values()
    for file in run.glob("evaluations/*.json"):
        yield json.loads(file.read_text())["summary"]
    tasks = [
        trajectory(str(i), correct=True, split=f"split {i % 2}", data_source=str(i), known=True)
        for i in range(4)
    ]
    yield summarise_evaluation(tasks)
    yield summarise_evaluation([replace(tasks[0], rewards=tasks[0].rewards | {"rubric": 0.5})])
    yield sum_judging({"rl": [{"judge/requests": 1}]}, {})


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return all keys, with those of groups of a summary as `group.key`."""
    run = run_tiny(tmp_path_factory.mktemp("run"), "evaluation.periodic={every: 1, questions: 1}")
    file = (run / "one" / "metrics.jsonl").read_text()
    rows = [json.loads(line) for line in file.splitlines()]
    keys = {key for row in [*rows, *rows_of_stages(), *metrics_of_parts()] for key in row}
    assert "eval/em" in rows[0]
    for summary in summaries(run):
        keys |= summary.keys() - {"known"}
        keys |= {f"known.{key}" for key in summary.get("known") or {}}
    return keys


def test_every_key_that_is_written_is_declared(written: set[str]) -> None:
    """If this fails: declare the key in records/metrics.yaml, at least among `others`."""
    assert written - METRICS.keys() == set()


def test_every_declared_key_is_written(written: set[str]) -> None:
    assert METRICS.keys() - written == set()
