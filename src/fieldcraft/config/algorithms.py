"""Named algorithms of reinforcement learning: nothing but settings of an `rl` stage.

`algorithm: dapo` in a recipe stands for the keys below; a key that the recipe sets itself wins.
What no algorithm sets here has the default of `config.rl.Rl`. docs/algorithms.md explains each.
`names.py` says what each is called, and finds those of other packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AlgorithmPreset = Mapping[str, Any]

# arXiv 2402.03300
GRPO: AlgorithmPreset = {"baseline": "group", "scale": "group", "loss_weight": "sequence"}
# arXiv 2503.20783
DR_GRPO: AlgorithmPreset = {"baseline": "group", "scale": "none", "loss_weight": "constant"}
# arXiv 2503.14476
DAPO: AlgorithmPreset = {
    "baseline": "group",
    "scale": "group",
    "loss_weight": "token",
    "clip_high": 0.28,
    "minibatches": 4,
    "keep_groups": "mixed-accuracy",
    "train_truncated": False,
    "overlong_penalty": 0.5,  # of a right answer's 1; DAPO's answers are worth -1 and 1
}
# arXiv 2507.18071
GSPO: AlgorithmPreset = {
    "baseline": "group",
    "scale": "group",
    "loss_weight": "sequence",
    "ratio": "sequence",
    "clip_low": 3e-4,
    "clip_high": 4e-4,
    "minibatches": 4,
}
# arXiv 2506.13585
CISPO: AlgorithmPreset = {
    "baseline": "group",
    "scale": "group",
    "loss_weight": "token",
    "clip": "cispo",
    "clip_low": 1.0,  # a ratio is never below 0, so there is no lower bound
    "clip_high": 4.0,
    "minibatches": 4,
}
# arXiv 2402.14740
RLOO: AlgorithmPreset = {
    "baseline": "others",
    "scale": "none",
    "loss_weight": "constant",
    "kl_in": "reward",
}
# arXiv 2501.03262
REINFORCE_PP: AlgorithmPreset = {
    "baseline": "none",
    "scale": "batch",
    "loss_weight": "token",
    "kl_in": "reward",
}
REINFORCE_PP_BASELINE: AlgorithmPreset = {
    "baseline": "group",
    "scale": "batch",
    "loss_weight": "token",
}
# The usual of a `distil` stage: a token counts the same, however long its rollout is, and rewards
# keep their scale beside the teacher's nats.
DISTIL: AlgorithmPreset = {"baseline": "group", "scale": "none", "loss_weight": "token"}
# arXiv 1707.06347; dual clip: arXiv 1912.09729
PPO: AlgorithmPreset = {
    "baseline": "critic",
    "scale": "batch",
    "loss_weight": "token",
    "kl_in": "reward",
    "dual_clip": 3.0,
    "minibatches": 4,
}
