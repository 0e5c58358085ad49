"""Components that a recipe names with their settings.

They are its tools, engine, environment, trackers and filters.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.components import (
    BUILTIN_COMPONENTS,
    ENGINE_FEATURES,
    LOCAL_ENGINE,
    MCP_TOOL,
    TOOL_ENVIRONMENT,
    ComponentKind,
)
from fieldcraft.config.names import ComponentError, import_object, resolve
from fieldcraft.config.sections import DEFAULT_CALL_COST, TOOL_BUDGET_KEYS, Cost

SIGNATURE_REGEX = re.compile(r"\s*([\w-]+)\s*(?:\(\s*([\w-]+(?:\s*,\s*[\w-]+)*)\s*\)\s*)?")
ENVIRONMENT_REWARD = "environment"  # the reward given by an external environment

# Keys whose meaning depends on whether the environment has tools.
TOOL_ENVIRONMENT_KEYS = ("tools", "verdict_reward", "evaluation")
# Built-in filters that check only the question of a demonstration, and not its steps.
QUESTION_FILTERS = ("tests", "proofs", "near_duplicates", "contaminated")


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


class ToolSignature(NamedTuple):
    """Signature with `arguments` in the tool's order; arguments without a name here keep their
    original names."""

    name: str
    arguments: tuple[str, ...]


def parse_signature(text: str) -> ToolSignature:
    """Parse a signature. Raises ValueError if it is not a signature."""
    match = SIGNATURE_REGEX.fullmatch(text)
    if match is None:
        raise ValueError(f"'{text}' is not a tool signature: write it as in find or find(text)")
    name, arguments = match.groups()
    names = tuple(re.findall(r"[\w-]+", arguments or ""))
    if len(set(names)) < len(names):
        raise ValueError(f"'{text}' has two arguments of the same name: rename one")
    return ToolSignature(name, names)


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


@dataclass(frozen=True, kw_only=True)
class EngineFeatures:
    """Capabilities of an engine, which other modules read instead of its name. An engine class
    states them as its attribute `features`.

    Args:
        in_process: it samples from the model object itself, in the process of the run.
        several_models: it can sample from a second model next to the policy.
        cluster: what `cluster.engines` starts for it: processes with the local engine, or servers
            by its argument `pool_factory`; None: nothing.
        tensor_parallel: `cluster.tensor_parallel` can split it over several devices.
        kv_cache_gb: default of its setting `kv_cache_gb`; None: its caches grow with the sessions.
    """

    in_process: bool = False
    several_models: bool = True
    cluster: Literal["processes", "servers"] | None = None
    tensor_parallel: bool = False
    kv_cache_gb: float | None = None


class EngineConfig(ComponentConfig):
    """Engine that samples from the model in training."""

    name: str = LOCAL_ENGINE

    @property
    def features(self) -> EngineFeatures:
        """Capabilities of the engine. An engine of a user is imported; the default capabilities are
        those of one that states none or cannot be imported."""
        try:
            if self.name in ENGINE_FEATURES:
                found = import_object(ENGINE_FEATURES[self.name])
            else:
                found = getattr(resolve(ComponentKind.ENGINE, self.name), "features", None)
        except ComponentError:  # reported where the engine is made
            found = None
        return found if isinstance(found, EngineFeatures) else EngineFeatures()


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

    @property
    def calls_tools(self) -> bool:
        """Return whether the policy calls tools in the format of its dialect; other external
        environments use only its chat template. Their class states it as `calls_tools`."""
        if not self.is_external:
            return True
        return getattr(_find_environment(self.name), "calls_tools", False) is True


def _find_environment(name: str) -> Any:
    try:
        return resolve(ComponentKind.ENVIRONMENT, name)
    except ComponentError:  # reported where the environment is made
        return None


def list_unread_keys(environment: Any) -> Sequence[str]:
    """Return the recipe keys without effect in the environment that an unparsed value names: those
    of the framework's own rollouts, and those that the class states as `unread_keys`."""
    if not is_external_environment(environment):
        return ()
    if isinstance(environment, Mapping):
        environment = environment.get("name")
    name = environment.name if isinstance(environment, EnvironmentConfig) else environment
    own = getattr(_find_environment(name), "unread_keys", ()) if isinstance(name, str) else ()
    return (*(f"budget.{key}" for key in TOOL_BUDGET_KEYS), *own)


def is_external_environment(environment: Any) -> bool:
    """Return whether the unparsed value of the recipe key `environment` names an external
    environment."""
    match environment:
        case EnvironmentConfig():
            return environment.is_external
        case Mapping():
            return environment.get("name", TOOL_ENVIRONMENT) != TOOL_ENVIRONMENT
    return environment not in (None, TOOL_ENVIRONMENT)


def apply_environment_defaults(data: Any) -> Any:
    """Return the keys of a recipe, with defaults for an external environment. It has its own
    actions, so there are no tools and workflows. Its own reward is the verdict reward, unless the
    recipe sets another one."""
    if not isinstance(data, Mapping) or not is_external_environment(data.get("environment")):
        return data
    evaluation = data.get("evaluation", {})
    if isinstance(evaluation, Mapping):
        evaluation = {"workflows": (), **evaluation}
    return {"verdict_reward": ENVIRONMENT_REWARD, "tools": (), **data, "evaluation": evaluation}


class TrackerConfig(ComponentConfig):
    """Tracker that shows the curves of a run."""


def _fill_empty_settings(filters: Any) -> Any:
    """Return the filters with {} for filters without settings: in YAML, a name and a colon without
    a value mean null."""
    if not isinstance(filters, dict):
        return filters
    return {name: {} if own is None else own for name, own in filters.items()}


# Names of filters in the order of application, with their settings.
Filters = Annotated[dict[str, dict[str, Any]], BeforeValidator(_fill_empty_settings)]


def _validate_question_filters(filters: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    for name in filters:
        if name in BUILTIN_COMPONENTS[ComponentKind.FILTER] and name not in QUESTION_FILTERS:
            raise ValueError(
                f"the filter '{name}' needs an answered question, but questions are filtered here"
                f" before they are answered: use {', '.join(QUESTION_FILTERS)} or a custom filter"
            )
    return filters


QuestionFilters = Annotated[Filters, AfterValidator(_validate_question_filters)]
