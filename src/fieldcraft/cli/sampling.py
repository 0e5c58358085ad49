"""Options of the commands that sample from an agent."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import typer

TemperatureOption = Annotated[
    float | None, typer.Option(min=0.0, help="Sampling temperature; 0 is greedy.")
]
TopKOption = Annotated[
    int | None, typer.Option(min=0, help="Sample from so many of the likeliest tokens; 0: all.")
]
TopPOption = Annotated[
    float | None,
    typer.Option(help="Sample from the likeliest tokens that have this probability together."),
]
MinPOption = Annotated[
    float | None, typer.Option(help="Leave out tokens below this share of the likeliest one.")
]
SamplingOption = Annotated[
    Literal["recipe", "model"] | None,
    typer.Option(help="model: as the model's folder recommends where no option says otherwise."),
]


def collect_sampling_keys(
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    min_p: float | None,
    sampling: str | None,
) -> dict[str, Any]:
    """Return the keys of `SamplingConfig` that the user gives."""
    numbers = {"temperature": temperature, "top_k": top_k, "top_p": top_p, "min_p": min_p}
    keys = {**numbers, "sampling": sampling}
    return {key: value for key, value in keys.items() if value is not None}
