"""Warning of a stage about a policy that moved far since its tokens were sampled."""

from typing import Any

import pytest

from fieldcraft.config.rl import Rl
from fieldcraft.train.learner import (
    DRIFT_THRESHOLD_NATS,
    LOG_RATIO_KEY,
    MIN_DRIFT_STEPS,
    describe_drift,
)


def settings(staleness: int = 2, **keys: Any) -> Rl:
    given = {"steps": 9, "optim": {"lr": 1e-3}, "async": {"max_staleness": staleness}}
    return Rl.model_validate(given | keys)


def rows(*values: float) -> list[dict[str, Any]]:
    return [{"step": n, LOG_RATIO_KEY: value} for n, value in enumerate(values)]


def test_it_is_told_once_and_only_of_older_samplers() -> None:
    far = rows(*[2 * DRIFT_THRESHOLD_NATS] * (MIN_DRIFT_STEPS + 2))
    messages = [
        describe_drift(far[:n], settings(sampler_is_cap=2.0), "rl") for n in range(1, len(far) + 1)
    ]
    assert [n for n, text in enumerate(messages, start=1) if text] == [MIN_DRIFT_STEPS]
    assert messages[MIN_DRIFT_STEPS - 1] == (
        "in 5 steps of stage 'rl' the log-probabilities of the tokens had changed by 0.10 nats on"
        " average since sampling (log_ratio_abs), which biases the gradient: set"
        " sampler_is_level: sequence with sampler_is_cap: 5, or a lower optim.lr."
    )
    assert describe_drift(far[:MIN_DRIFT_STEPS], settings(0), "rl") is None
    assert describe_drift(rows(*[DRIFT_THRESHOLD_NATS / 2] * 20), settings(), "rl") is None


@pytest.mark.parametrize(
    ("keys", "advice"),
    [
        ({}, "set sampler_is_cap: 2"),
        ({"sampler_is_level": "sequence", "sampler_is_cap": 5.0}, "set a lower optim.lr or async"),
        ({"sampler_reject": "token"}, "set a lower optim.lr or async"),
    ],
)
def test_the_advice_is_what_is_not_set_yet(keys: dict[str, Any], advice: str) -> None:
    message = describe_drift(rows(*[1.0] * MIN_DRIFT_STEPS), settings(**keys), "rl")
    assert message is not None
    assert advice in message
