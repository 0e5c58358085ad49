"""A runner of programs without a sandbox, for programs that the tests themselves hold."""

import subprocess
import sys
from dataclasses import dataclass, field


@dataclass
class Ran:
    ok: bool
    stdout: str


@dataclass
class Unguarded:
    """Each program in an interpreter of its own."""

    inputs: list[str] = field(default_factory=list)

    async def run(self, code: str, stdin: str = "") -> Ran:
        self.inputs.append(stdin)
        done = subprocess.run(
            [sys.executable, "-c", code], input=stdin, capture_output=True, text=True, check=False
        )
        return Ran(done.returncode == 0, done.stdout)
