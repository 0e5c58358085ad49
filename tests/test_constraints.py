"""Agreement of the tested set of versions with the package's requirements."""

import tomllib
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


def test_every_dependency_has_a_tested_version_within_its_bounds() -> None:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    versions = {canonicalize_name(pin.name): str(pin.specifier)[2:] for pin in pins}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = project["optional-dependencies"]
    requirements = [*project["dependencies"], *(r for extra in extras.values() for r in extra)]
    # verifiers has a separate environment with different versions
    for requirement in map(Requirement, set(requirements) - set(extras["verifiers"])):
        if requirement.name != project["name"]:
            version = versions[canonicalize_name(requirement.name)]
            assert requirement.specifier.contains(version), f"{requirement} has {version}"
