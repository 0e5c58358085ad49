from pathlib import Path

import pytest
from transformers import PreTrainedModel

from engine_parity import TOKENIZER, sharp_model
from fieldcraft.engine.local.engine import LocalEngine


@pytest.fixture
def model(tmp_path: Path) -> PreTrainedModel:
    return sharp_model(tmp_path, "qwen3")


@pytest.fixture
def engine(model: PreTrainedModel) -> LocalEngine:
    return LocalEngine(model, TOKENIZER, max_num_seqs=16)
