"""Version of a package in another Python environment."""

import sys
from pathlib import Path

import pydantic
import pytest

from fieldcraft.config.interpreters import get_installed_version
from fieldcraft.types import UserError


@pytest.mark.long
def test_a_version_none_and_no_python(tmp_path: Path) -> None:
    assert get_installed_version(sys.executable, "pydantic", "engine.python") == pydantic.VERSION
    assert get_installed_version(
        sys.executable, "yaml", "engine.python"
    )  # of a distribution called PyYAML
    assert get_installed_version(sys.executable, "no_such_package", "engine.python") == ""
    for python in (tmp_path / "none", "/bin/false"):
        with pytest.raises(UserError, match=f"engine.python={python} is not a working Python"):
            get_installed_version(python, "pydantic", "engine.python")
