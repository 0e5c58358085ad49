"""Small tasks in the format of Harbor."""

from pathlib import Path

CONFIG = """\
version = "1.0"

[metadata]
difficulty = "easy"

[agent]
timeout_sec = 300.0

[verifier]
timeout_sec = 300.0
"""
DOCKERFILE = "FROM ubuntu:24.04\nENV GREETING=hello\nWORKDIR /app\nCOPY words.txt .\n"
TEST_SCRIPT = """\
#!/bin/bash
if [ "$(cat /app/word.txt)" = "$(cat /tests/expected)" ]; then
    echo 1 > /logs/verifier/reward.txt
else
    echo 0 > /logs/verifier/reward.txt
fi
"""


def write_task(folder: Path, word: str = "bird", **files: str) -> Path:
    """Write a task that wants a word in a file; `files` replace its files, by their names without
    folders and endings."""
    texts = {
        "task.toml": files.get("task", CONFIG),
        "instruction.md": files.get("instruction", f"Write {word} into word.txt.\n"),
        "environment/Dockerfile": files.get("Dockerfile", DOCKERFILE),
        "environment/words.txt": "bird\nstone\n",
        "tests/test.sh": files.get("test", TEST_SCRIPT),
        "tests/expected": word + "\n",
    }
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder
