"""Runner of programs without a sandbox, for programs that the tests themselves contain."""

import json
import subprocess
import sys
from dataclasses import dataclass, field

APART = """
import json, sys
from fieldcraft.extensions.sandbox import isolated_tests
code, tests, imports = (json.loads(line) for line in sys.stdin)
def execute():
    space = {"__name__": "__main__"}
    exec(code, space)
    return space
asked = {"imports": imports, "tests": tests}
sys.exit(isolated_tests.run_isolated_tests(execute, lambda: None, lambda: asked))
"""


@dataclass
class Ran:
    ok: bool
    stdout: str


@dataclass
class Unguarded:
    """Runner of each program in a separate interpreter."""

    inputs: list[str] = field(default_factory=list)

    async def run(self, code: str, stdin: str = "") -> Ran:
        self.inputs.append(stdin)
        return self._run(code, stdin)

    async def test(self, code: str, tests: str, imports: str) -> Ran:
        return self._run(APART, "\n".join(map(json.dumps, (code, tests, imports))))

    def _run(self, code: str, stdin: str) -> Ran:
        done = subprocess.run(
            [sys.executable, "-c", code], input=stdin, capture_output=True, text=True, check=False
        )
        return Ran(done.returncode == 0, done.stdout)
