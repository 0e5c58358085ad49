"""Kernels and containers without some layers: which of them run programs, and how others refuse.

Escapes and limits under each version of Landlock: see `conftest.py`.
"""

import asyncio
import os
import sys

import pytest
from sandbox_parts import QUICK

import older_kernel
from fieldcraft.extensions.sandbox.layers import (
    LAYERS,
    describe_layers,
    require_no_missing_layers,
    sort_missing_layers,
)
from fieldcraft.extensions.sandbox.sandbox import Sandbox
from fieldcraft.types import UserError

OLD = {"landlock-network": "version 3", "landlock-scopes": "version 3"}


@pytest.fixture
def change_kernel(monkeypatch, tmp_path):
    """Return a function that applies a change of `older_kernel` to sandboxes that start later."""

    def change(name: str) -> None:
        monkeypatch.setattr(sys, "executable", older_kernel.write_interpreter(tmp_path, name))

    return change


def test_a_layer_that_others_contain_may_be_missing() -> None:
    found = sort_missing_layers(OLD, waive=())
    assert (found.required, found.contained) == ({}, OLD)
    assert describe_layers(["user", "mount"], found.contained) == (
        "user, mount; network, pid already contain what this system's landlock-network,"
        " landlock-scopes would (version 3)"
    )
    assert describe_layers(["user", "mount"], {}) == "user, mount"


@pytest.mark.parametrize(
    ("missing", "waive", "required"),
    [
        (OLD, ["network"], {*OLD}),  # nothing else keeps a program from TCP
        (OLD | {"network": "no"}, [], {*OLD, "network"}),
        ({"landlock-files": "off"}, ["seccomp"], {"landlock-files"}),  # or it could execute files
        ({"landlock-files": "off"}, ["network"], set()),
        ({"ipc": "no", "hostname": "no"}, [], {"ipc", "hostname"}),
        ({"seccomp": "no"}, [], {"seccomp"}),
    ],
)
def test_what_no_layer_contains_is_required(missing, waive, required) -> None:
    found = sort_missing_layers(missing, waive)
    assert {*found.required} == required
    assert found.required.keys() | found.contained.keys() == missing.keys()


@pytest.mark.parametrize("name", ["no-user", "no-mount"])
def test_forbidden_user_namespaces_name_two_ways_out(change_kernel, name: str) -> None:
    change_kernel(name)
    with pytest.raises(UserError) as caught:
        Sandbox(QUICK, libraries=())
    text = str(caught.value)
    assert text.count(".\n") == 0
    assert "seccomp=unconfined" in text  # allow them
    assert "apparmor_restrict_unprivileged_userns=0" in text
    assert text.endswith("run programs elsewhere, with the setting 'backend' or 'url' of the tool"
                         " python.")  # fmt: skip


def test_a_kernel_without_the_calls_of_a_core_layer_is_refused(change_kernel) -> None:
    change_kernel("no-mount-flags")
    with pytest.raises(
        UserError, match=r"'mount' \(syscall: Function not.*use Linux 5\.14 or newer"
    ):
        Sandbox(QUICK, libraries=())


def test_a_layer_is_required_again_without_the_one_that_contains_it(change_kernel) -> None:
    change_kernel("landlock-3")
    with pytest.raises(UserError, match=r"layers 'landlock-network' .* 'landlock-scopes'"):
        Sandbox(QUICK, ["network"], libraries=())
    every = ["network", "landlock-network", "landlock-scopes"]
    with Sandbox(QUICK, every, libraries=()) as sandbox:
        assert sandbox.layers == [layer for layer in LAYERS if layer not in every]
        assert sandbox.contained_layers == {}


@pytest.mark.skipif(os.getuid() != 0, reason="needs root")
def test_root_of_a_container_needs_no_right_to_mount(change_kernel) -> None:
    change_kernel("container-root")
    with Sandbox(QUICK, libraries=()) as sandbox:
        assert sandbox.layers == list(LAYERS)
        assert asyncio.run(sandbox.run("import os; print(os.getuid())")).stdout == "1000\n"


def test_the_layers_that_are_missing_are_named_once() -> None:
    with pytest.raises(UserError, match=r"the layer 'user' \(no\), and 'user' cannot be waived"):
        require_no_missing_layers({"user": "no"})
