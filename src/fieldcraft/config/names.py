"""The parts that a recipe names: those of fieldcraft, those of installed packages, and the user's.

A name is one that is built in, one of an entry point that an installed package declares (the group
is `fieldcraft.` and the kind, as in `fieldcraft.rewards`), or `module:Name`, which is imported. The
current folder is on the import path, as it is for `python -m`.
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
from typing import Any, get_type_hints

from pydantic import BaseModel, ConfigDict, create_model

from fieldcraft.types import UserError


class Kind(StrEnum):
    """Kinds of part that a name can stand for."""

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

    @property
    def group(self) -> str:
        """Group of entry points."""
        return f"fieldcraft.{self.value.replace(' ', '_')}s"


LOCAL, VLLM = "local", "vllm"
AUTO = "auto"  # of `correct`: each task is graded by its own grader
CORRECT = "correct"  # of `rewards`: the reward that the key `correct` names
TOOLS = "tools"  # the environment that a run has without one of others
MCP = "mcp"  # a server whose tools have names of their own
_ANSWERS, _COST = "fieldcraft.rewards.answers", "fieldcraft.rewards.tool_cost"
_CODE = "fieldcraft.rewards.code_agents"
_ALGORITHMS = "fieldcraft.config.algorithms"
_AFM = "fieldcraft.dialects.afm"
_STAGES = "fieldcraft.train.stages"
_RULES = "fieldcraft.data.rules"
_QUESTION_RULES = "fieldcraft.data.question_rules"
_VERIFIERS = "fieldcraft.evals.verifiers"
_TRACKERS = "fieldcraft.trackers"
BUILT_IN: Mapping[Kind, Mapping[str, str]] = {
    Kind.TOOL: {
        "search": "fieldcraft.tools.search.tool:SearchTool",
        "python": "fieldcraft.tools.python.tool:make_python",
        "web_search": "fieldcraft.web.search:make_web_search",
        "crawl_page": "fieldcraft.web.crawl:make_crawl_page",
        MCP: "fieldcraft.tools.mcp.server:McpServer",
    },
    Kind.REWARD: {
        "em": f"{_ANSWERS}:ExactMatch",
        "f1": f"{_ANSWERS}:F1",
        "cover_em": f"{_ANSWERS}:CoverEM",
        "format": f"{_ANSWERS}:Format",
        "format_penalty": f"{_ANSWERS}:FormatPenaltyReward",
        "judge": "fieldcraft.rewards.judge:Judge",
        "repair": "fieldcraft.rewards.repairs:Repair",
        "otc-grpo": f"{_COST}:OtcGrpo",
        "otc-ppo": f"{_COST}:OtcPpo",
        "math": "fieldcraft.rewards.mathematics:Math",
        "unit_tests": "fieldcraft.rewards.programs:UnitTests",
        "stdin_tests": "fieldcraft.rewards.programs:StdinTests",
        "answer_format": f"{_CODE}:AnswerFormat",
        "plus_minus": f"{_CODE}:PlusMinus",
        "executable": f"{_CODE}:Executable",
        "environment": "fieldcraft.rewards.environment:EnvironmentReward",
        "toolrl": f"{_CODE}:ToolRL",
        "toolrl_format": f"{_CODE}:ToolRLFormat",
        "toolrl_exact": f"{_CODE}:ToolRLExact",
    },
    Kind.DIALECT: {
        "autocoa": "fieldcraft.dialects.autocoa:AutoCoA",
        "search-r1": "fieldcraft.dialects.search_r1:SearchR1",
        "otc": "fieldcraft.dialects.search_r1:Otc",
        "hermes": "fieldcraft.dialects.hermes:Hermes",
        "torl": "fieldcraft.dialects.torl:ToRL",
        "retool": "fieldcraft.dialects.retool:ReTool",
        "afm": f"{_AFM}:Afm",
        "afm-web": f"{_AFM}:AfmWeb",
        "afm-mhqa": f"{_AFM}:AfmMhqa",
        "afm-code": "fieldcraft.dialects.afm_code:AfmCode",
        "toolrl": "fieldcraft.dialects.toolrl:ToolRL",
    },
    Kind.WORKFLOW: {
        "workflow": "fieldcraft.agents.react:react",
        "rag": "fieldcraft.agents.rag:rag",
        "reflexion": "fieldcraft.agents.reflexion:reflexion",
        "prompted-react": "fieldcraft.agents.prompted_react:prompted_react",
        "prompted-reflexion": "fieldcraft.agents.prompted_reflexion:prompted_reflexion",
    },
    Kind.TEAM: {
        "afm": "fieldcraft.agents.afm_team:AFM",
        "afm-code": "fieldcraft.agents.afm_code_team:AFM_CODE",
    },
    Kind.FILTER: {
        "complexity": f"{_RULES}:Complexity",
        "tools": f"{_RULES}:ToolsFilter",
        "hops": f"{_RULES}:HopsFilter",
        "tests": f"{_QUESTION_RULES}:TestsFilter",
        "proofs": f"{_QUESTION_RULES}:proofs",
        "wrong": f"{_RULES}:wrong",
        "redundant": f"{_RULES}:redundant",
        "off_grammar": f"{_RULES}:off_grammar",
        "reflection": f"{_RULES}:Reflection",
        "corrected": f"{_RULES}:Corrected",
        "near_duplicates": f"{_RULES}:NearDuplicates",
        "contaminated": f"{_RULES}:Contaminated",
    },
    Kind.VERIFIER: {
        "vote": f"{_VERIFIERS}:vote",
        "double_check": f"{_VERIFIERS}:double_check",
        "judge": f"{_VERIFIERS}:AskedModel",
    },
    Kind.ALGORITHM: {
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
    Kind.STAGE: {
        "sft": f"{_STAGES}.sft:SftStage",
        "contrastive": f"{_STAGES}.contrastive:ContrastiveStage",
        "rl": f"{_STAGES}.rl:RlStage",
        "distil": f"{_STAGES}.distil:DistilStage",
    },
    Kind.ENGINE: {
        LOCAL: "fieldcraft.engine.local.engine:LocalEngine",
        VLLM: "fieldcraft.engine.vllm.engine:VllmEngine",
    },
    Kind.ENVIRONMENT: {
        TOOLS: "fieldcraft.envs.environment:ToolEnvironment",
        "text": "fieldcraft.gateway.text:TextEnvironment",
        "blackbox": "fieldcraft.gateway.blackbox:BlackBox",
        "openenv": "fieldcraft.gateway.openenv:OpenEnv",
        "verifiers": "fieldcraft.gateway.verifiers:Verifiers",
    },
    Kind.TRACKER: {
        "tensorboard": f"{_TRACKERS}.tensorboard:TensorBoard",
        "wandb": f"{_TRACKERS}.wandb:Wandb",
        "trackio": f"{_TRACKERS}.trackio:Trackio",
        "mlflow": f"{_TRACKERS}.mlflow:Mlflow",
    },
}

# What a named class must be a subclass of, and the attributes that it must have.
BASES: Mapping[Kind, tuple[str, Sequence[str]]] = {
    Kind.DIALECT: (
        "fieldcraft.dialects.base:BaseDialect",
        ("name", "stop", "tags", "own_instruction"),
    ),
    Kind.WORLD: ("fieldcraft.worlds.base:World", ("splits", "datasets")),
    Kind.STAGE: ("fieldcraft.train.stages.base:StageType", ("Settings",)),
    Kind.TRACKER: ("fieldcraft.trackers.base:Tracker", ()),
}


SIMILAR = 0.5  # difflib's measure: of "me" and "em"; below it, words have little in common


class PartError(UserError):
    """A name stands for nothing, or for something else than it should."""


def known(kind: Kind) -> dict[str, str]:
    """Return every name of a kind that needs no module in it, and where it is: `module:Name`."""
    return dict(_installed(kind, tuple(sys.path))) | (
        _worlds() if kind is Kind.WORLD else dict(BUILT_IN[kind])
    )


@lru_cache(maxsize=64)  # reading the metadata of every package takes 5 ms, for every name anew
def _installed(kind: Kind, path: tuple[str, ...]) -> Mapping[str, str]:
    """Return the entry points of packages on the import path, which may change."""
    return {entry.name: entry.value for entry in entry_points(group=kind.group)}


def of_packages() -> set[str]:
    """Return the names of parts that installed packages bring, of all kinds."""
    own = set(_worlds()).union(*(BUILT_IN.get(kind, ()) for kind in Kind))
    return {name for kind in Kind for name in _installed(kind, tuple(sys.path))} - own


def _worlds() -> dict[str, str]:
    """Return the worlds by name: a world is a folder of fieldcraft/worlds, and its class is named
    after it, as in ThisWorld."""
    package = importlib.import_module("fieldcraft.worlds")
    return {
        module.name: f"{package.__name__}.{module.name}:{module.name.title()}World"
        for module in pkgutil.iter_modules(package.__path__)
        if module.ispkg
    }


def find(kind: Kind, name: str) -> Any:
    """Return the object that a name stands for. Raises PartError as `require` and `load` do, and
    for something that is not of its kind."""
    found = load(require(kind, name))
    if kind in BASES:
        _check_class(kind, name, found)
    return found


def _check_class(kind: Kind, name: str, found: Any) -> None:
    base, attributes = BASES[kind]
    if not (isinstance(found, type) and issubclass(found, load(base))):
        raise PartError(f"'{name}' is no {kind}: make it a subclass of {base.replace(':', '.')}.")
    abstract: Collection[str] = vars(found).get("__abstractmethods__", ())
    lacks = [*sorted(abstract), *(a for a in attributes if a not in dir(found))]
    if lacks:
        raise PartError(f"the {kind} '{name}' is not complete: write its {', '.join(lacks)}.")


def require(kind: Kind, name: str) -> str:
    """Return `module:Name` for a name; nothing is imported yet.

    Raises PartError, which names the nearest, where there is no such name.
    """
    names = known(kind)
    if name in names or ":" in name:
        return names.get(name, name)
    near = get_close_matches(name, names, n=1, cutoff=SIMILAR)
    advice = f"did you mean '{near[0]}', or" if near else "use one of these, or"
    raise PartError(
        f"there is no {kind} '{name}' among {', '.join(names)}; {advice} one of your own, written"
        f" as module:Name{'?' if near else '.'}"
    )


def load(place: str) -> Any:
    """Return the object at `module:Name`. Raises PartError for a module that cannot be imported,
    and for a name that it does not have."""
    module_name, _, attribute = place.partition(":")
    own = module_name.partition(".")[0] == "fieldcraft"
    if not own and str(Path.cwd()) not in sys.path:  # a file there would hide one of a library
        sys.path.insert(0, str(Path.cwd()))
    try:
        found = importlib.import_module(module_name)
    except (Exception, SystemExit) as error:  # a script may end where it is imported
        raise PartError(
            f"'{place}' cannot be used, because the import of '{module_name}' failed"
            f" ({cause_of(error)}): correct the module, or start where Python finds it."
        ) from error
    for part in attribute.split("."):
        if part not in dir(found):
            if module_name == "__main__":
                raise PartError(
                    f"'{place}' cannot be used, because it is part of a script that is not running:"
                    " define it in a module of its own and import it in the script."
                )
            public = [name for name in dir(found) if not name.startswith("_")]
            raise PartError(
                f"'{place}' cannot be used, because '{module_name}' has no '{attribute}';"
                f" {suggestion(part, public) if public else 'write it there.'}"
            )
        found = getattr(found, part)
    return found


def name_of(part: Any) -> str:
    """Return `module:Name` of a class, a function or a tool that is defined at the top of a module.

    Raises UserError for any other: a run could not find it again when it is resumed.
    """
    owner = part if isinstance(part, type) or inspect.isfunction(part) else type(part)
    written = getattr(part, "function", owner)  # a tool is found by the name of its function
    place = f"{written.__module__}:{written.__qualname__}"
    if "<" in place or load(place) is not part:
        raise UserError(
            f"{written.__qualname__} must be defined at the top of a module under that name, so"
            " that the run finds it again when it is resumed."
        )
    return place


def cause_of(error: BaseException) -> str:
    """Return the error that a part of the user's raised, in one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def first_line(error: BaseException) -> str:
    """Return what an error of a library says first, without what ends a sentence; its type where it
    says nothing."""
    return str(error).strip().split("\n")[0].rstrip(".: ") or type(error).__name__


def shown(value: object) -> str:
    """Return a value in one short line."""
    return " ".join(repr(value).split())[:60]


def short(name: str) -> str:
    """Return the name of a part in files and tables: `tree` for `my_package.flows:tree`."""
    return name.rpartition(":")[2]


def folder_name(name: str) -> str:
    """Return the name, if a folder can have it. Raises ValueError for a path, and what cannot be
    read."""
    if not name.strip() or not name.isprintable() or name.startswith(".") or {*"/\\"} & {*name}:
        raise ValueError("it becomes the name of a folder: give it letters, digits, - and _")
    return name


def suggestion(name: str, names: Collection[str], prefix: str = "") -> str:
    """Return a question after the most similar name or, where none is similar, all names there are.
    The prefix stands before each."""
    near = get_close_matches(name, names, n=1, cutoff=SIMILAR)
    if near:
        return f"did you mean '{prefix}{near[0]}'?"
    return f"use one of {', '.join(prefix + name for name in names)}."


def _owner_of_init(part: type) -> type:
    """Return the class whose constructor a class has, which may be inherited."""
    return next(kind for kind in part.__mro__ if "__init__" in vars(kind))


def settings_of(part: Any, given: Collection[str] = ()) -> type[BaseModel]:
    """Return the settings that a recipe can give to a class or a function: its arguments, but those
    that are `given` by the framework, with their types and defaults."""
    written = vars(_owner_of_init(part))["__init__"] if isinstance(part, type) else part
    hints = get_type_hints(written, include_extras=True)
    fields: dict[str, Any] = {}
    for parameter in inspect.signature(part).parameters.values():
        if parameter.name in given or parameter.kind in (
            parameter.VAR_POSITIONAL,
            parameter.VAR_KEYWORD,
        ):
            continue
        default = ... if parameter.default is parameter.empty else parameter.default
        fields[parameter.name] = (hints.get(parameter.name, Any), default)
    config = ConfigDict(extra="forbid", arbitrary_types_allowed=True, frozen=True)
    return create_model(f"settings of {part.__name__}", __config__=config, **fields)
