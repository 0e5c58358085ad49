"""Rollouts of an evaluation that met a tool or an engine that failed: their rate, and a cause."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fieldcraft.rollout.monitors import find_defect
from fieldcraft.types import Trajectory


def measure_broken_rollouts(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return `broken_rate`, the share of the rollouts that met a tool that raised or did not
    answer, or an engine that failed, and `broken_cause`, that of the last one."""
    causes = [cause for t in trajectories if (cause := find_defect(t)) is not None]
    return {
        "broken_rate": len(causes) / max(len(trajectories), 1),
        "broken_cause": causes[-1] if causes else None,
    }


def describe_broken_rate(name: str, entry: Mapping[str, Any]) -> str | None:
    """Return a sentence about broken rollouts, for the reader of an evaluation; None without
    any."""
    if not entry.get("broken_rate"):
        return None
    return (
        f"{entry['broken_rate']:.1%} of the answers of '{name}' met a tool or an engine that"
        f" failed, the last with '{entry['broken_cause']}'."
    )


def describe_broken_rates(evals: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the sentences about all evaluations that have any."""
    found = (describe_broken_rate(name, entry) for name, entry in evals.items())
    return [sentence for sentence in found if sentence is not None]
