"""Coding agents for the command line, if they are installed: their turns are recorded as chains."""

import os
import shutil
from typing import Any

import pytest
from blackbox_parts import TOKENIZER, TWO_TURNS, authors, run_scripted

from fieldcraft.types import Status, Task

pytestmark = pytest.mark.slow
END = TOKENIZER.eos_token
TASK = Task("q", "What is 6 times 7? Write it to answer.txt.", ("42",))
CALL = '<tool_call>{{"name": "{}", "arguments": {{"{}": "echo 42 > answer.txt"}}}}</tool_call>'
SUBMIT = '{"name": "bash", "arguments": {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}}'
CODEX_PROVIDER = "{name='x',base_url='$OPENAI_BASE_URL',env_key='OPENAI_API_KEY'}"
AGENTS: dict[str, tuple[str, list[str]]] = {
    # Anthropic's Messages, streamed
    "claude": ("claude -p --model policy --allowedTools Bash", [CALL.format("Bash", "command")]),
    # OpenAI's Responses, streamed
    "codex": (
        "codex exec - --skip-git-repo-check --dangerously-bypass-approvals-and-sandbox -m policy"
        " -c features.multi_agent=false -c web_search=disabled -c model_provider=x"
        f' -c "model_providers.x={CODEX_PROVIDER}"',
        [f"<think>Hm.</think>{CALL.format('exec_command', 'cmd')}"],
    ),
    # OpenAI's Chat Completions
    "mini": (
        "env -u PYTHONPATH MSWEA_CONFIGURED=1 MSWEA_COST_TRACKING=ignore_errors"
        ' mini -m openai/policy -y --exit-immediately -t "$(cat)"',
        [CALL.format("bash", "command")],
    ),
}
ENDINGS = {"mini": f"<tool_call>{SUBMIT}</tool_call>"}


def skip_without(name: str) -> None:
    if shutil.which(name) is None:
        pytest.skip(f"the program {name} is not installed")


def test_a_coding_agent_does_not_retry_after_its_last_turn() -> None:
    """mini-SWE-agent repeats most rejected requests nine times, within minutes."""
    skip_without("mini")
    run, turns = AGENTS["mini"]
    settings = {"run": f"{run} > log.txt 2>&1; grep -c Retrying log.txt > answer.txt; true"}
    done, _ = run_scripted(
        None, turns, settings, task=TASK, max_context_tokens=200_000, max_calls=1
    )
    assert (done.status, done.answer) == (Status.TRUNCATED, "0")


@pytest.mark.parametrize("name", AGENTS)
def test_a_coding_agent_is_recorded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    skip_without(name)
    for variable in [key for key in os.environ if key.startswith(("CLAUDE", "CODEX", "ANTHROPIC"))]:
        monkeypatch.delenv(variable)  # of an agent that runs the tests
    monkeypatch.setenv("CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC", "1")
    run, turns = AGENTS[name]
    turns = [*turns, ENDINGS.get(name, "Done.")]
    settings: Any = {"run": f"{run} > log.txt 2>&1"}
    done, _ = run_scripted(None, turns, settings, task=TASK, max_context_tokens=200_000)
    assert (done.status, done.answer, done.error) == (Status.ANSWERED, "42", "")
    assert authors(done) == [TWO_TURNS]
    assert done.policy_turns == [f"{turn}{END}" for turn in turns]
    assert done.calls[0].observation
