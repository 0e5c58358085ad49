"""Old names of options. A command exits with a message that contains the new name."""

from __future__ import annotations

from collections.abc import Mapping

# Maps a command to the old and new names of its options.
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
    """Return the message for an old name of an option; None for other options."""
    name = RENAMED_OPTIONS.get(command, {}).get(option)
    return None if name is None else f"{option} is now called {name}."
