"""What is told of an exception, and to whom."""

from pathlib import Path

import pytest

from fieldcraft.envs.defects import describe_defect, without_place


def test_a_reader_elsewhere_is_not_told_where_files_are() -> None:
    with pytest.raises(KeyError) as raised:
        {}["city"]
    told = describe_defect(raised.value)
    assert told.startswith("KeyError: 'city' (")
    assert Path(__file__).name in told
    assert without_place(told) == "KeyError: 'city'"


@pytest.mark.parametrize("cause", ["", "ValueError: f(x) is 3 (in all)", "ToolDefect: at 10:30"])
def test_a_cause_without_a_place_stays(cause: str) -> None:
    assert without_place(cause) == cause
