"""A run from end to end: inputs, stages, evaluations, report. Every part is skipped once done."""

from __future__ import annotations

import asyncio
import platform
import shutil
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
import transformers
from rich.console import Console

from fieldcraft import __version__
from fieldcraft.agents.rag import rag
from fieldcraft.agents.react import react
from fieldcraft.agents.reflexion import reflexion
from fieldcraft.config.stages import AnyStage, Pairs, Rl, Sft
from fieldcraft.config.sections import Endpoint, JudgeModel, Limits
from fieldcraft.config.recipe import Recipe, dump_recipe
from fieldcraft.dialects import get_dialect
from fieldcraft.engine.local.engine import LocalEngine
from fieldcraft.endpoints.openai import ChatEndpoint
from fieldcraft.engine.threads import Threads, fastest_threads
from fieldcraft.envs.environment import ToolEnvironment
from fieldcraft.evals.fidelity import fidelity_row
from fieldcraft.evals.metrics import summarise
from fieldcraft.evals.pairwise import one_after_another
from fieldcraft.evals.report import StageRecord, build_report, write_html, write_report
from fieldcraft.evals.run import answer_rubric, evaluate
from fieldcraft.runs.inputs import AtlasInputs, make_inputs
from fieldcraft.rewards.answers import F1, RULES, CoverEM, ExactMatch, Format
from fieldcraft.rewards.judge import VERDICT_RULE, Judge
from fieldcraft.rewards.length import SoftOverlong
from fieldcraft.rewards.rubric import Rubric
from fieldcraft.rewards.tool_cost import OtcGrpo, OtcPpo
from fieldcraft.rollout.loop import Policy, rollout
from fieldcraft.rollout.simulators import ChatSimulator
from fieldcraft.records.metrics import MetricsLog
from fieldcraft.runs.folder import RunFolder
from fieldcraft.records.files import read_json, write_json
from fieldcraft.terminal import StageProgress
from fieldcraft.tools.search.index import SearchIndex, build_index
from fieldcraft.tools.search.tool import SearchTool
from fieldcraft.tools.search.client import RemoteSearchTool
from fieldcraft.train.checkpoint import save_weights
from fieldcraft.train.critic import Critic
from fieldcraft.train.loop import Row, run_steps
from fieldcraft.train.lora import Adapter
from fieldcraft.train.memory import release_memory
from fieldcraft.train.model import choose_device, load_model, load_tokenizer
from fieldcraft.train.stages.rl import AdapterStart, Reference, RlStage
from fieldcraft.train.stages.sft import contrastive_step, sft_step
from fieldcraft.train.trainer import Trainer
from fieldcraft.train.watch import Watch
from fieldcraft.records.trajectories import read_trajectories, write_trajectories
from fieldcraft.config.lineage import lineage
from fieldcraft.types import Author, Dialect, Reward, Task, Tool, Trajectory

SAMPLES_SHOWN = 60  # trajectories of each stage in the report
WORKFLOWS = {"workflow": react, "rag": rag, "reflexion": reflexion}
BY_EXACT_MATCH = ("em", "otc-grpo", "otc-ppo")  # rewards that say which answers are right
RECORDED = (ExactMatch, F1, CoverEM, Format)  # of every rollout, with or without a weight


def open_search(recipe: Recipe, index: Path) -> Tool:
    """The search tool of a recipe: its server, which must answer now, or the index in a folder."""
    settings = recipe.search
    if settings.url is None:
        return SearchTool(SearchIndex.load(index), settings.topk)
    remote = RemoteSearchTool(
        settings.url, topk=settings.topk, timeout_seconds=settings.timeout_seconds
    )
    asyncio.run(remote.check())
    return remote


def open_judge(settings: JudgeModel, cache: Path | None) -> Judge | None:
    """The judge of a recipe, whose endpoint must answer now; None where it names none."""
    if settings.url is None or settings.model is None:
        return None
    endpoint = Endpoint(url=settings.url, model=settings.model, api_key_env=settings.api_key_env)
    return Judge(open_endpoint(endpoint, cache), settings.votes)


def make_environment(recipe: Recipe, dialect: Dialect, tools: list[Tool]) -> ToolEnvironment:
    """The environment of a recipe with the given tools."""
    return ToolEnvironment(dialect, tools, recipe.budget)


def open_endpoint(settings: Endpoint, cache: Path | None) -> ChatEndpoint:
    """The remote model of a recipe, which must answer now."""
    endpoint = ChatEndpoint(
        settings.url, settings.model, api_key_env=settings.api_key_env, cache=cache
    )
    asyncio.run(endpoint.check())
    return endpoint


def make_rubric(stage: Rl, budget: Limits, judge: Judge | None = None) -> Rubric:
    """The rewards of a stage. Those without a weight are recorded where they cost nothing."""
    made: dict[str, Reward] = {reward.name: reward() for reward in RECORDED}
    if judge is not None:
        made[judge.name] = judge
    correct, smoothing = made[stage.accuracy], stage.call_smoothing or float(budget.max_calls)
    made |= {r.name: r for r in (OtcGrpo(correct, smoothing), OtcPpo(correct, smoothing))}
    limit = stage.overlong_limit or budget.total_tokens
    made["overlong"] = SoftOverlong(limit, stage.overlong_cache or max(limit // 5, 1))
    recorded = (*(reward.name for reward in RECORDED), stage.accuracy)
    weights = dict.fromkeys(recorded, 0.0) | stage.rewards
    if stage.overlong_penalty:
        weights["overlong"] = stage.overlong_penalty
    return Rubric([(made[name], weight) for name, weight in weights.items()])


def make_watch(stage: Rl) -> Watch | None:
    """What a collapse of a stage is. Exact match is watched where it is rewarded; where something
    else is, it may fall for good reasons, and the reward is watched."""
    if stage.collapse_share is None:
        return None
    exact = stage.accuracy == "em" and not stage.rewards.keys().isdisjoint(BY_EXACT_MATCH)
    score = "em" if exact else "reward_mean"
    return Watch(score=score, share=stage.collapse_share, clip_norm=stage.optim.clip_norm)


class Run:
    """One run of a recipe in a folder; `execute` does what is left of it."""

    def __init__(self, recipe: Recipe, out: Path, console: Console) -> None:
        self.recipe = recipe
        self.console = console
        self.device = choose_device(recipe.device)
        self.inputs = make_inputs(recipe)
        self.folder = RunFolder(out, dump_recipe(recipe))
        self.threads = Threads(torch.get_num_threads(), torch.get_num_threads())
        self.judge = open_judge(recipe.judge, out / "judge.sqlite")

    def execute(self) -> dict[str, Any]:
        """Every stage that is not done, then the report, which is also returned."""
        with self.folder.alone():
            return self._execute()

    def _execute(self) -> dict[str, Any]:
        model = self._first_model()
        models = {"start": model}
        if self.recipe.model is not None:
            self._evaluate("base", model)
            self._evaluate_workflows(model)
        for name, stage in self.recipe.stages.items():
            model = self._stage(name, stage, models[stage.start] if stage.start else model)
            models[name] = model
            if stage.evaluate:
                self._evaluate(name, model)
            if len(models) == 2 and self.recipe.model is None:
                self._evaluate_workflows(model)
            release_memory()
        return self._report()

    # -- what stages stand on -------------------------------------------------------------------

    @cached_property
    def world(self) -> Path:
        return self.folder.once("world", self.inputs.write_world)

    @cached_property
    def search(self) -> Tool:
        index = self.folder.path / "index"
        if self.recipe.search.url is None and not index.exists():
            settings = self.recipe.search
            build_index(
                self.world / "corpus.jsonl",
                index,
                settings.k1,
                settings.b,
                ranking=settings.ranking,
                encoder=settings.encoder,
            )
        return open_search(self.recipe, index)

    def _first_model(self) -> Path:
        folder = self.recipe.model or self.folder.once("start/model", self.inputs.write_model)
        model = load_model(folder, self.device)
        load_tokenizer(folder)
        self.use_threads(model)
        threads = f"{self.threads.training} threads to train, {self.threads.sampling} to sample"
        self.console.print(f"device {self.device}, {threads}", style="dim")
        return folder

    def use_threads(self, model: Any) -> None:
        """Threads are measured once a run: with another number a run that goes on would add up its
        floats in another order, and end with other numbers."""
        record = self.folder.path / "threads.json"
        if not record.exists():
            write_json(record, asdict(fastest_threads(model)))
        self.threads = Threads(**read_json(record))
        torch.set_num_threads(self.threads.training)

    def dialect(self, model: Path) -> Dialect:
        r = self.recipe
        return get_dialect(
            r.dialect, load_tokenizer(model), r.instruction, template=r.template, system=r.system
        )

    # -- training -------------------------------------------------------------------------------

    def _stage(self, name: str, stage: AnyStage, start: Path) -> Path:
        """Train one stage from `start`, if it is not done, and return the folder of its model."""
        folder = self.folder.path / name
        if not (folder / "stage.json").exists():
            self._train(name, stage, start, folder)
        for path in folder.glob("step-*"):
            shutil.rmtree(path)
        return folder / "model"

    def _train(self, name: str, stage: AnyStage, start: Path, folder: Path) -> None:
        began = time.perf_counter()
        dialect = self.dialect(start)
        model, adapter = self._trainable(start)
        make_trainer = partial(Trainer, model, stage.optim, adapter=adapter)
        rl: RlStage | None = None
        step: Callable[[int], Row]
        if isinstance(stage, Rl):
            trainer = make_trainer(stage.steps)
            rl = self._rl(name, stage, trainer, dialect, start)
            step = rl.step
        else:
            trainer, step = self._supervised(stage, make_trainer, dialect)
        prepared = time.perf_counter() - began
        with StageProgress(name, trainer.steps, self.console) as progress:
            rows = run_steps(
                trainer=trainer,
                tokenizer=dialect.tokenizer,
                stage=stage,
                folder=folder,
                step=step,
                progress=progress,
                state=rl.state_dict if rl else dict,
                load_state=rl.load_state_dict if rl else lambda _: None,
                watch=make_watch(stage) if isinstance(stage, Rl) else None,
            )
        if adapter is not None:
            self.folder.once(f"{name}/adapter", adapter.save)
            model = self._merged(folder / "adapter")
        self.folder.once(
            f"{name}/model", partial(save_weights, model=model, tokenizer=dialect.tokenizer)
        )
        seconds = prepared + sum(row["seconds"] for row in rows)
        write_json(folder / "stage.json", {"seconds": seconds, "metrics": rows[-1]})

    def _trainable(self, start: Path) -> tuple[Any, Adapter | None]:
        """A model, and what is trained of it: all weights, or an adapter on the run's first model
        that goes on from that of the last stage.

        Adding that one to the weights instead would lose what is smaller than their type can tell
        apart: in bfloat16 anything below a 256th of a weight.
        """
        settings, first = self.recipe.lora, self._model_of("start")
        if settings is None:
            return load_model(start, self.device), None
        model = load_model(first, self.device, self.recipe.dtype)
        last = None if start == first else start.with_name("adapter")
        return model, Adapter(model, settings, self.recipe.seed, last)

    def _merged(self, adapter: Path) -> Any:
        """The first model with an adapter added to its weights, in float32, which holds both."""
        assert self.recipe.lora is not None
        base = load_model(self._model_of("start"), torch.device("cpu"), self.recipe.dtype).float()
        return Adapter(base, self.recipe.lora, self.recipe.seed, adapter).merged()

    def _supervised(
        self, stage: Sft | Pairs, make_trainer: Callable[[int], Trainer], dialect: Dialect
    ) -> tuple[Trainer, Callable[[int], Row]]:
        seed = self.recipe.seed
        if isinstance(stage, Pairs):
            pairs = self.inputs.pairs(stage.data, stage.examples, dialect, self.search)
            trainer = make_trainer(stage.steps_over(len(pairs)))
            return trainer, contrastive_step(trainer, pairs, stage.alpha, stage.batch, seed)
        data = self.inputs.trajectories(stage.data, stage.examples, dialect, self.search)
        trainer = make_trainer(stage.steps_over(len(data)))
        authors = {Author(author) for author in stage.train_on}
        return trainer, sft_step(trainer, data, authors, stage.batch, seed)

    def _rl(self, name: str, stage: Rl, trainer: Trainer, dialect: Dialect, start: Path) -> RlStage:
        critic = None
        if stage.baseline == "critic":
            own = stage.critic.backbone == "own"
            model = load_model(start, self.device) if own else trainer.model
            critic = Critic(model, stage.critic, stage.optim, stage.steps)
        return RlStage(
            settings=stage,
            tasks=self.inputs.train_tasks(),
            env=make_environment(self.recipe, dialect, [self.search]),
            engine=self._engine(trainer.model, dialect),
            rubric=make_rubric(stage, self.recipe.budget, self.judge),
            trainer=trainer,
            reference=self._reference(stage, trainer, start) if stage.kl_coef else None,
            critic=critic,
            frozen=self._frozen(stage, dialect, start) if stage.simulator == "frozen" else None,
            remote=self._remote(name, stage),
            seed=self.recipe.seed,
            **self._measures(),
        )

    def _reference(self, stage: Rl, trainer: Trainer, start: Path) -> Reference:
        if trainer.adapter is not None:
            return AdapterStart(trainer, trainer.adapter)
        model = load_model(start, self.device, self.recipe.dtype)
        return Trainer(model, stage.optim, stage.steps)

    def _frozen(self, stage: Rl, dialect: Dialect, start: Path) -> LocalEngine:
        """The engine of a simulator that stays as it is."""
        folder = start if stage.simulator_stage is None else self._model_of(stage.simulator_stage)
        return self._engine(load_model(folder, self.device, self.recipe.dtype).eval(), dialect)

    def _model_of(self, name: str) -> Path:
        """The model of a stage, or the first one."""
        if name == "start" and self.recipe.model is not None:
            return self.recipe.model
        return self.folder.path / name / "model"

    def _remote(self, name: str, stage: Rl) -> ChatSimulator | None:
        """A run that goes on gets the same replies again, and pays for none twice."""
        if stage.endpoint is None:
            return None
        endpoint = open_endpoint(stage.endpoint, self.folder.path / name / "simulator.sqlite")
        return ChatSimulator(endpoint, self.recipe.search.topk, stage.temperature, self.recipe.seed)

    def _measures(self) -> dict[str, Any]:
        """Where the truth is known, simulated observations are held against it."""
        if not isinstance(self.inputs, AtlasInputs):
            return {}
        return {"fidelity": partial(fidelity_row, self.inputs.world)}

    def _engine(self, model: Any, dialect: Dialect) -> LocalEngine:
        return LocalEngine(
            model,
            dialect.tokenizer,
            max_rows=self.recipe.max_rows,
            threads=self.threads.sampling,
        )

    # -- evaluation -----------------------------------------------------------------------------

    def _evaluate(self, name: str, model: Path) -> None:
        """Greedy evaluation with tools; the model before any demonstration of one has none."""
        dialect = self.dialect(model)
        tools = [] if name == "base" else [self.search]
        env = make_environment(self.recipe, dialect, tools)
        self._evaluate_with(name, model, env, rollout)

    def _evaluate_workflows(self, model: Path) -> None:
        dialect = self.dialect(model)
        env = make_environment(self.recipe, dialect, [self.search])
        for name in self.recipe.evaluation.workflows:
            self._evaluate_with(name, model, env, WORKFLOWS[name])

    def _evaluate_with(
        self,
        name: str,
        model: Path,
        env: ToolEnvironment,
        run: Callable[[Task, Policy, ToolEnvironment, str], Awaitable[Trajectory]],
    ) -> None:
        folder = self.folder.path / "evaluations"
        if (folder / f"{name}.json").exists():
            return
        began = time.perf_counter()
        tasks = self.inputs.evaluation_tasks()
        weights = load_model(model, self.device).eval()
        policy = Policy(engine=self._engine(weights, env.dialect), temperature=0.0)
        concurrency = self.recipe.evaluation.concurrency
        with StageProgress(f"{name}: evaluation", len(tasks), self.console) as progress:
            done = evaluate(
                tasks,
                lambda t, key: run(t, policy, env, key),
                answer_rubric(self.judge),
                concurrency,
                progress,
            )
        write_trajectories(folder / f"{name}.jsonl", done)
        summary = summarise(done)
        seconds = time.perf_counter() - began
        write_json(folder / f"{name}.json", {"seconds": seconds, "summary": summary})
        self.console.print(_headline(name, summary), highlight=False, soft_wrap=True)

    # -- the report -----------------------------------------------------------------------------

    def _report(self) -> dict[str, Any]:
        folder = self.folder.path
        evaluations = folder / "evaluations"
        order = ["base", *self.recipe.evaluation.workflows, *self.recipe.stages]
        names = [n for n in dict.fromkeys(order) if (evaluations / f"{n}.json").exists()]
        found = {name: read_json(evaluations / f"{name}.json") for name in names}
        records = {name: read_json(folder / name / "stage.json") for name in self.recipe.stages}
        stages = [StageRecord(n, r["seconds"], r["metrics"]) for n, r in records.items()]
        stages.append(StageRecord("evaluation", sum(e["seconds"] for e in found.values())))
        samples = {n: read_trajectories(evaluations / f"{n}.jsonl") for n in names}
        report = build_report(
            recipe=self.recipe.recipe,
            seed=self.recipe.seed,
            device=str(self.device),
            stages=stages,
            evals={n: e["summary"] | {"seconds": e["seconds"]} for n, e in found.items()},
            comparisons=self._changes(samples),
            extra={"config": dump_recipe(self.recipe), "versions": self.versions()},
        )
        write_report(report, folder / "report.json")
        curves = {n: MetricsLog(folder / n / "metrics.jsonl").rows() for n in self.recipe.stages}
        write_html(report, curves, samples, folder / "report.html")
        return report

    def _changes(self, samples: Mapping[str, Sequence[Trajectory]]) -> list[dict[str, Any]]:
        """Every stage against the nearest evaluated model that it went on from."""
        first = ["base"] if self.recipe.model else []
        found = []
        for name in (n for n in self.recipe.stages if n in samples):
            line = [n for n in (*first, *lineage(self.recipe, name)) if n in samples]
            found += one_after_another({n: samples[n] for n in line[-2:]})
        return found

    def versions(self) -> dict[str, Any]:
        """What a number needs to be compared: software, rules, and the corpus searched."""
        manifest = self.folder.path / "index" / "manifest.json"
        return {
            "fieldcraft": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "transformers": transformers.__version__,
            "threads": asdict(self.threads),
            "rules": sorted([*RULES, *([VERDICT_RULE] if self.judge else [])]),
            "index": read_json(manifest) if manifest.exists() else self.recipe.search.url,
        }


def _headline(name: str, summary: dict[str, Any]) -> str:
    low, high = summary["em_ci95"]
    line = f"{name:>9}  EM {summary['em']:.3f} [{low:.3f}, {high:.3f}]"
    line += f"  calls {summary['calls_mean']:.2f}"
    if summary["calls_optimal_mean"] is not None:
        line += f" (optimum {summary['calls_optimal_mean']:.2f})"
    if summary["known"]:
        line += f"  known: EM {summary['known']['em']:.2f}, no call "
        line += f"{summary['known']['no_call_rate']:.2f}"
    return line
