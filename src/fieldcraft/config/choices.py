"""Components that a recipe names with their settings: tools, engine, environment, trackers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import ConfigDict, Field, field_validator, model_validator

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.names import LOCAL_ENGINE, MCP_TOOL, TOOL_ENVIRONMENT
from fieldcraft.config.sections import DEFAULT_CALL_COST, Cost
from fieldcraft.config.signatures import parse_signature


class ToolConfig(ConfigSection):
    """A tool by name. All keys except the ones below are settings of the tool; a name without
    settings may be given as a string. The key `mcp` makes it a server, which lists its tools."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    # name for the model, or several, of which each question has one; empty: the tool's own name
    names: tuple[str, ...] = ()
    # names with which evaluations repeat the leading split, as the split `unseen`
    eval_names: tuple[str, ...] = ()
    # cost of a call, in any unit; for a server, of all its tools or of each by name
    cost: Cost | dict[str, Cost] = DEFAULT_CALL_COST

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        match given:
            case str():
                return {"name": given}
            case {"mcp": _}:
                return {"name": MCP_TOOL, **given}
        return given

    @field_validator("names", "eval_names", mode="before")
    @classmethod
    def _wrap_single(cls, given: Any) -> Any:
        match given:
            case None:
                return ()
            case str():
                return (given,)
        return given

    @field_validator("names", "eval_names")
    @classmethod
    def _validate_signatures(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for text in given:
            parse_signature(text)
        return given

    def find_violations(self) -> Iterator[str]:
        if both := self.trained_names & {parse_signature(text).name for text in self.eval_names}:
            yield f"'{min(both)}' is also used in training: remove it from eval_names"
        if self.name == MCP_TOOL and (self.names or self.eval_names):
            yield "the tools of an MCP server cannot be renamed: use prefix instead"
        if self.name != MCP_TOOL and isinstance(self.cost, dict):
            yield "only an MCP server has costs by tool: write the cost as a number"
        if self.name == "search" and self.settings:
            yield (
                "the settings of the tool search are in the section search, so write"
                f" search: {{{next(iter(self.settings))}: ...}}"
            )

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def max_call_cost(self) -> float:
        """Cost of a call; for a server, the highest cost of its tools. Tools that it does not name
        have the default cost."""
        return (
            max([DEFAULT_CALL_COST, *self.cost.values()])
            if isinstance(self.cost, dict)
            else self.cost
        )

    @property
    def trained_names(self) -> set[str]:
        """Names of the tool in training. Names of a server's tools are unknown until it lists
        them."""
        if self.name == MCP_TOOL:
            return set()
        return {parse_signature(text).name for text in self.names} or {self.name}

    @property
    def all_names(self) -> set[str]:
        """Names of the tool in training or evaluation."""
        return self.trained_names | {parse_signature(text).name for text in self.eval_names}


class ComponentConfig(ConfigSection):
    """A component by name. All other keys are settings of the component; a name without settings
    may be given as a string."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        return {"name": given} if isinstance(given, str) else given

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})


class EngineConfig(ComponentConfig):
    """Engine that samples from the model in training."""

    name: str = LOCAL_ENGINE


class EnvironmentConfig(ComponentConfig):
    """Environment of the policy: the tools of the recipe, or an external environment."""

    name: str = TOOL_ENVIRONMENT
    tool_costs: dict[str, Cost] = Field(default={})  # cost of a call by tool name

    def find_violations(self) -> Iterator[str]:
        if self.tool_costs and not self.is_external:
            yield "tool_costs applies to external environments only: set cost on each tool instead"

    @property
    def is_external(self) -> bool:
        return self.name != TOOL_ENVIRONMENT


class TrackerConfig(ComponentConfig):
    """Tracker that shows the curves of a run."""
