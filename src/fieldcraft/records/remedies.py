"""What to do about a damaged model: its run makes it anew, or it is copied from its source."""

from __future__ import annotations

from pathlib import Path


def remedy(folder: Path, otherwise: str) -> str:
    """What to do about a damaged file in the folder of a model, as the end of a sentence.

    A run keeps its models in RUN/STAGE/model, adapters in RUN/STAGE/adapter and checkpoints in
    RUN/STAGE/step-NNNNNN. For models of no run it is `otherwise`.
    """
    stage = folder.absolute().parent
    run = stage.parent
    if not (run / "recipe.json").exists():
        return otherwise
    if folder.name.startswith("step-"):
        return (
            f"delete the folder {folder} and run the recipe again, which resumes the stage from the"
            " checkpoint before it, or from its beginning"
        )
    # A run with a report is done, and so is one of several seeds: nothing of it is made anew.
    reports = [above / "report.html" for above in (run, run.parent)]
    doomed = [f"the folder {stage}", *(str(report) for report in reports if report.exists())]
    listed = " and ".join([", ".join(doomed[:-1]), doomed[-1]] if len(doomed) > 1 else doomed)
    return f"delete {listed} and run the recipe again, which makes this model anew"
