"""Causal architectures of transformers: each one matches a plain forward pass or is refused.

The table of docs/lab-notes/architectures.md has the verdicts: `python scripts/architecture_table.py
--write`.
"""

import re
from pathlib import Path

import pytest

from architectures import NAMES, judge

DOCUMENT = Path(__file__).parents[2] / "docs" / "lab-notes" / "architectures.md"
TABLE = dict(re.findall(r"^\| (\S+) \| (equal|refused)", DOCUMENT.read_text("utf-8"), re.MULTILINE))
# One architecture for each kind of attention, position and verdict; the others are slow.
QUICK = (
    "bert",  # bidirectional
    "bloom",  # biases by distance
    "deepseek_v3",  # latent attention
    "doge",  # a separate mask
    "dory",
    "gemma2",  # bounded scores
    "gemma3_text",  # windows
    "gpt2",  # learned positions
    "gpt_bigcode",  # one key head
    "gpt_oss",  # sinks
    "jetmoe",  # attention experts
    "llama",
    "mamba",  # recurrent state
    "modernbert-decoder",  # an output layer of two matrices
    "nemotron",  # layers that take no further arguments
    "opt",  # dropout
    "phimoe",  # jitter
    "qwen3_moe",
)


def test_the_table_judges_most_architectures() -> None:
    assert len(TABLE) >= 150
    assert set(TABLE) <= set(NAMES)
    assert sum(verdict == "equal" for verdict in TABLE.values()) >= 70


ALL = [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in NAMES]


@pytest.mark.parametrize("name", ALL)
def test_an_architecture_is_computed_plainly_or_refused(name: str) -> None:
    verdict = judge(name)
    if verdict.kind == "not made":
        assert name not in TABLE, verdict.why
    else:
        assert verdict.kind == TABLE[name], verdict
