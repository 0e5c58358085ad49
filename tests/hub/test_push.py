"""Exported models that are pushed to a hub and read back."""

import errno
import json
from pathlib import Path

import pytest
from safetensors.torch import load_file

import fieldcraft
from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from cli_parts import sentence, status
from fieldcraft.hub.push import Visibility, parse_push_target, push_folder
from fieldcraft.types import UserError
from hub_parts import go_offline, hub, nobody_answers
from hub_server import TOKEN, Hub
from tiny_runs import run_tiny

__all__ = ["hub"]


@pytest.fixture
def token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)


@pytest.mark.usefixtures("token")
def test_a_model_is_sent_with_its_card_and_loads_by_its_name(
    hub: Hub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_tiny(tmp_path)
    assert status("export", run, "--out", "copy", "--push", "org/trained") == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"{hub.url}/org/trained"
    sent = hub.repositories["models/org/trained"]
    assert not sent.private
    files = sent.commits[sent.refs["main"]]
    assert files.keys() == {path.name for path in Path("copy").iterdir()}
    assert files["README.md"] == Path("copy/README.md").read_bytes()
    agent = fieldcraft.load("org/trained")
    assert agent.recipe.dialect == fieldcraft.load("copy").recipe.dialect
    here, there = (load_file(f / "model.safetensors") for f in (Path("copy"), agent.model))
    assert all(here[name].equal(there[name]) for name in here)
    assert TOKEN.encode() not in b"".join(files.values())


@pytest.mark.usefixtures("token")
def test_no_folder_of_this_machine_is_sent(hub: Hub, tmp_path: Path) -> None:
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2", tokenizer=tiny_tokenizer())
    assert status("export", model, "--out", "copy", "--push", "org/plain", "--private") == 0
    assert hub.repositories["models/org/plain"].private
    agent = Path("copy/fieldcraft.json")
    agent.write_text(json.dumps(json.loads(agent.read_bytes()) | {"index": "/home/me/index"}))
    given = ("--out", "again", "--push", "org/second", "--allow", "file")
    assert status("export", "copy", *given) == 0
    assert "/home/me" in Path("again/fieldcraft.json").read_text()
    sent = hub.repositories["models/org/second"]
    assert b"/home/me" not in b"".join(sent.commits[sent.refs["main"]].values())


def test_what_the_hub_does_not_take(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = write_tiny_checkpoint(tmp_path / "model", "qwen2", tokenizer=tiny_tokenizer())
    command = ["export", model, "--out", "copy", "--push"]
    assert status(*command, "org/plain") == 2
    assert "writing to org/plain needs a token: set HF_TOKEN" in sentence(capsys)
    for wrong in ("plain", "org/plain@main", "a/b/c"):
        assert status(*command, wrong) == 2
        assert f"--push {wrong} is not a name on the hub" in sentence(capsys)
    assert status(*command[:-1], "--private") == 2
    assert "--private is for a model on the hub: give --push org/name" in sentence(capsys)
    assert not hub.requests
    assert not Path("copy").exists()
    monkeypatch.setenv("HF_TOKEN", "hf_of-somebody-else")
    assert status(*command, "org/plain") == 2
    message = capsys.readouterr().err.splitlines()[-1]
    assert (
        f"copy is complete but was not uploaded, because {hub.url} answers 401: set HF_TOKEN"
        in message
    )
    assert "run 'hf upload org/plain copy'" in message
    assert "hf_of" not in message
    assert Path("copy/README.md").exists()


@pytest.mark.usefixtures("token")
def test_a_failed_upload_names_its_own_cause(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = parse_push_target("org/mine")

    def fail(folder: Path, visibility: Visibility = "public") -> str:
        with pytest.raises(UserError) as raised:
            push_folder(folder, target, visibility)
        start = f"{folder} is complete but was not uploaded, because "
        assert str(raised.value).startswith(start)
        return str(raised.value).removeprefix(start)

    def deny(name: str, path: str) -> None:  # root may read any file
        raise PermissionError(errno.EACCES, "Permission denied", path)

    unreadable = tmp_path / "unreadable"
    unreadable.mkdir()
    (unreadable / "README.md").write_text("A model.")
    with monkeypatch.context() as patch:
        patch.setattr("huggingface_hub.CommitOperationAdd", deny)
        assert fail(unreadable) == (
            f"{unreadable / 'README.md'} cannot be read (Permission denied): make it readable, and"
            f" run 'hf upload org/mine {unreadable}'."
        )
    empty = tmp_path / "empty"
    empty.mkdir()
    nobody_answers(tmp_path / "cache", monkeypatch)
    message = fail(empty, "private")
    assert "cannot be reached: connect to the network or correct HF_ENDPOINT, and run" in message
    assert message.endswith(f"'hf upload org/mine {empty} --private'.")
    go_offline(monkeypatch)
    assert fail(empty).startswith("HF_HUB_OFFLINE prevents it: unset it, and run 'hf upload")
