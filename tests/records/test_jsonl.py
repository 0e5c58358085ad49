import gzip

import pytest

from fieldcraft.records.jsonl import read_journal, read_json_lines
from fieldcraft.types import UserError


def test_lines_keep_their_numbers_and_blank_ones_are_skipped(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"a": 1}\r\n\n{"b": NaN}')
    lines = list(read_json_lines(path))
    assert lines[0] == (1, {"a": 1})
    assert lines[1][0] == 3


def test_gzip_is_unpacked(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n'))
    assert list(read_json_lines(path)) == [(1, {"a": 1})]


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b'{"a": 1}\n{"a": \n', r"line 2 is not JSON"),
        (b'{"a": 1}\n[1]\n', r"line 2 is not a JSON object"),
        (b'{"a": "\xff"}\n', r"line 1 is not text in UTF-8"),
        (b"[" * 100_000, r"line 1 is nested too deeply"),
    ],
)
def test_a_bad_line_is_named(tmp_path, content, complaint):
    path = tmp_path / "a.jsonl"
    path.write_bytes(content)
    with pytest.raises(UserError, match=complaint) as error:
        list(read_json_lines(path))
    assert str(error.value).startswith(str(path))


def test_a_damaged_gzip_file_is_named(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"a": 1}\n' * 1000)[:-12])
    with pytest.raises(UserError, match=r"a\.jsonl\.gz is cut short"):
        list(read_json_lines(path))
    path.write_bytes(b'{"a": 1}\n')
    with pytest.raises(UserError, match="Not a gzipped file"):
        list(read_json_lines(path))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"b\.jsonl does not exist"):
        list(read_json_lines(tmp_path / "b.jsonl"))


def test_a_reader_of_a_journal_ignores_a_line_that_is_being_written(tmp_path):
    path = tmp_path / "jobs.jsonl"
    assert read_journal(path, lambda line, _: int(line), "to do it again") == []
    with path.open("ab", buffering=0) as writer:
        writer.write(b"1\n2\n3")
        assert read_journal(path, lambda line, _: int(line), "to do it again") == [1, 2]
        writer.write(b"4\n")
    assert read_journal(path, lambda line, _: int(line), "to do it again") == [1, 2, 34]


def test_a_damaged_line_of_a_journal_is_named_and_can_be_removed(tmp_path):
    path = tmp_path / "jobs.jsonl"
    path.write_bytes(b"1\ntwo\n")
    advice = r"line 2 cannot be read .*keep a copy of jobs.jsonl, then remove the line, to do it"
    with pytest.raises(UserError, match=advice):
        read_journal(path, lambda line, _: int(line), "to do it again")
