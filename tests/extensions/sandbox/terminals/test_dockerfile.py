"""Dockerfiles that our own sandbox follows, and lines that it refuses."""

import contextlib
import io
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fieldcraft.extensions.sandbox.terminals.dockerfile import (
    BASE_PATH,
    ImageFiles,
    read_dockerfile,
    split_instructions,
)
from fieldcraft.types import UserError


def build(folder: Path, text: str) -> ImageFiles:
    """Build from a folder with the files one.txt, two.txt and data/deep/three.sh."""
    (folder / "data" / "deep").mkdir(parents=True, exist_ok=True)
    for name in ("one.txt", "two.txt", "data/deep/three.sh"):
        (folder / name).write_text(name)
    (folder / "data" / "deep" / "three.sh").chmod(0o755)
    (folder / "Dockerfile").write_text(text)
    return read_dockerfile(folder)


def list_files(image: ImageFiles) -> dict[str, str]:
    with tarfile.open(fileobj=io.BytesIO(image.archive)) as archive:
        return {
            item.name: archive.extractfile(item).read().decode()  # type: ignore[union-attr]
            for item in archive
            if item.isfile()
        }


def test_every_instruction(tmp_path: Path) -> None:
    text = """\
# syntax=docker/dockerfile:1
FROM python:3.11-slim AS base
ENV ROOT=/srv NAME="two words" \\
    # a comment between
    LATER=$ROOT/later
ENV OLD=$ROOT/old
env PLAIN a value  with blanks
WORKDIR $ROOT
WORKDIR inner
COPY one.txt two.txt ./
COPY one.txt renamed.txt
COPY data /data
COPY ["two.txt", "/with blank/"]
COPY *.txt ${ROOT}/all/
"""
    image = build(tmp_path, text)
    assert image.folder == "/srv/inner"
    assert image.variables == {
        "ROOT": "/srv",
        "NAME": "two words",
        "LATER": "/later",
        "OLD": "/srv/old",
        "PLAIN": "a value  with blanks",
    }
    assert list_files(image) == {
        "srv/inner/one.txt": "one.txt",
        "srv/inner/two.txt": "two.txt",
        "srv/inner/renamed.txt": "one.txt",
        "data/deep/three.sh": "data/deep/three.sh",
        "with blank/two.txt": "two.txt",
        "srv/all/one.txt": "one.txt",
        "srv/all/two.txt": "two.txt",
    }
    with tarfile.open(fileobj=io.BytesIO(image.archive)) as archive:
        assert archive.getmember("data/deep/three.sh").mode == 0o755
        assert archive.getmember("srv/inner").isdir()


@pytest.mark.parametrize(
    ("value", "expanded"),
    [
        ("/opt/bin:$PATH", f"/opt/bin:{BASE_PATH}"),
        ('"${PATH}:/opt/bin"', f"{BASE_PATH}:/opt/bin"),
        ("'$PATH'", "$PATH"),
        (r"'\$PATH'", r"\$PATH"),
        (r"a\$PATH", "a$PATH"),
        (r'"a\$PATH"', "a$PATH"),
        ('"it\'s $NAME"', "it's x"),
        ("5$", "5$"),
    ],
)
def test_values_of_variables(tmp_path: Path, value: str, expanded: str) -> None:
    assert build(tmp_path, f"FROM x\nENV NAME=x\nENV A={value}\n").variables["A"] == expanded


def test_a_folder_is_copied_with_its_links(tmp_path: Path) -> None:
    build(tmp_path, "FROM x\n")
    (tmp_path / "data" / "link").symlink_to("/etc/passwd")
    image = build(tmp_path, "FROM x\nCOPY . /app\n")
    with tarfile.open(fileobj=io.BytesIO(image.archive)) as archive:
        assert archive.getmember("app/data/link").linkname == "/etc/passwd"
        assert "app/Dockerfile" in archive.getnames()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("RUN apt-get install -y curl", "it runs only FROM, COPY, WORKDIR and ENV"),
        ("ADD one.txt /", "it runs only FROM, COPY, WORKDIR and ENV"),
        ("FROM debian", "it runs only FROM, COPY, WORKDIR and ENV"),
        ("COPY --from=base /a /b", "it copies SOURCE... DESTINATION without flags"),
        ("COPY one.txt", "it copies SOURCE... DESTINATION without flags"),
        ("COPY one.txt two.txt /app", "several sources need a folder"),
        ("COPY ../secret /app/", "it leads out of the folder"),
        ("COPY one.txt /usr/local/bin/", "/usr/local/bin is read-only there"),
        ("WORKDIR /proc", "/proc is read-only there"),
        ("ENV A=1 B", "'B' is no NAME=VALUE"),
        ("ENV 'open", "No closing quotation"),
        ("ENV A=${B:-x}", "it expands only $NAME and ${NAME}"),
        ("WORKDIR", "it has no arguments"),
        ("COPY [one.txt]", "its list is not JSON"),
        ("COPY a**.txt /app/", "'a**.txt' is no path"),
        ("COPY a\0b /app/", "is no path"),
        ("COPY [1, 2]", "its list has something else than texts"),
    ],
)
def test_other_lines_need_a_container(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(UserError) as refused:
        build(tmp_path, f"FROM x\n\n{line}\n")
    assert f"cannot follow line 3 of {tmp_path / 'Dockerfile'} ({line}" in str(refused.value)
    assert reason in str(refused.value)
    assert str(refused.value).endswith("use the backend container.")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "has no line FROM"),
        ("WORKDIR /app\n", "has no line FROM"),
        ("FROM x\nCOPY missing.txt /app/\n", "copies 'missing.txt', which does not exist: add it."),
        ("FROM x\nCOPY *.md /app/\n", "copies '*.md', which does not exist: add it."),
    ],
)
def test_files_that_cannot_be_built(tmp_path: Path, text: str, sentence: str) -> None:
    with pytest.raises(UserError) as refused:
        build(tmp_path, text)
    assert sentence in str(refused.value)


def test_a_link_out_of_the_folder(tmp_path: Path) -> None:
    build(tmp_path, "FROM x\n")
    (tmp_path / "outside").symlink_to("/etc")
    with pytest.raises(UserError, match="it leads out of the folder"):
        build(tmp_path, "FROM x\nCOPY outside/passwd /app/\n")


def test_ignored_files(tmp_path: Path) -> None:
    (tmp_path / ".dockerignore").write_text("*.txt\n")
    with pytest.raises(UserError, match=r"has a \.dockerignore"):
        build(tmp_path, "FROM x\n")


WORDS = st.text(st.characters(codec="ascii", exclude_characters="\\#\n\r\x0b\x0c\x1c\x1d\x1e"))


@given(st.lists(WORDS.map(str.strip).filter(bool)))
def test_lines_without_continuation_are_instructions(lines: list[str]) -> None:
    found = list(split_instructions("\n".join(lines)))
    assert [number for number, _, _ in found] == list(range(1, len(lines) + 1))
    for line, (_, instruction, arguments) in zip(lines, found, strict=True):
        name, _, rest = line.partition(" ")
        assert (instruction, arguments) == (name.upper(), rest.strip())


NAMES = st.sampled_from(["FROM x\n", "COPY ", "ENV ", "WORKDIR ", "[", '"', "one.txt", " ", "\\\n"])


@given(st.lists(NAMES | st.text()).map("".join))
def test_any_text_is_an_image_or_an_error(text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "Dockerfile").write_bytes(text.encode("utf-8", "surrogatepass"))
        with contextlib.suppress(UserError):
            assert read_dockerfile(Path(folder)).folder.startswith("/")
