"""Rollouts with the dialect `auto`: what is sampled, run and observed has the ids of a
demonstration."""

from auto_parts import DIALECTS, EVERY, calls_of, roll_out
from call_families import CALL_FAMILIES
from call_format_checks import demonstrate
from fieldcraft.types import Author, CallOutcome, Status


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
    for tag in ('")', "')", "</｜DSML｜parameter>"):
        broken = broken.replace(tag, "")
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
