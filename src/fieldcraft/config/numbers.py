"""Numbers of settings, with their limits."""

from typing import Annotated

from pydantic import Field

OpenFraction = Annotated[float, Field(gt=0, lt=1)]
UnitFraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
MAX_LAYERS = 1000  # several times as many as any published model has
# A world is in memory, so a larger number is a mistake that would exhaust it.
MAX_WORLD_COUNT = 100_000
WorldCount = Annotated[int, Field(gt=0, le=MAX_WORLD_COUNT)]
NonNegativeNumber = Annotated[float, Field(ge=0)]
# At this temperature samples are practically uniform; usual ones are at most 2.
MAX_TEMPERATURE = 100
Temperature = Annotated[float, Field(ge=0, le=MAX_TEMPERATURE)]  # 0: greedy
PositiveTemperature = Annotated[float, Field(gt=0, le=MAX_TEMPERATURE)]
