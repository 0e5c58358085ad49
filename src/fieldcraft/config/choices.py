"""Parts that a recipe names together with their settings: tools, the engine, the environment."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from fieldcraft.config.names import LOCAL_ENGINE, MCP_TOOL, TOOL_ENVIRONMENT
from fieldcraft.config.sections import DEFAULT_CALL_COST, ConfigSection, Cost
from fieldcraft.config.signatures import parse_signature


class ToolConfig(ConfigSection):
    """A tool by name. Every key but those below is a setting of the tool; a name alone may be
    written as text. With the key `mcp` it is a server, which lists its tools itself."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    # what the model calls it: one name, or several, of which each question has one; none: its own
    names: tuple[str, ...] = ()
    # names under which evaluations ask the leading split again, as the split `unseen`
    eval_names: tuple[str, ...] = ()
    # of a call, in any unit; of a server, of all its tools or of each by its name
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

    @model_validator(mode="after")
    def _check_unseen_names(self) -> Self:
        if both := self.trained_names & {parse_signature(text).name for text in self.eval_names}:
            raise ValueError(f"'{min(both)}' is also used in training: remove it from eval_names")
        return self

    @model_validator(mode="after")
    def _check_server_names(self) -> Self:
        if self.name == MCP_TOOL and (self.names or self.eval_names):
            raise ValueError("the tools of an MCP server cannot be renamed: use prefix instead")
        return self

    @model_validator(mode="after")
    def _check_single_cost(self) -> Self:
        if self.name != MCP_TOOL and isinstance(self.cost, dict):
            raise ValueError("this is one tool, so write its cost as a number")
        return self

    @model_validator(mode="after")
    def _check_search_settings(self) -> Self:
        if self.name == "search" and self.settings:
            raise ValueError(
                "the settings of the tool search are in the section search, so write"
                f" search: {{{next(iter(self.settings))}: ...}}"
            )
        return self

    @property
    def settings(self) -> dict[str, Any]:
        return dict(self.model_extra or {})

    @property
    def max_call_cost(self) -> float:
        """Cost of a call; of a server, the highest of its tools. Those that it does not name have
        the usual cost."""
        return (
            max([DEFAULT_CALL_COST, *self.cost.values()])
            if isinstance(self.cost, dict)
            else self.cost
        )

    @property
    def trained_names(self) -> set[str]:
        """Names by which training calls it. The tools of a server are not known before it is
        asked."""
        if self.name == MCP_TOOL:
            return set()
        return {parse_signature(text).name for text in self.names} or {self.name}

    @property
    def all_names(self) -> set[str]:
        """Names by which training or an evaluation calls it."""
        return self.trained_names | {parse_signature(text).name for text in self.eval_names}


class ComponentConfig(ConfigSection):
    """A part by name. Every key but the name is a setting of the part; a name alone may be written
    as text."""

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
    """Place where the policy acts: with the tools of the recipe, or in an environment of others."""

    name: str = TOOL_ENVIRONMENT
    tool_costs: dict[str, Cost] = Field(default={})  # of a call, by the name of its tool

    @model_validator(mode="after")
    def _check_tool_costs(self) -> Self:
        if self.tool_costs and not self.is_external:
            raise ValueError(
                "tool_costs applies to external environments only: set cost on each tool instead"
            )
        return self

    @property
    def is_external(self) -> bool:
        return self.name != TOOL_ENVIRONMENT


class TrackerConfig(ComponentConfig):
    """A place that shows the curves of a run."""
