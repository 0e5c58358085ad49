"""Old names of options, which end a command with a sentence that has the new name."""

from __future__ import annotations

from collections.abc import Mapping

# By command: the old name of an option, and the new one.
RENAMED_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "show": {"--right": "--correct", "--wrong": "--incorrect", "--number": "--index"},
    "branch": {"--trajectory": "--index", "--training": "--from-training"},
    "serve sandbox": {"--concurrent": "--concurrency", "--waive": "--allow-missing-layer"},
    "serve agent": {
        "--seconds": "--timeout",
        "--grace": "--shutdown-grace",
        "--record": "--log-folder",
    },
    "studio": {"--sample": "--allow-sampling"},
    "view": {"--sample": "--allow-sampling"},
    "world": {"--model": "--with-model", "--recipe": "--settings-from"},
    "plan": {"--written": "--completion-share", "--tokens": "--mean-tokens"},
    "index": {"--approximate": "--hnsw"},
}


def describe_renamed_option(command: str, option: str) -> str | None:
    """Return the sentence for an old name of an option, None for another option."""
    name = RENAMED_OPTIONS.get(command, {}).get(option)
    return None if name is None else f"{option} is now called {name}."
