"""Rollouts with the dialect `auto`: what is sampled, run and observed has the ids of a
demonstration."""

import asyncio
from collections.abc import Sequence
from typing import Any

from auto_parts import DIALECTS, EVERY, TASK, TOOLS, calls_of
from call_families import CALL_FAMILIES
from call_format_checks import demonstrate
from fieldcraft.config.sections import BudgetConfig
from fieldcraft.environments.tool_environment import ToolEnvironment, run_rollout
from fieldcraft.environments.turns import Policy
from fieldcraft.sampling import Completion, SamplingParams, StopReason
from fieldcraft.types import Author, CallOutcome, Status, Tokenizer, Trajectory


class IdEngine:
    """Engine that returns turns of given ids, in order."""

    def __init__(self, tokenizer: Tokenizer, turns: Sequence[list[int]]) -> None:
        self.tokenizer, self.turns = tokenizer, list(turns)

    async def generate(
        self, ids: Sequence[int], sampling: SamplingParams, session: str
    ) -> Completion:
        turn = self.turns.pop(0)
        text = self.tokenizer.decode(turn)
        return Completion(turn, [0.0] * len(turn), text, StopReason.EOS)

    def release(self, session: str) -> None: ...


class AboutTool:
    """Tool that returns its name."""

    def __init__(self, schema: dict[str, Any]) -> None:
        self.schema = schema
        self.name = schema["function"]["name"]

    async def __call__(self, **arguments: Any) -> str:
        return f"about {self.name}"


def roll_out(name: str, turns: Sequence[list[int]]) -> Trajectory:
    dialect = DIALECTS[name]
    env = ToolEnvironment(dialect, [AboutTool(schema) for schema in TOOLS], BudgetConfig())
    policy: Any = Policy(engine=IdEngine(dialect.tokenizer, turns))  # type: ignore[arg-type]
    return asyncio.run(run_rollout(TASK, policy, env, "k"))


@EVERY
def test_a_rollout_has_the_ids_of_its_demonstration(name: str) -> None:
    demonstration = demonstrate(name)
    turns = [s.ids for s in demonstration.segments if s.author is Author.POLICY]
    trajectory = roll_out(name, turns)
    assert trajectory.status is Status.ANSWERED
    assert trajectory.answer == "Oslo"
    assert trajectory.well_formed
    assert [call.outcome for call in trajectory.calls] == [CallOutcome.OK] * len(calls_of(name))
    assert [s.ids for s in trajectory.segments[1:]] == [s.ids for s in demonstration.segments[1:]]


@EVERY
def test_a_malformed_call_is_reported_in_the_frame_of_a_result(name: str) -> None:
    dialect, [call] = DIALECTS[name], calls_of(name)[:1]
    broken = dialect.render_call(call).replace("Oslo", "Oslo\n</x>")
    broken = broken.replace('"}', "").replace("</parameter>", "").replace("</arg_value>", "")
    broken = broken.replace(dialect.tags[-1], "") if "emma" in name else broken
    broken = broken.replace('")', "")
    turns = [dialect.encode_turn(broken), dialect.encode_turn(dialect.render_answer("Oslo"))]
    trajectory = roll_out(name, turns)
    [record] = trajectory.calls
    assert record.outcome is CallOutcome.MALFORMED
    assert trajectory.answer == "Oslo"
    assert not trajectory.well_formed
    observation = trajectory.segments[2]
    assert observation.author is Author.TOOL
    assert dialect.escape_result(record.observation) in observation.text
    assert observation.text.endswith(CALL_FAMILIES[name].results[2].replace("00002", "00001"))
