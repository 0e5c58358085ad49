"""Questions of benchmarks: from folders, from a local hub, and of real files."""

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from fieldcraft.evaluation.benchmarks import Benchmark, load_benchmarks
from fieldcraft.runs.benchmark_data import BenchmarkData, describe_rule, read_benchmark
from fieldcraft.types import UserError
from hub.test_hub_rows import as_lines, as_parquet
from hub_parts import go_offline, hub
from hub_server import Hub

__all__ = ["hub"]
NQ = [{"id": f"n{i}", "question": f"Who made film {i}?", "golden_answers": ["Ada"]} for i in (0, 1)]
CARD = (
    b"---\nconfigs:\n- config_name: nq\n  data_files: [{split: test, path: nq/test.jsonl}]\n---\n"
)


def read(
    name: str, folder: Path | None = None, limit: int | None = None, **changes: Any
) -> BenchmarkData:
    benchmark = load_benchmarks()[name].model_copy(update=changes)
    return read_benchmark(name, benchmark, folder, limit)


def refused(name: str, folder: Path | None = None, **changes: Any) -> str:
    with pytest.raises(UserError) as raised:
        read(name, folder, **changes)
    assert str(raised.value).count("\n") == 0
    return str(raised.value)


# -- folders -----------------------------------------------------------------------------------


def test_a_file_is_found_by_its_name_and_identified_by_its_hash(tmp_path: Path) -> None:
    file = tmp_path / "nq.jsonl.gz"
    file.write_bytes(gzip.compress(as_lines(NQ)))
    (tmp_path / "README.md").write_text("other")
    found = read("nq", tmp_path)
    assert [task.id for task in found.tasks] == ["n0", "n1"]
    assert found.tasks[0].meta == {"data_source": "nq", "graded_by": "em"}
    assert found.file.version == f"sha256:{hashlib.sha256(file.read_bytes()).hexdigest()}"
    assert found.warnings == [f"{file} has 2 questions, and NQ was published with 3610"]


def test_a_file_may_be_in_any_format(tmp_path: Path) -> None:
    (tmp_path / "nq.csv").write_text("question,answer\nWho?,Ada\n")
    assert read("nq", tmp_path).tasks[0].answers == ("Ada",)


def test_the_grading_rule_is_that_of_the_benchmark(tmp_path: Path) -> None:
    rows = [{"question": "How many?", "answer": "3", "graded_by": "em", "metadata": {"split": "x"}}]
    (tmp_path / "gsm8k.jsonl").write_bytes(as_lines(rows))
    assert read("gsm8k", tmp_path).tasks[0].meta["graded_by"] == "math"
    assert "split" not in read("gsm8k", tmp_path).tasks[0].meta


def test_a_selection_is_the_same_each_time(tmp_path: Path) -> None:
    rows = [{"id": str(i), "question": f"Q{i}?", "answer": "a"} for i in range(50)]
    (tmp_path / "nq.jsonl").write_bytes(as_lines(rows))
    found = [task.id for task in read("nq", tmp_path, 5).tasks]
    assert found == [task.id for task in read("nq", tmp_path, 5).tasks]
    assert found != ["0", "1", "2", "3", "4"]
    assert found == sorted(found, key=int)
    assert read("nq", tmp_path, 5).fingerprint != read("nq", tmp_path, 6).fingerprint


def test_the_published_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "browse_comp_test_set.csv").write_text("problem,answer\nWhich?,Ada\n")
    assert read("browsecomp", tmp_path).tasks[0].meta["graded_by"] == "judge"


def test_columns_of_ones_own(tmp_path: Path) -> None:
    file = tmp_path / "staff.csv"
    file.write_text("q,gold,other\nWho?,Ada,x\n")
    keys = {"title": "Staff", "file": file, "columns": {"question": "q", "answer": "gold"}}
    found = read_benchmark("staff", Benchmark.model_validate(keys), None, None)
    assert (found.tasks[0].question, found.tasks[0].answers) == ("Who?", ("Ada",))
    keys["columns"] = {"question": "q", "answer": "golden"}
    with pytest.raises(UserError, match="no column 'golden' with the answer, but q, gold, other"):
        read_benchmark("staff", Benchmark.model_validate(keys), None, None)


def test_mistakes_are_named(tmp_path: Path) -> None:
    for name in ("nq.jsonl", "nq.csv"):
        (tmp_path / name).write_text("")
    assert "keep one of them" in refused("nq", tmp_path)
    assert "is not a folder" in refused("nq", tmp_path / "nq.csv")
    assert "put browse_comp_test_set.csv" in refused("browsecomp")
    assert "does not exist" in refused("nq", file=tmp_path / "none.jsonl")
    (tmp_path / "mbpp.jsonl").write_bytes(as_lines(NQ))
    assert "has no tests" in refused("mbpp", tmp_path)


def test_rules_are_named_with_their_versions() -> None:
    assert describe_rule("em", None) == "em/squad-7"
    assert describe_rule("math", None).startswith("math with Math-Verify ")
    assert describe_rule("judge", "m") == "judge/verdict-1 by m"
    with pytest.raises(UserError, match="give --judge-url and --judge-model"):
        describe_rule("judge", None)


# -- the hub -----------------------------------------------------------------------------------


def test_rows_come_from_the_hub_with_their_commit(hub: Hub) -> None:
    files = {"README.md": CARD, "nq/test.jsonl": as_lines(NQ)}
    repository = hub.add("datasets/RUC-NLPIR/FlashRAG_datasets", files)
    found = read("nq")
    assert found.file.version == repository.refs["main"]
    assert found.file.source == f"hub:RUC-NLPIR/FlashRAG_datasets@{found.file.version}/nq:test"
    assert [task.id for task in found.tasks] == ["n0", "n1"]


def test_another_layout_on_the_hub_is_refused(hub: Hub) -> None:
    rows = [{"question": "Who?", "gold": ["Ada"]}]
    files = {"README.md": CARD, "nq/test.jsonl": as_lines(rows)}
    hub.add("datasets/RUC-NLPIR/FlashRAG_datasets", files)
    message = refused("nq")
    assert "has no column 'golden_answers' with the answer, but question, gold" in message
    hub.repositories["datasets/RUC-NLPIR/FlashRAG_datasets"].commit({"test.jsonl": as_lines(NQ)})
    assert "has no configuration 'nq'" in refused("nq")


def test_a_single_file_of_a_repository(hub: Hub) -> None:
    cases = json.dumps([{"input": "1\n", "output": "2\n", "testtype": "stdin"}])
    row = {"question_content": "Add one.", "question_id": "a", "public_test_cases": cases}
    name = "datasets/livecodebench/code_generation_lite"
    repository = hub.add(name, {"test5.jsonl": as_lines([row]), "load.py": b"1/0"})
    found = read("livecodebench-v5")
    assert found.file.version == repository.refs["main"]
    assert found.file.source.endswith(f"@{found.file.version}, test5.jsonl")
    assert found.tasks[0].meta["stdin_tests"] == [{"input": "1\n", "output": "2\n"}]
    hub.requests.clear()
    assert read("livecodebench-v5").file == found.file
    assert not hub.fetched()
    message = refused("livecodebench-v4")
    assert "has no file test4.jsonl" in message
    assert "put it as livecodebench-v4.jsonl into a folder and give --data FOLDER." in message


def test_a_gated_set_says_what_to_do(hub: Hub) -> None:
    hub.add("datasets/cais/hle", {"test.parquet": as_parquet(NQ)}, gated=True)
    message = refused("hle")
    assert "request access at" in message
    assert "set HF_TOKEN" in message
    assert message.endswith("or put it as hle.jsonl into a folder and give --data FOLDER.")


def test_without_a_network_a_folder_is_asked_for(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    go_offline(monkeypatch)
    assert "put it as gsm8k.jsonl into a folder" in refused("gsm8k")


# -- real files --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "file", "count", "grader"),
    [
        ("gsm8k", "math/gsm8k_test_1319.jsonl", 1319, "math"),
        ("math500", "math/math500.json", 500, "math"),
        ("olympiadbench", "math/olympiadbench_675_verl.parquet", 675, "math"),
        ("humaneval", "code/HumanEval.jsonl.gz", 164, None),
        ("mbpp", "code/mbpp_974.jsonl", 974, None),
        ("codecontests", "code/code_contests_165.json", 165, None),
        ("bamboogle", "qa/bamboogle_125.json", 125, "em"),
        ("musique", "qa/musique_100_with_context.json", 100, "em"),
        ("hotpotqa", "qa/hotpotqa_300_with_context.jsonl", 300, "em"),
        ("nq", "qa/nq_open_oracle_2655.jsonl.gz", 2655, "em"),
    ],
)
def test_real_files_are_read(
    shared: Path, name: str, file: str, count: int, grader: str | None
) -> None:
    found = read(name, file=shared / "data" / file, columns={})
    assert len(found.tasks) == count
    assert {task.meta.get("graded_by") for task in found.tasks} == {grader}
