"""Options of the commands that sample from an agent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

TemperatureOption = Annotated[
    float | None, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")
]
TopKOption = Annotated[
    int | None, typer.Option(min=0, help="Number of likeliest tokens to sample from; 0 is all.")
]
TopPOption = Annotated[
    float | None,
    typer.Option(help="Cumulative probability of the likeliest tokens to sample from."),
]
MinPOption = Annotated[
    float | None,
    typer.Option(help="Minimum probability of a token, relative to the likeliest one."),
]
SamplingOption = Annotated[
    Literal["recipe", "model"] | None,
    typer.Option(help="Source of the sampling settings that are not given as options."),
]


def collect_sampling_keys(
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    sampling: str | None,
) -> dict[str, Any]:
    """Return the keys of `SamplingConfig` that the user set."""
    numbers = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    keys = {**numbers, "sampling": sampling}
    return {key: value for key, value in keys.items() if value is not None}
