"""The estimate of memory, compared with the memory that a process uses."""

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from transformers import Qwen2Config

from fieldcraft.recipes.loading import load_recipe
from fieldcraft.runs.memory import raise_memory_errors
from fieldcraft.runs.memory_estimate import estimate_stage_memory
from fieldcraft.types import UserError

TOKENS, WORDS = 1024, 24576
SHAPE = {
    "vocab_size": WORDS,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
}
STEP = f"""
import re
from pathlib import Path
import numpy as np
from transformers import Qwen2Config, Qwen2ForCausalLM
from fieldcraft.train.losses import PolicyGradientLoss
from fieldcraft.config.sections import Optim
from fieldcraft.train.batch import Sample
from fieldcraft.train.trainer import Trainer

model = Qwen2ForCausalLM(Qwen2Config(**{SHAPE}))
trainer = Trainer(model, Optim(lr=1e-5, micro_batch_tokens={TOKENS}), 2)
ones = np.ones(256, np.float32)
ids = np.arange(256)
weight = np.where(ids > 0, ones, 0)
units = [(Sample(ids, weight, ones, -ones, -ones, -ones),) for _ in range({TOKENS} // 256)]
for _ in range(2):
    trainer.step(units, PolicyGradientLoss(entropy_coef=0.01), 1.0)
parameters = sum(p.numel() for p in model.parameters())
# Of this program alone: what getrusage tells includes the process that started it.
peak = re.search(r"VmHWM:\\s+([0-9]+) kB", Path("/proc/self/status").read_text())
print(parameters, int(peak[1]) * 1024)
"""


def test_a_stage_without_memory_ends_with_what_to_lower() -> None:
    with (
        pytest.raises(UserError, match=r"stage 'rl' needs more memory .* lower its optim.micro_b"),
        raise_memory_errors("rl"),
    ):
        torch.empty(2**55)
    with pytest.raises(RuntimeError, match="shape"), raise_memory_errors("rl"):
        torch.empty(2) @ torch.empty(3, 3)


@pytest.mark.slow
def test_a_step_takes_about_what_was_estimated(tmp_path: Path) -> None:
    """An estimate below the real use would accept a run that the out-of-memory killer ends."""
    done = subprocess.run([sys.executable, "-c", STEP], capture_output=True, text=True, check=True)
    parameters, peak = map(int, done.stdout.split())
    recipe = load_recipe(
        "smoke",
        [
            "max_num_seqs=1",
            f"budget.max_context_tokens={TOKENS}",
            f"stages.rl2.optim.micro_batch_tokens={TOKENS}",
        ],
    )
    setup = SimpleNamespace(
        recipe=recipe,
        device=torch.device("cpu"),
        config=Qwen2Config(**SHAPE),
        parameters=parameters,
        trainable_parameters=parameters,
        has_weights=True,
    )
    estimate = estimate_stage_memory(setup, recipe.stages["rl2"])
    assert peak < estimate < 1.6 * peak
