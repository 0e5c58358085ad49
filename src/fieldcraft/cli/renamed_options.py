"""Former options. A command exits with a message that contains the new name, or with advice."""

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
    "index": {"--approximate": "--hnsw"},
}

# Maps a command to its removed options, and these to the rest of the message.
_NO_TIMES = (
    "was for times, which plan no longer estimates: leave it out, and measure a few steps of the"
    " run (`seconds` in metrics.jsonl)."
)
REMOVED_OPTIONS: Mapping[str, Mapping[str, str]] = {
    "plan": {
        "--mean-tokens": _NO_TIMES,
        "--tokens": _NO_TIMES,
        "--completion-share": _NO_TIMES,
        "--written": _NO_TIMES,
        "--tool-seconds": _NO_TIMES,
    },
}


def describe_former_option(command: str, option: str) -> str | None:
    """Return the message for a renamed or removed option; None for other options."""
    if name := RENAMED_OPTIONS.get(command, {}).get(option):
        return f"{option} is now called {name}."
    advice = REMOVED_OPTIONS.get(command, {}).get(option)
    return None if advice is None else f"{option} {advice}"
