"""SQLite files that processes create, read and write at the same time."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from fieldcraft.records.files import make_file
from fieldcraft.records.shared_database import SharedDatabase
from fieldcraft.types import UserError

PROCESSES, ROWS = 6, 10
PROGRAM = """
import sys
from pathlib import Path
from fieldcraft.tools.reply_cache import ReplyCache

name, root = sys.argv[1], Path(sys.argv[2])
print("ready", flush=True)
sys.stdin.readline()
for number in range(int(sys.argv[3])):
    cache = ReplyCache(root / f"replies-{number}")  # a new file that all create at once
    cache.add(name, name)
    assert cache.find(name) == name
"""


def make_database(path: Path, *, read_only: bool = False) -> SharedDatabase:
    return SharedDatabase(path, "cannot be used", "remove it", read_only)


def test_processes_create_a_file_at_the_same_time(tmp_path):
    command = [sys.executable, "-c", PROGRAM]
    pipe = subprocess.PIPE
    runs = [
        subprocess.Popen([*command, str(n), tmp_path, str(ROWS)], stdin=pipe, stdout=pipe)
        for n in range(PROCESSES)
    ]
    for run in runs:
        assert run.stdout.readline() == b"ready\n"
    for run in runs:
        run.stdin.write(b"\n")
        run.stdin.flush()
    for run in runs:
        run.communicate()
        assert run.returncode == 0
    for number in range(ROWS):
        with make_database(tmp_path / f"replies-{number}").read() as file:
            rows = file.execute("SELECT key FROM replies").fetchall()
        assert sorted(rows) == [(str(n),) for n in range(PROCESSES)]


def insert_twice(database: SharedDatabase) -> None:
    with database.write() as file:
        file.execute("INSERT INTO t VALUES (1)")
        file.execute("INSERT INTO u VALUES (1)")


def test_an_exception_rolls_a_transaction_back(tmp_path):
    make_file(tmp_path / "a b?#%.sqlite")
    database = make_database(tmp_path / "a b?#%.sqlite")
    with database.write() as file:
        file.execute("CREATE TABLE t (x)")
    with pytest.raises(UserError, match="no such table: u"):
        insert_twice(database)
    with database.read() as file:
        assert file.execute("SELECT count(*) FROM t").fetchone() == (0,)


def test_a_file_that_cannot_be_used_is_a_sentence(tmp_path):
    missing = make_database(tmp_path / "missing")
    with pytest.raises(UserError, match=r"missing cannot be used \(.*\): remove it\.$"):
        missing.read().__enter__()
    assert not (tmp_path / "missing").exists()
    make_file(tmp_path / "file")
    reader = make_database(tmp_path / "file", read_only=True)
    with (
        pytest.raises(UserError, match=r"cannot be used \(attempt to write a readonly database\)"),
        reader.read() as file,
    ):
        file.execute("CREATE TABLE t (x)")


def test_a_transaction_waits_for_another_process(tmp_path):
    make_file(tmp_path / "file")
    database = make_database(tmp_path / "file")
    with database.write() as file, pytest.raises(sqlite3.OperationalError, match="locked"):
        sqlite3.connect(tmp_path / "file", timeout=0).execute("BEGIN IMMEDIATE")
    with database.write() as file:
        file.execute("CREATE TABLE t (x)")
