"""Models by their names on a hub, fetched with the real client from a local hub."""

import json
import shutil
from pathlib import Path

import pytest

from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from cli_parts import sentence, status
from fieldcraft.config.hub_names import HubModel, get_snapshot_folder, identify_hub_model
from fieldcraft.hub.client import HubUnreachableError
from fieldcraft.hub.models import find_base_model, resolve_checkpoint
from fieldcraft.train.model import load_tokenizer
from fieldcraft.types import UserError
from hub_parts import NAME, go_offline, hub, nobody_answers
from hub_server import LARGE, TOKEN, Hub, Repository

__all__ = ["hub"]
KEY = f"models/{NAME}"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "model"
    return write_tiny_checkpoint(folder, "qwen2", tokenizer=tiny_tokenizer())


@pytest.fixture
def repository(hub: Hub, tiny: Path) -> Repository:
    """Provide a model with files that must not be fetched."""
    made = hub.add_folder(KEY, tiny)
    other = {"modeling.py": b"1/0", "pytorch_model.bin": b"?", "onnx/config.json": b"{}"}
    made.commit({**made.commits[made.refs["main"]], **other})
    return made


def refused(name: str) -> str:
    with pytest.raises(UserError) as raised:
        resolve_checkpoint(Path(name))
    assert str(raised.value).count("\n") == 0
    return str(raised.value)


def test_a_model_is_fetched_once_and_only_what_is_data(
    hub: Hub, repository: Repository, tiny: Path
) -> None:
    folder = resolve_checkpoint(Path(NAME))
    assert folder == get_snapshot_folder(HubModel(NAME, repository.refs["main"]))
    assert {f.name for f in folder.iterdir()} == {f.name for f in tiny.iterdir()}
    assert (folder / "model.safetensors").read_bytes() == (tiny / "model.safetensors").read_bytes()
    hub.requests.clear()
    assert resolve_checkpoint(Path(NAME)) == folder
    assert not hub.fetched()
    assert resolve_checkpoint(Path(f"{NAME}@{folder.name}")) == folder
    assert hub.requests == [f"GET /api/models/{NAME}"]  # of the name without a commit


def test_a_model_answers_on_the_command_line(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    assert status("ask", "Who?", "--model", NAME, "--dialect", "hermes") == 0
    assert "Who?" in capsys.readouterr().out


def test_a_folder_of_the_name_goes_before_the_hub(hub: Hub, repository: Repository) -> None:
    shutil.copytree(resolve_checkpoint(Path(NAME)), NAME)
    hub.requests.clear()
    assert resolve_checkpoint(Path(NAME)) == Path(NAME)
    assert not hub.requests


def test_revisions(repository: Repository) -> None:
    first = repository.refs["main"]
    repository.refs["v1"] = first
    second = repository.commit({**repository.commits[first], "README.md": b"# Better"})
    assert resolve_checkpoint(Path(NAME)).name == second
    assert resolve_checkpoint(Path(f"{NAME}@v1")).name == first
    message = refused(f"{NAME}@v2")
    assert message.startswith(f"{NAME} has no revision 'v2' at http://127.0.0.1")


def test_a_name_that_does_not_exist(
    repository: Repository, capsys: pytest.CaptureFixture[str]
) -> None:
    for command in (["ask", "Who?", "--model"], ["export", "--out", "copy"]):
        assert status(*command, "org/other") == 2
        message = sentence(capsys)
        assert message.startswith("org/other is not a folder, and http://127.0.0.1")
        assert "correct the name or, if it is private, set HF_TOKEN" in message
    assert not Path("copy").exists()


def test_gated_and_private_models(
    hub: Hub, tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add_folder(KEY, tiny, gated=True)
    hub.add_folder("models/org/private", tiny, private=True)
    assert status("ask", "Who?", "--model", NAME) == 2
    message = sentence(capsys)
    assert message.startswith(
        f"{NAME} is gated: request access at {hub.url}/{NAME}, then set HF_TOKEN"
    )
    assert "org/private is not a folder" in refused("org/private")
    monkeypatch.setenv("HF_TOKEN", "hf_without-access")
    assert "is gated" in refused(NAME)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert resolve_checkpoint(Path(NAME)).is_dir()
    assert resolve_checkpoint(Path("org/private")).is_dir()


def test_a_renamed_model_is_followed(hub: Hub, repository: Repository) -> None:
    hub.renamed["models/org/old-name"] = KEY
    folder = resolve_checkpoint(Path("org/old-name"))
    assert identify_hub_model(folder) == HubModel("org/old-name", repository.refs["main"])
    load_tokenizer(folder)


@pytest.mark.long
def test_a_download_that_was_cut_goes_on(hub: Hub, repository: Repository) -> None:
    commit = repository.refs["main"]
    files = repository.commits[commit]
    files["model.safetensors"] += bytes(LARGE)  # so that it is stored by LFS
    hub.broken.add("model.safetensors")
    with pytest.raises(HubUnreachableError, match="resumes the download"):
        resolve_checkpoint(Path(NAME))
    assert not (get_snapshot_folder(HubModel(NAME, commit)) / "model.safetensors").exists()
    hub.broken.clear()
    hub.requests.clear()
    folder = resolve_checkpoint(Path(NAME))
    assert (folder / "model.safetensors").read_bytes() == files["model.safetensors"]
    assert "config.json" not in hub.fetched()


@pytest.mark.parametrize("offline", [go_offline, None])
def test_without_a_network(
    repository: Repository, offline: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = resolve_checkpoint(Path(NAME))
    if offline is None:
        nobody_answers(tmp_path / "cache", monkeypatch)
    else:
        go_offline(monkeypatch)
    assert (
        resolve_checkpoint(Path(NAME))
        == resolve_checkpoint(Path(f"{NAME}@{folder.name}"))
        == folder
    )
    remedy = "HF_HUB_OFFLINE prevents" if offline else "cannot be reached"
    assert remedy in refused("org/other")
    (folder / "model.safetensors").unlink()
    assert "is not complete in the cache" in refused(NAME)


def test_a_cache_that_another_program_filled(hub: Hub, repository: Repository, tiny: Path) -> None:
    """Without the client's list of files, completeness is determined from the present files
    alone."""
    model = HubModel(NAME, repository.refs["main"])
    shutil.copytree(tiny, get_snapshot_folder(model), ignore=lambda *_: ["model.safetensors"])
    assert (resolve_checkpoint(Path(str(model))) / "model.safetensors").exists()
    assert "model.safetensors" in hub.fetched()


def test_weights_in_parts(hub: Hub, tiny: Path) -> None:
    files = {p.name: p.read_bytes() for p in tiny.iterdir() if p.name != "model.safetensors"}
    parts = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    index = {"metadata": {}, "weight_map": {f"w{n}": part for n, part in enumerate(parts)}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    made = hub.add(KEY, files | dict.fromkeys(parts, b"part"))
    folder = get_snapshot_folder(HubModel(NAME, made.refs["main"]))
    folder.mkdir(parents=True)
    for name, data in files.items():
        (folder / name).write_bytes(data)
    (folder / parts[0]).write_bytes(b"part")
    resolve_checkpoint(Path(f"{NAME}@{folder.name}"))
    assert (folder / parts[1]).read_bytes() == b"part"


def test_what_is_refused_before_its_weights_are_fetched(hub: Hub, tiny: Path) -> None:
    config = json.loads((tiny / "config.json").read_bytes())
    quantised = {**config, "quantization_config": {"quant_method": "awq"}}
    weights = {"model.safetensors": b"", "pytorch_model.bin": b""}
    plain = json.dumps(config).encode()
    hub.add("models/org/awq", {"config.json": json.dumps(quantised).encode(), **weights})
    hub.add("models/org/bin", {"config.json": plain, "pytorch_model.bin": b""})
    hub.add("models/org/gguf", {"README.md": b"", "tiny.gguf": b""})
    hub.add("models/org/pictures", {"README.md": b""})
    for name, message in {
        "org/awq": "org/awq is quantised (awq), and such weights cannot be trained",
        "org/bin": "org/bin has no weights in safetensors",
        "org/gguf": "run 'hf download org/gguf tiny.gguf --local-dir .' and give tiny.gguf",
        "org/pictures": "org/pictures is not a model, as it has neither a config.json nor",
    }.items():
        assert message in refused(name)
    assert not {"model.safetensors", "pytorch_model.bin", "tiny.gguf"} & {*hub.fetched()}


def test_no_token_gets_into_a_sentence(
    hub: Hub, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    assert TOKEN not in refused("org/other")
    assert TOKEN in hub.tokens
    nobody_answers(tmp_path / "cache", monkeypatch)
    constants = __import__("huggingface_hub").constants
    monkeypatch.setattr(constants, "ENDPOINT", constants.ENDPOINT.replace("//", "//me:secret@"))
    assert "secret" not in refused("org/other")


def test_a_base_model_in_the_home_folder_of_nobody_is_none() -> None:
    assert find_base_model("~nobody-here/base", None) is None
