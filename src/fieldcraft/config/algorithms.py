"""Named algorithms of reinforcement learning: presets of the settings of an `rl` stage.

`algorithm: dapo` in a recipe sets the keys below; keys that the recipe sets itself have precedence.
Keys that an algorithm does not set have the defaults of `config.rl.Rl`. docs/algorithms.md explains
each algorithm. `names.py` maps the names to these presets, and finds algorithms of other packages.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

AlgorithmPreset = Mapping[str, Any]

# arXiv 2402.03300
GRPO: AlgorithmPreset = {
    "baseline": "group",
    "advantage_scale": "group",
    "loss_aggregation": "sequence",
}
# arXiv 2503.20783
DR_GRPO: AlgorithmPreset = {
    "baseline": "group",
    "advantage_scale": "none",
    "loss_aggregation": "constant",
}
# arXiv 2503.14476
DAPO: AlgorithmPreset = {
    "baseline": "group",
    "advantage_scale": "group",
    "loss_aggregation": "token",
    "clip_high": 0.28,
    "minibatches": 4,
    "group_filter": "accuracy",
    "train_truncated": False,
    "overlong_penalty": 0.5,  # relative to 1 for a correct answer; DAPO uses -1 and 1
}
# arXiv 2507.18071
GSPO: AlgorithmPreset = {
    "baseline": "group",
    "advantage_scale": "group",
    "loss_aggregation": "sequence",
    "ratio_level": "sequence",
    "clip_low": 3e-4,
    "clip_high": 4e-4,
    "minibatches": 4,
}
# arXiv 2506.13585
CISPO: AlgorithmPreset = {
    "baseline": "group",
    "advantage_scale": "group",
    "loss_aggregation": "token",
    "clip_mode": "cispo",
    "clip_low": 1.0,  # a ratio is never negative, so this is no lower bound
    "clip_high": 4.0,
    "minibatches": 4,
}
# arXiv 2402.14740
RLOO: AlgorithmPreset = {
    "baseline": "leave-one-out",
    "advantage_scale": "none",
    "loss_aggregation": "constant",
    "kl_placement": "reward",
}
# arXiv 2501.03262
REINFORCE_PP: AlgorithmPreset = {
    "baseline": "none",
    "advantage_scale": "batch",
    "loss_aggregation": "token",
    "kl_placement": "reward",
}
REINFORCE_PP_BASELINE: AlgorithmPreset = {
    "baseline": "group",
    "advantage_scale": "batch",
    "loss_aggregation": "token",
}
# The default of a `distil` stage: each token has the same weight, regardless of the length of its
# rollout, and rewards keep their scale relative to the teacher's nats.
DISTIL: AlgorithmPreset = {
    "baseline": "group",
    "advantage_scale": "none",
    "loss_aggregation": "token",
}
# arXiv 1707.06347; dual clip: arXiv 1912.09729
PPO: AlgorithmPreset = {
    "baseline": "critic",
    "advantage_scale": "batch",
    "loss_aggregation": "token",
    "kl_placement": "reward",
    "dual_clip": 3.0,
    "minibatches": 4,
}
