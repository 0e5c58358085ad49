"""The drift of the policy since its tokens were sampled, and when it is worth a word."""

from __future__ import annotations

from collections.abc import Sequence

from fieldcraft.config.rl import Rl
from fieldcraft.train.stages.base import Row

LOG_RATIO = "log_ratio_abs"  # mean |log pi - log pi_sampler| of the trained tokens, in nats
# Where token weights leave a sixth of the gradient wrong (docs/lab-notes/asynchronous.md).
FAR = 0.05
STEPS = 5  # beyond FAR, after which it is told


def drift(rows: Sequence[Row], settings: Rl, stage: str) -> str | None:
    """Return a message after the last of the rows: once that STEPS steps were FAR from what was
    sampled, where the sampler may be older than the trainer. None where there is nothing to
    tell."""
    if not settings.asynchronous.max_staleness:
        return None
    far = [row for row in rows if row.get(LOG_RATIO, 0.0) > FAR]
    if len(far) != STEPS or far[-1] is not rows[-1]:
        return None
    mean = sum(row[LOG_RATIO] for row in far) / STEPS
    return (
        f"in {STEPS} steps of stage '{stage}' the tokens had changed by {mean:.2f} nats in the mean"
        f" since they were sampled ({LOG_RATIO}), which biases the gradient: {_advice(settings)}."
    )


def _advice(settings: Rl) -> str:
    if settings.importance_cap is None and settings.reject is None:
        return "set importance_cap: 2, which weighs the change"
    if settings.importance == "token" and settings.importance_cap is not None:
        return "set importance: sequence with importance_cap: 5, or a lower optim.lr"
    return "set a lower optim.lr or async.max_staleness"
