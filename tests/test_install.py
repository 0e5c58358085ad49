"""The installer: the torch build for each platform, and the messages of failures."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from script_modules import load_script

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def install():
    return load_script("scripts/install.py")


@pytest.fixture
def machine(install, monkeypatch):
    """Simulate a machine; every install command is recorded and succeeds."""

    def be(*, platform="linux", gpu=False, pip_finds_cpu_build=False):
        commands = []
        monkeypatch.setattr(sys, "platform", platform)
        monkeypatch.setattr(install, "has_gpu", lambda: gpu)
        monkeypatch.setattr(
            install, "runs", lambda command: pip_finds_cpu_build and command[-1].endswith("+cpu")
        )
        monkeypatch.setattr(
            install.subprocess, "run", lambda command, **_: commands.append(command)
        )
        return commands

    return be


def test_a_gpu_gets_the_plain_build(install, machine):
    machine(gpu=True, pip_finds_cpu_build=True)
    assert install.installer()[-3:] == ["install", "--no-compile", "torch==2.13.0"]


def test_macs_get_the_plain_build_which_has_no_cuda(install, machine):
    machine(platform="darwin")
    assert install.installer()[-1] == "torch==2.13.0"


def test_without_a_gpu_pip_takes_a_cpu_build_it_knows(install, machine):
    commands = machine(pip_finds_cpu_build=True)
    assert install.installer()[-1] == "torch==2.13.0+cpu"
    assert commands == []


def test_without_a_gpu_and_a_known_cpu_build_uv_finds_one(install, machine):
    commands = machine()
    found = install.installer()
    assert commands[0][-2:] == ["--no-compile", "uv"]
    assert found[-2:] == ["--torch-backend=cpu", "torch==2.13.0"]
    assert not any(part.startswith("torch") for command in commands for part in command)


def test_a_nvidia_smi_that_fails_is_no_gpu(install, monkeypatch, tmp_path):
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not install.has_gpu()
    for status, expected in ((9, False), (0, True)):
        tool.write_text(f"#!/bin/sh\nexit {status}\n")
        tool.chmod(0o755)
        assert install.has_gpu() is expected


def test_an_old_python_is_told_so(install, monkeypatch):
    monkeypatch.setattr(sys, "version_info", (3, 10, 4, "final", 0))
    with pytest.raises(SystemExit, match=r"needs Python 3\.11 or newer, but .* is 3\.10\.4"):
        install.make_venv()


def test_a_python_without_ensurepip_is_told_what_to_install(install, monkeypatch):
    monkeypatch.setattr(install.importlib.util, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match="python3-venv"):
        install.make_venv()


def test_a_failed_installation_ends_with_a_sentence(install, monkeypatch):
    monkeypatch.setattr(install, "make_venv", lambda: None)
    monkeypatch.setattr(install, "installer", lambda: [sys.executable, "-c", "raise SystemExit(1)"])
    monkeypatch.setattr(sys, "argv", ["install.py"])
    with pytest.raises(SystemExit, match="the installation failed"):
        install.main()


def test_what_installs_names_no_address():
    """The registry is configured by the settings of the machine."""
    for name in ("Makefile", ".ci/run", "pyproject.toml", "scripts/install.py"):
        assert "://" not in (ROOT / name).read_text("utf-8"), name


def test_the_torch_that_it_installs_is_that_of_the_tested_set(install):
    assert install.TORCH in (ROOT / "constraints.txt").read_text("utf-8").splitlines()
