"""Weights & Biases tracker, online or offline."""

from __future__ import annotations

from typing import Literal

import wandb

from fieldcraft.extensions.trackers.base import MetricValues, TrackedRun, Tracker
from fieldcraft.types import UserError


class WandbTracker(Tracker):
    """Run of the project. Offline, it is a folder in RUN/wandb, which `wandb sync` uploads later.

    The step of wandb counts calls over the whole run. So every stage has a curve `STAGE/step`,
    which is the axis of the stage's other curves.
    """

    def __init__(
        self,
        project: str = "fieldcraft",
        entity: str | None = None,
        mode: Literal["online", "offline"] = "online",
    ) -> None:
        if mode == "online" and not wandb.Settings().api_key and not wandb.api.api_key:
            raise UserError(
                "wandb is not logged in: run 'wandb login', set WANDB_API_KEY, or write"
                " {name: wandb, mode: offline}."
            )
        self.project, self.entity, self.mode = project, entity, mode
        self.axes: set[str] = set()

    def open(self, run: TrackedRun) -> str:
        self.run = wandb.init(
            project=self.project,
            entity=self.entity,
            mode=self.mode,
            id=run.id,
            name=run.name,
            group=run.group,
            config=run.config,
            dir=run.folder,
            resume="allow",
            reinit="create_new",
            settings=wandb.Settings(console="off", silent=True),
        )
        return self.run.url or f"wandb sync --append {self.run.settings.sync_dir}"

    def log(self, prefix: str, values: MetricValues, step: int) -> None:
        axis = f"{prefix}/step"
        if prefix not in self.axes:
            self.run.define_metric(f"{prefix}/*", step_metric=axis)
            self.axes.add(prefix)
        self.run.log({axis: step, **values})

    def close(self) -> None:
        self.run.finish()
