"""Components that the package registers by name: those of the kernel and of its extensions.

An extension enters a run only through these names, as an installed package does through its entry
points.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Literal


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
    SANDBOX_BACKEND = "sandbox backend"

    @property
    def entry_point_group(self) -> str:
        """Entry point group of the kind."""
        return f"fieldcraft.{self.value.replace(' ', '_')}s"


LOCAL_ENGINE, VLLM_ENGINE = "local", "vllm"
AUTO_VERDICT = "auto"  # value of `verdict_reward`: each task is graded by its own grader
VERDICT_REWARD_KEY = "correct"  # key of `rewards` for the reward that `verdict_reward` names
RUBRIC = "rubric"  # reward of the criteria in the section `rubric` of a recipe
PAIRWISE = "pairwise"  # reward that compares the rollouts of a group
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
_BACKENDS = "fieldcraft.extensions.sandbox.backends"
# Modules of extensions that a run imports once its recipe has a cluster, or trackers.
CLUSTER_MODULE = "fieldcraft.extensions.cluster.backend"
TRACKERS_MODULE = "fieldcraft.extensions.trackers.subscriber"
# Parts of extensions that a run imports once its recipe searches, grades programs, or has the web
# site of a world.
SEARCH_BACKEND = "fieldcraft.extensions.search.backend:CorpusSearch"
PROGRAM_RUNNER = "fieldcraft.extensions.sandbox.tool:GradingSandbox"
WORLD_SITE = "fieldcraft.extensions.worlds.site:open_site"
# Modules that register the commands of the command line, in the order of its help.
COMMAND_MODULES = (
    *("fieldcraft.cli.runs", "fieldcraft.extensions.planning.commands", "fieldcraft.cli.agents"),
    "fieldcraft.cli.judges",
    *("fieldcraft.cli.show", "fieldcraft.extensions.studio.commands"),
    *("fieldcraft.extensions.worlds.commands", f"{_CURATION}.commands", "fieldcraft.cli.bench"),
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
NOTEBOOK_REPORTER = f"{PAGE_EXTENSION}.notebook_progress:NotebookReporter"
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
        RUBRIC: "fieldcraft.rewards.criteria:CriteriaReward",
        PAIRWISE: "fieldcraft.rewards.pairwise:PairwiseReward",
        "repair": "fieldcraft.rewards.rollouts:RepairReward",
        "double_check": "fieldcraft.rewards.double_checks:DoubleCheckReward",
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
        "reasoning_gym": "fieldcraft.extensions.worlds.reasoning_gym:ReasoningGymReward",
    },
    ComponentKind.DIALECT: {
        "autocoa": f"{_METHODS}.autocoa:AutoCoADialect",
        "search-r1": f"{_METHODS}.search_r1:SearchR1Dialect",
        "otc": f"{_METHODS}.search_r1:OtcDialect",
        "hermes": "fieldcraft.dialects.hermes:HermesDialect",
        "auto": "fieldcraft.extensions.families.dialect:AutoDialect",
        "torl": f"{_METHODS}.retool_torl:ToRLDialect",
        "retool": f"{_METHODS}.retool_torl:ReToolDialect",
        "afm": f"{_METHODS}.afm:AfmDialect",
        "afm-web": f"{_METHODS}.afm:AfmWebDialect",
        "afm-mhqa": f"{_METHODS}.afm:AfmMhqaDialect",
        "afm-code": f"{_METHODS}.afm_code:AfmCodeDialect",
        "toolrl": f"{_METHODS}.toolrl:ToolRLDialect",
    },
    # Besides the folders of extensions/worlds/.
    ComponentKind.WORLD: {
        "reasoning-gym": "fieldcraft.extensions.worlds.reasoning_gym:ReasoningGymWorld",
        "gazetteer-web": "fieldcraft.extensions.worlds.gazetteer.web_world:GazetteerWebWorld",
    },
    ComponentKind.WORKFLOW: {
        "workflow": f"{_WORKFLOWS}:react",
        "rag": f"{_WORKFLOWS}:rag",
        "reflexion": f"{_WORKFLOWS}:reflexion",
        "prompted-react": f"{_CURATION}.prompted_workflows:prompted_react",
        "prompted-reflexion": f"{_CURATION}.prompted_workflows:prompted_reflexion",
        "closed-book": f"{_CURATION}.few_shot:closed_book",
        "prompted-rag": f"{_CURATION}.few_shot:prompted_rag",
        "retrieval-ceiling": f"{_CURATION}.ceilings:retrieval_ceiling",
        "search-ceiling": f"{_CURATION}.ceilings:search_ceiling",
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
        "command": "fieldcraft.extensions.external_envs.command:CommandEnvironment",
        "openenv": "fieldcraft.extensions.external_envs.openenv:OpenEnvEnvironment",
        "verifiers": "fieldcraft.extensions.external_envs.verifiers:VerifiersEnvironment",
        "harbor": "fieldcraft.extensions.external_envs.harbor:HarborEnvironment",
        "bfcl": "fieldcraft.extensions.external_envs.bfcl.environment:BfclEnvironment",
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
    ComponentKind.SANDBOX_BACKEND: {
        "local": "fieldcraft.extensions.sandbox.tool:open_local_backend",
        "container": f"{_BACKENDS}.container:open_container_backend",
        "e2b": f"{_BACKENDS}.e2b:open_e2b_backend",
        "sandboxfusion": f"{_BACKENDS}.sandbox_fusion:open_server_backend",
    },
}

# Capabilities (`config.choices.EngineFeatures`) of built-in engines that are slow to import; other
# engines state them as their attribute `features`.
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
