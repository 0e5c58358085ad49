"""Components that a recipe names: built-in, from installed packages, and user-defined.

A name is a built-in name, an entry point of an installed package (the group is `fieldcraft.` and
the kind, as in `fieldcraft.rewards`), or `module:Name`, which is imported. The current folder is on
the import path, like with `python -m`.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import sys
from collections.abc import Collection, Mapping, Sequence
from difflib import get_close_matches
from enum import StrEnum
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any, Literal, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from fieldcraft.config.moved_modules import find_current_path
from fieldcraft.types import UserError


class ComponentKind(StrEnum):
    """Kind of a named component."""

    TOOL = "tool"
    REWARD = "reward"
    DIALECT = "dialect"
    WORLD = "world"
    WORKFLOW = "workflow"
    TEAM = "team"
    FILTER = "filter"
    VERIFIER = "verifier"
    ALGORITHM = "algorithm"
    STAGE = "stage type"
    ENGINE = "engine"
    ENVIRONMENT = "environment"
    TRACKER = "tracker"
    FORMAT = "format"

    @property
    def entry_point_group(self) -> str:
        """Entry point group of the kind."""
        return f"fieldcraft.{self.value.replace(' ', '_')}s"


LOCAL_ENGINE, VLLM_ENGINE = "local", "vllm"
AUTO_VERDICT = "auto"  # value of `verdict_reward`: each task is graded by its own grader
VERDICT_REWARD_KEY = "correct"  # key of `rewards` for the reward that `verdict_reward` names
TOOL_ENVIRONMENT = "tools"  # default environment of a run
MCP_TOOL = "mcp"  # a server whose tools have their own names
_ANSWERS, _COST = "fieldcraft.rewards.answers", "fieldcraft.rewards.tool_cost"
_METHODS = "fieldcraft.extensions.methods"
_ALGORITHMS = "fieldcraft.config.algorithms"
_STAGES = "fieldcraft.train.stages"
_CURATION = "fieldcraft.extensions.curation"
_FILTERS = f"{_CURATION}.builtin_filters"
_WORKFLOWS = "fieldcraft.extensions.search.workflows"
_VERIFIERS = "fieldcraft.evaluation.verifiers"
_TRACKERS = "fieldcraft.extensions.trackers"
_FORMATS = "fieldcraft.extensions.formats"
# Modules of extensions that a run imports once its recipe has a cluster, or trackers.
CLUSTER_MODULE = "fieldcraft.extensions.cluster.backend"
TRACKERS_MODULE = "fieldcraft.extensions.trackers.subscriber"
# Modules that register the commands of the command line, in the order of its help.
COMMAND_MODULES = (
    *("fieldcraft.cli.runs", "fieldcraft.extensions.planning.commands", "fieldcraft.cli.agents"),
    *("fieldcraft.cli.show", "fieldcraft.extensions.studio.commands"),
    *("fieldcraft.extensions.worlds.commands", f"{_CURATION}.commands", "fieldcraft.cli.data"),
    *("fieldcraft.extensions.search.commands", "fieldcraft.extensions.sandbox.commands"),
    *("fieldcraft.extensions.formats.commands", "fieldcraft.extensions.serving.commands"),
)
# Functions that write pages of results; without their extension there are none.
PageKind = Literal["report", "seeds", "card"]
PAGE_EXTENSION = "fieldcraft.extensions.studio"
PAGE_WRITERS: Mapping[PageKind, str] = {
    "report": f"{PAGE_EXTENSION}.report_page:write_report_page",
    "seeds": f"{PAGE_EXTENSION}.seeds_page:write_seeds_page",
    "card": f"{PAGE_EXTENSION}.pages:write_card_page",
}
BUILTIN_COMPONENTS: Mapping[ComponentKind, Mapping[str, str]] = {
    ComponentKind.TOOL: {
        "search": "fieldcraft.extensions.search.tool:SearchTool",
        "python": "fieldcraft.extensions.sandbox.tool:make_python",
        "web_search": "fieldcraft.extensions.web.search:make_web_search",
        "crawl_page": "fieldcraft.extensions.web.crawl:make_crawl_page",
        MCP_TOOL: "fieldcraft.extensions.mcp.server:McpServer",
    },
    ComponentKind.REWARD: {
        "em": f"{_ANSWERS}:ExactMatch",
        "f1": f"{_ANSWERS}:F1Reward",
        "cover_em": f"{_ANSWERS}:CoverExactMatch",
        "format": f"{_ANSWERS}:FormatReward",
        "format_penalty": f"{_ANSWERS}:FormatPenaltyReward",
        "judge": "fieldcraft.rewards.judge:JudgeReward",
        "repair": "fieldcraft.rewards.rollouts:RepairReward",
        "otc-grpo": f"{_COST}:OtcGrpoReward",
        "otc-ppo": f"{_COST}:OtcPpoReward",
        "math": "fieldcraft.extensions.math.reward:MathReward",
        "unit_tests": "fieldcraft.rewards.programs:UnitTestReward",
        "stdin_tests": "fieldcraft.rewards.programs:StdinTestReward",
        "answer_format": f"{_METHODS}.afm:FormattedVerdictReward",
        "plus_minus": f"{_METHODS}.retool_torl:SignedVerdictReward",
        "executable": f"{_METHODS}.retool_torl:ExecutablePenalty",
        "environment": "fieldcraft.rewards.rollouts:EnvironmentReward",
        "toolrl": f"{_METHODS}.toolrl:ToolRLReward",
        "toolrl_format": f"{_METHODS}.toolrl:ToolRLFormatReward",
        "toolrl_exact": f"{_METHODS}.toolrl:ToolRLExactReward",
    },
    ComponentKind.DIALECT: {
        "autocoa": f"{_METHODS}.autocoa:AutoCoADialect",
        "search-r1": f"{_METHODS}.search_r1:SearchR1Dialect",
        "otc": f"{_METHODS}.search_r1:OtcDialect",
        "hermes": "fieldcraft.dialects.hermes:HermesDialect",
        "torl": f"{_METHODS}.retool_torl:ToRLDialect",
        "retool": f"{_METHODS}.retool_torl:ReToolDialect",
        "afm": f"{_METHODS}.afm:AfmDialect",
        "afm-web": f"{_METHODS}.afm:AfmWebDialect",
        "afm-mhqa": f"{_METHODS}.afm:AfmMhqaDialect",
        "afm-code": f"{_METHODS}.afm_code:AfmCodeDialect",
        "toolrl": f"{_METHODS}.toolrl:ToolRLDialect",
    },
    ComponentKind.WORKFLOW: {
        "workflow": f"{_WORKFLOWS}:react",
        "rag": f"{_WORKFLOWS}:rag",
        "reflexion": f"{_WORKFLOWS}:reflexion",
        "prompted-react": f"{_CURATION}.prompted_workflows:prompted_react",
        "prompted-reflexion": f"{_CURATION}.prompted_workflows:prompted_reflexion",
    },
    ComponentKind.TEAM: {
        "afm": f"{_METHODS}.afm_team:AFM_TEAM",
        "afm-code": f"{_METHODS}.afm_code_team:AFM_CODE_TEAM",
    },
    ComponentKind.FILTER: {
        "complexity": f"{_FILTERS}:ComplexityFilter",
        "tools": f"{_FILTERS}:ToolsFilter",
        "hops": f"{_FILTERS}:HopsFilter",
        "tests": f"{_FILTERS}:TestsFilter",
        "proofs": f"{_FILTERS}:drop_proofs",
        "wrong": f"{_FILTERS}:drop_wrong",
        "redundant": f"{_FILTERS}:drop_redundant",
        "off_grammar": f"{_FILTERS}:drop_off_grammar",
        "reflection": f"{_FILTERS}:ReflectionFilter",
        "corrected": f"{_FILTERS}:CorrectionFilter",
        "near_duplicates": f"{_FILTERS}:NearDuplicateFilter",
        "contaminated": f"{_FILTERS}:ContaminationFilter",
    },
    ComponentKind.VERIFIER: {
        "vote": f"{_VERIFIERS}:pick_majority",
        "double_check": f"{_VERIFIERS}:pick_double_checked",
        "judge": f"{_VERIFIERS}:JudgeVerifier",
    },
    ComponentKind.ALGORITHM: {
        "grpo": f"{_ALGORITHMS}:GRPO",
        "dr-grpo": f"{_ALGORITHMS}:DR_GRPO",
        "dapo": f"{_ALGORITHMS}:DAPO",
        "gspo": f"{_ALGORITHMS}:GSPO",
        "cispo": f"{_ALGORITHMS}:CISPO",
        "rloo": f"{_ALGORITHMS}:RLOO",
        "reinforce++": f"{_ALGORITHMS}:REINFORCE_PP",
        "reinforce++-baseline": f"{_ALGORITHMS}:REINFORCE_PP_BASELINE",
        "ppo": f"{_ALGORITHMS}:PPO",
        "distil": f"{_ALGORITHMS}:DISTIL",
    },
    ComponentKind.STAGE: {
        "sft": f"{_STAGES}.sft:SftStage",
        "contrastive": f"{_STAGES}.contrastive:ContrastiveStage",
        "rl": f"{_STAGES}.rl:RlStage",
        "distil": f"{_STAGES}.distil:DistilStage",
    },
    ComponentKind.ENGINE: {
        LOCAL_ENGINE: "fieldcraft.engine.local.engine:LocalEngine",
        VLLM_ENGINE: "fieldcraft.extensions.vllm.engine:VllmEngine",
    },
    ComponentKind.ENVIRONMENT: {
        TOOL_ENVIRONMENT: "fieldcraft.environments.tool_environment:ToolEnvironment",
        "text": "fieldcraft.extensions.external_envs.games:TextEnvironment",
        "blackbox": "fieldcraft.extensions.external_envs.blackbox:BlackBoxEnvironment",
        "openenv": "fieldcraft.extensions.external_envs.openenv:OpenEnvEnvironment",
        "verifiers": "fieldcraft.extensions.external_envs.verifiers:VerifiersEnvironment",
    },
    ComponentKind.TRACKER: {
        "tensorboard": f"{_TRACKERS}.tensorboard:TensorBoardTracker",
        "wandb": f"{_TRACKERS}.wandb:WandbTracker",
        "trackio": f"{_TRACKERS}.trackio:TrackioTracker",
        "mlflow": f"{_TRACKERS}.mlflow:MlflowTracker",
    },
    # In the order in which they are asked about a file.
    ComponentKind.FORMAT: {
        "toolrl": f"{_METHODS}.toolrl_files:ToolRLFormat",
        "autocoa-pairs": f"{_FORMATS}.autocoa:AutoCoAPairs",
        "chats": f"{_FORMATS}.chat_files:ChatFiles",
        "trajectories": f"{_FORMATS}.published_trajectories:PublishedTrajectories",
    },
}

# Capabilities (`config.choices.EngineFeatures`) of built-in engines, without importing the engines.
ENGINE_FEATURES: Mapping[str, str] = {
    LOCAL_ENGINE: "fieldcraft.engine.local:FEATURES",
    VLLM_ENGINE: "fieldcraft.extensions.vllm:FEATURES",
}
# Required base class and attributes of a named class.
REQUIRED_BASES: Mapping[ComponentKind, tuple[str, Sequence[str]]] = {
    ComponentKind.DIALECT: (
        "fieldcraft.dialects.base:BaseDialect",
        ("name", "stop_strings", "tags", "default_instruction"),
    ),
    ComponentKind.WORLD: ("fieldcraft.data.world:World", ("splits", "datasets")),
    ComponentKind.ALGORITHM: ("fieldcraft.train.algorithm:Algorithm", ()),
    ComponentKind.STAGE: ("fieldcraft.train.stages.base:TrainingStage", ("Settings",)),
    ComponentKind.TRACKER: ("fieldcraft.extensions.trackers.base:Tracker", ()),
    ComponentKind.FORMAT: ("fieldcraft.data.file_formats:FileFormat", ()),
}


MIN_SIMILARITY = 0.5  # ratio of difflib, which is 0.5 for "me" and "em"


class ComponentError(UserError):
    """The name of a component is unknown, or refers to an object of the wrong kind."""


def list_registered(kind: ComponentKind) -> dict[str, str]:
    """Return a mapping from each registered name of a kind to its location `module:Name`."""
    return dict(_list_entry_points(kind, tuple(sys.path))) | (
        _list_worlds() if kind is ComponentKind.WORLD else dict(BUILTIN_COMPONENTS[kind])
    )


@lru_cache(maxsize=64)  # reading the metadata of all packages takes 5 ms per name
def _list_entry_points(kind: ComponentKind, path: tuple[str, ...]) -> Mapping[str, str]:
    """Return the entry points of packages on the import path, which may change."""
    return {entry.name: entry.value for entry in entry_points(group=kind.entry_point_group)}


def list_installed_names() -> set[str]:
    """Return the names of components from installed packages, of all kinds."""
    builtin = set(_list_worlds()).union(
        *(BUILTIN_COMPONENTS.get(kind, ()) for kind in ComponentKind)
    )
    return {
        name for kind in ComponentKind for name in _list_entry_points(kind, tuple(sys.path))
    } - builtin


def _list_worlds() -> dict[str, str]:
    """Return the worlds by name. A world is a folder of extensions/worlds; the folder `name` has
    the class `NameWorld`."""
    package = importlib.import_module("fieldcraft.extensions.worlds")
    return {
        module.name: f"{package.__name__}.{module.name}:{module.name.title()}World"
        for module in pkgutil.iter_modules(package.__path__)
        if module.ispkg
    }


def resolve(kind: ComponentKind, name: str) -> Any:
    """Return the object of a name. Raises ComponentError as `resolve_path` and `import_object`, and
    for an object of the wrong kind."""
    component = import_object(resolve_path(kind, name))
    is_preset = kind is ComponentKind.ALGORITHM and isinstance(component, Mapping)
    if kind in REQUIRED_BASES and not is_preset:
        _require_complete_class(kind, name, component)
    return component


def _require_complete_class(kind: ComponentKind, name: str, component: Any) -> None:
    base, attributes = REQUIRED_BASES[kind]
    if not (isinstance(component, type) and issubclass(component, import_object(base))):
        article, alternative = "a", ""
        if kind is ComponentKind.ALGORITHM:
            article, alternative = "an", "a mapping of keys of an rl stage, or "
        raise ComponentError(
            f"'{name}' is not {article} {kind}: make it {alternative}a subclass of"
            f" {base.replace(':', '.')}."
        )
    abstract: Collection[str] = vars(component).get("__abstractmethods__", ())
    lacks = [*sorted(abstract), *(a for a in attributes if a not in dir(component))]
    if lacks:
        raise ComponentError(f"the {kind} '{name}' is incomplete: implement {', '.join(lacks)}.")


def resolve_path(kind: ComponentKind, name: str) -> str:
    """Return `module:Name` for a name, without importing it.

    Raises ComponentError for an unknown name. The message contains the most similar one.
    """
    names = list_registered(kind)
    if name in names or ":" in name:
        return names.get(name, name)
    near = get_close_matches(name, names, n=1, cutoff=MIN_SIMILARITY)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    raise ComponentError(
        f"unknown {kind} '{name}'{hint}: use one of {', '.join(names)}, or your own module:Name."
    )


def import_object(import_path: str) -> Any:
    """Return the object at `module:Name`. Raises ComponentError if the module cannot be imported,
    or has no such name."""
    module_name, _, attribute = find_current_path(import_path).partition(":")
    is_builtin = module_name.partition(".")[0] == "fieldcraft"
    if not is_builtin and str(Path.cwd()) not in sys.path:  # files there would hide libraries
        sys.path.insert(0, str(Path.cwd()))
    try:
        component = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script may exit during import
        raise ComponentError(
            f"'{import_path}' cannot be used, because the import of '{module_name}' failed"
            f" ({describe_exception(error)}): correct the module, or start where Python finds it."
        ) from error
    for part in attribute.split("."):
        if part not in dir(component):
            if module_name == "__main__":
                raise ComponentError(
                    f"'{import_path}' cannot be used, because it is defined in a script that is not"
                    " running: move it to a module and import it in the script."
                )
            public = [name for name in dir(component) if not name.startswith("_")]
            raise ComponentError(
                f"'{import_path}' cannot be used, because '{module_name}' has no '{attribute}';"
                f" {suggest_name(part, public) if public else 'define it there.'}"
            )
        component = getattr(component, part)
    return component


def get_import_path(component: Any) -> str:
    """Return `module:Name` of a class, a function or a tool that is defined at module level.

    Raises UserError for other objects, because a resumed run could not find them.
    """
    owner = (
        component
        if isinstance(component, type) or inspect.isfunction(component)
        else type(component)
    )
    definition = getattr(
        component, "function", owner
    )  # a tool is found by the name of its function
    import_path = f"{definition.__module__}:{definition.__qualname__}"
    if "<" in import_path or import_object(import_path) is not component:
        raise UserError(
            f"{definition.__qualname__} must be defined at module level under that name, so"
            " that a resumed run can import it."
        )
    return import_path


def describe_exception(error: BaseException) -> str:
    """Return an exception of a user-defined component in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def get_first_line(error: BaseException) -> str:
    """Return the first line of a library's error, without final punctuation; its type if it has no
    message."""
    return str(error).strip().split("\n")[0].rstrip(".: ") or type(error).__name__


def format_short(value: object) -> str:
    """Return a representation of a value in one short line."""
    return " ".join(repr(value).split())[:60]


def get_display_name(name: str) -> str:
    """Return the name of a component in files and tables: `tree` for `my_package.flows:tree`."""
    return name.rpartition(":")[2]


def validate_folder_name(name: str) -> str:
    """Return the name if it is a valid folder name. Raises ValueError for paths and unprintable
    names."""
    if not name.strip() or not name.isprintable() or name.startswith(".") or {*"/\\"} & {*name}:
        raise ValueError("it is used as a folder name: use only letters, digits, - and _")
    return name


def suggest_name(name: str, names: Collection[str], prefix: str = "") -> str:
    """Return a question with the most similar name, or all names if none is similar. Each name gets
    the prefix."""
    near = get_close_matches(name, names, n=1, cutoff=MIN_SIMILARITY)
    if near:
        return f"did you mean '{prefix}{near[0]}'?"
    return f"use one of {', '.join(prefix + name for name in names)}."


def _find_init_owner(component: type) -> type:
    """Return the class that defines the constructor of a class, which may be inherited."""
    return next(base for base in component.__mro__ if "__init__" in vars(base))


def make_settings_model(component: Any, provided: Collection[str] = ()) -> type[BaseModel]:
    """Return a model of the settings of a class or a function: its parameters with their types and
    defaults, except those that are `provided` by the framework."""
    signature_source = (
        vars(_find_init_owner(component))["__init__"] if isinstance(component, type) else component
    )
    hints = get_type_hints(signature_source, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(component).parameters.values():
        if parameter.name in provided or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, frozen=True)
    return create_model(f"settings of {component.__name__}", __config__=config, **fields)
