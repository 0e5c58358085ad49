"""Descriptions of exceptions, and the readers of each."""

from pathlib import Path

import pytest

from fieldcraft.environments.guards import describe_defect, strip_location


def test_a_reader_elsewhere_is_not_told_where_files_are() -> None:
    with pytest.raises(KeyError) as raised:
        {}["city"]
    message = describe_defect(raised.value)
    assert message.startswith("KeyError: 'city' (")
    assert Path(__file__).name in message
    assert strip_location(message) == "KeyError: 'city'"


@pytest.mark.parametrize(
    "cause", ["", "ValueError: f(x) is 3 (in all)", "ToolContractError: at 10:30"]
)
def test_a_cause_without_a_place_stays(cause: str) -> None:
    assert strip_location(cause) == cause
