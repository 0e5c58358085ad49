"""Former names of modules in stored recipes."""

import importlib
import pkgutil

import pytest

import fieldcraft
from fieldcraft.config.components import ComponentKind
from fieldcraft.config.moved_modules import (
    MOVED_OBJECTS,
    MOVED_PACKAGES,
    find_current_module,
    find_current_path,
)
from fieldcraft.config.names import import_object, resolve, resolve_path


@pytest.mark.parametrize("former", MOVED_PACKAGES)
def test_a_former_package_is_found(former: str) -> None:
    current = find_current_module(former)
    assert current != former
    assert importlib.import_module(current).__name__ == current
    assert find_current_module(f"{former}.deeper.module") == f"{current}.deeper.module"
    assert find_current_module(current) == current


def test_other_modules_keep_their_names() -> None:
    modules = [m.name for m in pkgutil.walk_packages(fieldcraft.__path__, "fieldcraft.")]
    assert len(modules) > 300
    assert [name for name in modules if find_current_module(name) != name] == []
    assert find_current_module("my_package.worlds") == "my_package.worlds"
    assert find_current_module("fieldcraft.worldsmith") == "fieldcraft.worldsmith"


def test_a_stored_component_is_imported_from_its_present_module() -> None:
    stored = "fieldcraft.worlds.atlas.program:program"
    assert resolve_path(ComponentKind.WORKFLOW, stored) == stored
    assert import_object(stored).__module__ == "fieldcraft.extensions.worlds.atlas.program"


@pytest.mark.parametrize("former", MOVED_OBJECTS)
def test_an_object_of_a_divided_module_is_found(former: str) -> None:
    current = find_current_path(former)
    assert current != former
    assert find_current_path(current) == current
    found = import_object(former)
    assert f"{found.__module__}:{found.__name__}" == current


@pytest.mark.parametrize(
    ("module", "name"),
    [
        ("afm", "AfmDialect"),
        ("afm", "AfmWebDialect"),
        ("afm", "AfmMhqaDialect"),
        ("afm_code", "AfmCodeDialect"),
        ("autocoa", "AutoCoADialect"),
        ("retool", "ReToolDialect"),
        ("search_r1", "OtcDialect"),
        ("search_r1", "SearchR1Dialect"),
        ("toolrl", "ToolRLDialect"),
        ("torl", "ToRLDialect"),
    ],
)
def test_a_dialect_of_a_paper_answers_to_its_former_name(module: str, name: str) -> None:
    assert resolve(ComponentKind.DIALECT, f"fieldcraft.dialects.{module}:{name}").__name__ == name
