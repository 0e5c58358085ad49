"""Parts that a recipe names together with their settings: tools, the engine, the environment."""

from __future__ import annotations

from typing import Any, Self

from pydantic import ConfigDict, Field, field_validator, model_validator

from fieldcraft.config.names import LOCAL, MCP, TOOLS
from fieldcraft.config.sections import DEFAULT_COST, Cost, Section
from fieldcraft.config.signatures import read_signature


class ToolChoice(Section):
    """A tool by name. Every key but those below is a setting of the tool; a name alone may be
    written as text. With the key `mcp` it is a server, which lists its tools itself."""

    model_config = ConfigDict(extra="allow", frozen=True)

    name: str
    # what the model calls it: one name, or several, of which each question has one; none: its own
    called: tuple[str, ...] = ()
    # names under which evaluations ask the leading split again, as the split `unseen`
    unseen: tuple[str, ...] = ()
    # of a call, in any unit; of a server, of all its tools or of each by its name
    cost: Cost | dict[str, Cost] = DEFAULT_COST

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, given: Any) -> Any:
        match given:
            case str():
                return {"name": given}
            case {"mcp": _}:
                return {"name": MCP, **given}
        return given

    @field_validator("called", "unseen", mode="before")
    @classmethod
    def _one_or_several(cls, given: Any) -> Any:
        match given:
            case None:
                return ()
            case str():
                return (given,)
        return given

    @field_validator("called", "unseen")
    @classmethod
    def _are_signatures(cls, given: tuple[str, ...]) -> tuple[str, ...]:
        for text in given:
            read_signature(text)
        return given

    @model_validator(mode="after")
    def _unseen_is_unseen(self) -> Self:
        if both := self.trained_names & {read_signature(text).name for text in self.unseen}:
            raise ValueError(f"'{min(both)}' is a name of training, so remove it from unseen")
        return self

    @model_validator(mode="after")
    def _servers_name_their_tools(self) -> Self:
        if self.name == MCP and (self.called or self.unseen):
            raise ValueError("an MCP server names its tools itself, so write prefix in place of it")
        return self

    @model_validator(mode="after")
    def _only_servers_have_several(self) -> Self:
        if self.name != MCP and isinstance(self.cost, dict):
            raise ValueError("this is one tool, so write its cost as a number")
        return self

    @model_validator(mode="after")
    def _search_has_a_section(self) -> Self:
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
    def highest_cost(self) -> float:
        """Cost of a call; of a server, the highest of its tools. Those that it does not name have
        the usual cost."""
        return (
            max([DEFAULT_COST, *self.cost.values()]) if isinstance(self.cost, dict) else self.cost
        )

    @property
    def trained_names(self) -> set[str]:
        """Names by which training calls it. The tools of a server are not known before it is
        asked."""
        if self.name == MCP:
            return set()
        return {read_signature(text).name for text in self.called} or {self.name}

    @property
    def all_names(self) -> set[str]:
        """Names by which training or an evaluation calls it."""
        return self.trained_names | {read_signature(text).name for text in self.unseen}


class Choice(Section):
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


class EngineChoice(Choice):
    """Engine that samples from the model in training."""

    name: str = LOCAL


class EnvironmentChoice(Choice):
    """Place where the policy acts: with the tools of the recipe, or in an environment of others."""

    name: str = TOOLS
    tool_costs: dict[str, Cost] = Field(default={})  # of a call, by the name of its tool

    @model_validator(mode="after")
    def _tools_have_their_own(self) -> Self:
        if self.tool_costs and not self.of_others:
            raise ValueError("tool_costs are of an environment of others: write cost beside a tool")
        return self

    @property
    def of_others(self) -> bool:
        return self.name != TOOLS


class TrackerChoice(Choice):
    """A place that shows the curves of a run."""
