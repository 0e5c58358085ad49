"""Which version of a package another Python has."""

import sys
from pathlib import Path

import pydantic
import pytest

from fieldcraft.config.pythons import version_in
from fieldcraft.types import UserError


@pytest.mark.long
def test_a_version_none_and_no_python(tmp_path: Path) -> None:
    assert version_in(sys.executable, "pydantic", "engine.python") == pydantic.VERSION
    assert version_in(sys.executable, "yaml", "engine.python")  # of a distribution called PyYAML
    assert version_in(sys.executable, "no_such_package", "engine.python") == ""
    for python in (tmp_path / "none", "/bin/false"):
        with pytest.raises(UserError, match=f"engine.python={python} is no Python that runs"):
            version_in(python, "pydantic", "engine.python")
