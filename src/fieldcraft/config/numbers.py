"""Numbers of settings, with their limits."""

from typing import Annotated

from pydantic import Field

OpenFraction = Annotated[float, Field(gt=0, lt=1)]
UnitFraction = Annotated[float, Field(ge=0, le=1)]
PositiveFraction = Annotated[float, Field(gt=0, le=1)]
NonNegativeNumber = Annotated[float, Field(ge=0)]
