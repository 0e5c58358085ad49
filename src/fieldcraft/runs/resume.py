"""Start or resumption of a run: the folder is new, or contains a run with the same settings.

Settings that only affect how a run is computed or displayed may differ (`MUTABLE_ON_RESUME`).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fieldcraft.config.recipe import Recipe, dump_recipe, list_added_keys
from fieldcraft.config.renamed_keys import translate_stored
from fieldcraft.recipes.consent import record_own_consent
from fieldcraft.records.files import get_temporary_path, make_folder, require_writable, write_json
from fieldcraft.records.reading import RERUN_ADVICE, read_json
from fieldcraft.runs.folder import LOCK_FILE, RunFolder
from fieldcraft.runs.input_files import record_input_files, require_same_input_files
from fieldcraft.types import UserError

# Settings that a resumed run may change: how a teacher, an engine, an environment or a search is
# reached, those that determine memory use and processes, and trackers. `*` is any name.
MUTABLE_ON_RESUME = (
    ("cluster",),
    ("max_num_seqs",),
    ("stages", "*", "optim", "micro_batch_tokens"),
    ("stages", "*", "optim", "activation_checkpointing"),
    *(("engine", key) for key in ("python", "urls", "weight_folder", "timeout_seconds")),
    *(("environment", key) for key in ("python", "url", "sessions", "timeout_seconds")),
    *(("teacher", key) for key in ("url", "api_key_env", "prices")),
    *(("teacher", key) for key in ("concurrency", "timeout_seconds", "retries")),
    ("search", "api_key_env"),
    ("collect", "max_failure_rate"),
    ("evaluation", "max_broken"),
    ("trackers",),
)


@contextmanager
def open_run_folder(path: Path, recipe: Recipe) -> Iterator[RunFolder]:
    """Start a run, or resume one with the same settings and input files. Its folder is locked
    against other processes inside the block.

    Raises UserError if the folder belongs to another run, is not a run folder, or is locked by
    another process; then nothing in it is changed.
    """
    require_run_folder(path)  # a folder with other content gets no lock file
    make_folder(path)
    folder = RunFolder(path, recipe)
    with folder.lock():
        require_same_recipe(path, recipe)
        manifest, settings = path / "recipe.json", dump_recipe(recipe)
        if not manifest.exists() or read_json(manifest, dict[str, Any], RERUN_ADVICE) != settings:
            write_json(manifest, settings)
        record_own_consent(manifest, settings)
        record_input_files(path, recipe)
        yield folder


def require_same_recipe(path: Path, recipe: Recipe) -> None:
    """Raise UserError for a folder in which a run with these settings and input files can neither
    start nor be resumed."""
    require_run_folder(path)
    manifest = path / "recipe.json"
    if not manifest.exists():
        return
    stored = read_json(manifest, dict[str, Any], RERUN_ADVICE)
    added = {stage.type: list_added_keys(stage.type) for stage in recipe.stages.values()}
    found = _frozen_settings(translate_stored(stored, added.get))
    expected = _frozen_settings(dump_recipe(recipe))
    if found != expected:
        raise UserError(
            f"{path} holds a run of recipe '{found.get('name')}' with other settings"
            f" ({_describe_difference(found, expected)}): choose another folder with --out."
        )
    require_same_input_files(path, recipe)


def require_run_folder(path: Path) -> None:
    """Raise UserError for a folder with other content than a run, and for a path that is not
    writable."""
    if not path.exists():
        require_writable(path)
    elif not (path / "recipe.json").exists() and (
        not path.is_dir() or {*path.iterdir()} - {*_initial_paths(path)}
    ):
        raise UserError(f"{path} exists and is not a run: choose another folder with --out.")


def _initial_paths(path: Path) -> tuple[Path, ...]:
    """Return the paths that a folder may contain before its run starts."""
    questions = RunFolder.questions_path(path)
    drafts = map(get_temporary_path, (path / "recipe.json", questions))
    return path / LOCK_FILE, questions, *drafts


def _frozen_settings(settings: Any, key_path: tuple[str, ...] = ()) -> Any:
    """Return the settings that a run can no longer change."""
    if not isinstance(settings, dict):
        return settings
    return {
        key: _frozen_settings(inner, (*key_path, key))
        for key, inner in settings.items()
        if not any(_matches_pattern((*key_path, key), pattern) for pattern in MUTABLE_ON_RESUME)
    }


def _matches_pattern(key_path: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    return len(key_path) == len(pattern) and all(
        expected in ("*", key) for key, expected in zip(key_path, pattern, strict=True)
    )


def _describe_difference(found: Any, expected: Any, path: str = "") -> str:
    """Return the first key in which two recipes differ. A section that only one of them has, such
    as a stage, is named without its many keys."""
    if isinstance(found, dict) and expected is None:
        return f"{path} only in the folder"
    if found is None and isinstance(expected, dict):
        return f"{path} only in this recipe"
    if isinstance(found, dict) and isinstance(expected, dict):
        for key in dict.fromkeys([*found, *expected]):
            if found.get(key) != expected.get(key):
                return _describe_difference(
                    found.get(key), expected.get(key), f"{path}.{key}".strip(".")
                )
    return f"{path}={found} in the folder, {expected} in this recipe"
