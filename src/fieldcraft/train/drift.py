"""Drift of the policy since its tokens were sampled, and the log message about it."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.config.rl import Rl
from fieldcraft.train.stages.base import StepMetrics

LOG_RATIO_KEY = "log_ratio_abs"  # mean |log pi - log pi_sampler| of the trained tokens, in nats
# At this drift, token-level importance weights leave an error of a sixth of the gradient
# (docs/lab-notes/asynchronous.md).
DRIFT_THRESHOLD_NATS = 0.05
MIN_DRIFT_STEPS = 5  # steps above DRIFT_THRESHOLD_NATS before the message


def describe_drift(rows: Sequence[StepMetrics], settings: Rl, stage: str) -> str | None:
    """Return a log message at the row at which MIN_DRIFT_STEPS steps have exceeded
    DRIFT_THRESHOLD_NATS, if the sampler may be older than the trainer. None otherwise."""
    if not settings.asynchronous.max_staleness:
        return None
    drifted = [row for row in rows if row.get(LOG_RATIO_KEY, 0.0) > DRIFT_THRESHOLD_NATS]
    if len(drifted) != MIN_DRIFT_STEPS or drifted[-1] is not rows[-1]:
        return None
    mean = sum(row[LOG_RATIO_KEY] for row in drifted) / MIN_DRIFT_STEPS
    return (
        f"in {MIN_DRIFT_STEPS} steps of stage '{stage}' the log-probabilities of the tokens had"
        f" changed by {mean:.2f} nats on average since sampling ({LOG_RATIO_KEY}), which biases the"
        f" gradient: {_suggest_remedy(settings)}."
    )


def _suggest_remedy(settings: Rl) -> str:
    if settings.sampler_is_cap is None and settings.sampler_reject is None:
        return "set sampler_is_cap: 2, which corrects for it"
    if settings.sampler_is_level == "token" and settings.sampler_is_cap is not None:
        return "set sampler_is_level: sequence with sampler_is_cap: 5, or a lower optim.lr"
    return "set a lower optim.lr or async.max_staleness"
