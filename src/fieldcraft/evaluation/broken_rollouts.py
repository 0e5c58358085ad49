"""Rollouts of an evaluation with a tool or engine failure: their rate, and one cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fieldcraft.environments.monitors import find_defect
from fieldcraft.types import Trajectory


def measure_broken_rollouts(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return `broken_rate`, the share of rollouts with a tool that raised or did not answer or with
    an engine failure, and `broken_cause`, the cause of the last one."""
    causes = [cause for t in trajectories if (cause := find_defect(t)) is not None]
    return {
        "broken_rate": len(causes) / max(len(trajectories), 1),
        "broken_cause": causes[-1] if causes else None,
    }


def describe_broken_rate(name: str, entry: Mapping[str, Any]) -> str | None:
    """Return a message about broken rollouts; None if there are none."""
    if not entry.get("broken_rate"):
        return None
    return (
        f"{entry['broken_rate']:.1%} of the rollouts of '{name}' had a tool or engine failure,"
        f" the last one: '{entry['broken_cause']}'."
    )


def describe_broken_rates(evals: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the messages about all evaluations with broken rollouts."""
    found = (describe_broken_rate(name, entry) for name, entry in evals.items())
    return [sentence for sentence in found if sentence is not None]
