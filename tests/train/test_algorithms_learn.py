"""Every named algorithm raises exact match on a small task, through the real rollout loop."""

from typing import Any

import pytest

from bandit import bandit
from fieldcraft.algorithms import ALGORITHMS

STEPS = 20
CASES: dict[str, dict[str, Any]] = {name: {"algorithm": name} for name in ALGORITHMS} | {
    "dapo": {"algorithm": "dapo", "max_batches": 2},
    "ppo on the policy's states": {"algorithm": "ppo", "critic": {"backbone": "policy"}},
    "KL in the reward": {"algorithm": "reinforce++", "kl_coef": 0.01},
    "KL and LLDS in the loss": {"kl_coef": 0.01, "llds_coef": 0.2, "minibatches": 4},
    "corrected for the sampler": {
        "importance": "sequence",
        "importance_cap": 2.0,
        "reject": "geometric",
        "reject_low": 0.99,
        "reject_high": 1.01,
    },
    "otc-grpo": {"rewards": {"otc-grpo": 1.0}},
    "otc-ppo": {"algorithm": "ppo", "rewards": {"otc-ppo": 1.0}},
}


@pytest.mark.parametrize("name", CASES)
def test_exact_match_rises(name: str) -> None:
    stage = bandit(**CASES[name])
    rows = [stage.step(number) for number in range(STEPS)]
    right = [row["em"] for row in rows]
    assert right[0] < 0.4
    assert sum(right[-5:]) / 5 > 0.8
