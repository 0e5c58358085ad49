"""Bias of asynchronous steps: the table equals the script's result, by exact enumeration."""

from pathlib import Path
from typing import Any

import pytest
import torch

from script_modules import load_script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def script() -> Any:
    return load_script("scripts/async_bias.py")


def test_the_document_has_the_table_of_the_script(script: Any) -> None:
    rows = script.table()
    assert script.markdown(rows) in (ROOT / "docs/lab-notes/asynchronous.md").read_text()
    for drift in script.DRIFTS:
        assert rows["sequence, no cap"][drift][0] < 1e-9  # unbiased, regardless of the drift


def test_the_expectation_is_that_of_all_texts(script: Any) -> None:
    """Without drift every correction, including none, is the plain policy gradient."""
    _, problem = next(script.problems(0))
    same = script.Problem(problem.policy, problem.policy, problem.reward)
    assert same.drift == 0
    assert float(same.sampled.sum()) == pytest.approx(1)
    true = script.exact_gradient(same.policy, same.reward)
    for correct in script.CORRECTIONS.values():
        found, variance = script.expected_gradient(same, correct)
        assert torch.allclose(found, true)
        assert variance > 0
