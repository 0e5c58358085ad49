"""The table of benchmarks and suites, and suites of a user's own."""

from pathlib import Path

import pytest

from fieldcraft.config.hub_names import parse_hub_dataset
from fieldcraft.evaluation.benchmarks import find_suite, load_benchmarks, load_suites
from fieldcraft.extensions.external_envs.bfcl.questions import (
    MEMORY_CATEGORIES,
    MULTI_TURN_CATEGORIES,
    SINGLE_TURN_CATEGORIES,
)
from fieldcraft.types import UserError

SETS = ("nq", "triviaqa", "popqa", "hotpotqa", "2wiki", "musique", "bamboogle")


def refused(name: str | None, *benchmarks: str) -> str:
    with pytest.raises(UserError) as raised:
        find_suite(name, [*benchmarks])
    assert str(raised.value).count("\n") == 0
    return str(raised.value)


def written(path: Path, text: str) -> str:
    file = path / "mine.yaml"
    file.write_text(text)
    return str(file)


def test_every_benchmark_says_where_its_data_are_and_how_it_is_graded() -> None:
    for name, benchmark in load_benchmarks().items():
        assert benchmark.hub or benchmark.published_file or benchmark.environment, name
        assert benchmark.environment or benchmark.columns.keys() >= {"question"}, name
        assert ("tests" in benchmark.columns) == (benchmark.graded_by == "tests"), name
        assert benchmark.licence, name
        assert benchmark.source, name
        if benchmark.hub is not None and benchmark.hub_file is None:
            rows = parse_hub_dataset(benchmark.hub)
            assert rows is not None, name
            assert rows.split, name


def test_suites_have_the_sets_and_the_sampling_of_their_papers() -> None:
    suites = load_suites()
    assert tuple(suites["search-r1"].benchmarks) == SETS
    assert suites["search-r1"].get_sampling("nq") == {
        "temperature": 0, "top_p": None, "samples": 1
    }  # fmt: skip
    assert tuple(suites["autocoa"].benchmarks) == tuple(s for s in SETS if s != "popqa")
    assert suites["autocoa"].questions == 500
    assert suites["autocoa"].get_sampling("musique")["temperature"] == 0.6
    code = suites["afm-code"]
    assert code.get_sampling("aime24") == {"temperature": 0.8, "top_p": None, "samples": 16}
    assert code.get_sampling("math500")["samples"] == 1
    assert list(suites["afm-web"].benchmarks) == ["gaia", "webwalkerqa", "browsecomp", "hle"]
    assert suites["afm-web"].get_sampling("hle") == {
        "temperature": 1.0, "top_p": 0.9, "samples": 1
    }  # fmt: skip


def test_benchmarks_without_a_suite_have_their_usual_sampling() -> None:
    suite = find_suite(None, ["aime25", "gsm8k"])
    assert suite.get_sampling("aime25") == {"temperature": 0.6, "top_p": None, "samples": 16}
    assert suite.get_sampling("gsm8k") == {"temperature": 0.0, "top_p": None, "samples": 1}


def test_a_part_of_a_suite_keeps_its_sampling() -> None:
    suite = find_suite("afm-code", ["aime25", "math500"])
    assert list(suite.benchmarks) == ["aime25", "math500"]
    assert suite.get_sampling("aime25")["samples"] == 16
    assert "did you mean 'aime25'?" in refused("afm-code", "aime26")


def test_a_suite_of_ones_own(tmp_path: Path) -> None:
    text = """
        benchmarks:
          nq: data/nq.jsonl
          gsm8k:
          staff: {file: staff.csv, columns: {question: q, answer: gold}, graded_by: math}
        temperature: 0.7
        samples: {staff: 4}
    """
    suite = find_suite(written(tmp_path, text), [])
    assert suite.benchmarks["nq"].file == tmp_path / "data/nq.jsonl"
    assert suite.benchmarks["nq"].graded_by == "em"
    assert suite.benchmarks["nq"].columns == {}  # a file in any format
    assert suite.benchmarks["gsm8k"] == load_benchmarks()["gsm8k"]
    assert suite.benchmarks["staff"].title == "staff"
    assert suite.benchmarks["staff"].columns == {"question": "q", "answer": "gold"}
    assert suite.get_sampling("staff") == {"temperature": 0.7, "top_p": None, "samples": 4}
    assert suite.get_sampling("nq")["samples"] == 1


def test_a_file_may_start_with_the_home_folder_and_no_other(tmp_path: Path) -> None:
    """The home folder of a user who does not exist is unknown."""
    suite = find_suite(written(tmp_path, "benchmarks: {nq: ~/nq.jsonl, popqa: ~nobody-here/q}"), [])
    assert suite.benchmarks["nq"].file == Path.home() / "nq.jsonl"
    assert suite.benchmarks["popqa"].file == tmp_path / "~nobody-here/q"


def test_a_suite_may_set_one_key_of_the_sampling(tmp_path: Path) -> None:
    suite = find_suite(written(tmp_path, "{benchmarks: [aime25], top_p: 0.8}"), [])
    assert suite.get_sampling("aime25") == {"temperature": 0.6, "top_p": 0.8, "samples": 16}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("benchmarks: 3", "benchmarks must be a list of names"),
        ("benchmarks: [nqq]", "there is no benchmark 'nqq'"),
        ("benchmarks: []", "a suite needs benchmarks"),
        ("- nq", "is not a suite"),
        ("benchmarks: {", "is not valid YAML"),
        ("{benchmarks: [nq], tempreature: 1}", "tempreature"),
        ("{benchmarks: [nq], temperature: -1}", "temperature"),
        ("{benchmarks: [nq], temperature: 101}", "temperature"),
        ("{benchmarks: [nq], samples: {popqa: 2}, temperature: 1}", "samples.popqa"),
        ("{benchmarks: [nq], samples: 4, temperature: 0}", "set temperature"),
        ("benchmarks: {mine: {file: q.jsonl, samples: 2}}", "set temperature"),
        ("benchmarks: {mine: {hub: org/name}}", "is not a data set"),
        ("benchmarks: {mine: {hub_file: a.jsonl}}", "set hub"),
        ("benchmarks: {mine: {file: q.jsonl, graded_by: emm}}", "is no grading rule: use one of"),
        ("benchmarks: {mine: {file: q.jsonl, columns: {answr: a}}}", "columns"),
        ("benchmarks: {mine: {environment: text, file: q.jsonl}}", "but not both"),
        ("benchmarks: {mine: {environment: tools}}", "must name an external environment"),
        ("benchmarks: {mine: {environment: text, graded_by: em}}", "use one of environment"),
        ("benchmarks: {mine: {file: q.jsonl, graded_by: environment}}", "is no grading rule"),
        ("benchmarks: {nq: {budget: {max_turn_tokens: 9}}}", "budget applies to a benchmark with"),
    ],
)
def test_a_mistake_in_a_suite_is_named(tmp_path: Path, text: str, expected: str) -> None:
    assert expected in refused(written(tmp_path, text))


def test_an_unknown_suite_is_named() -> None:
    assert "did you mean 'search-r1'?" in refused("search-r2")
    assert "does not exist" in refused("none/mine.yaml")
    assert "there is no benchmark 'gsm'" in refused(None, "gsm")


def test_the_suites_of_bfcl_have_all_categories() -> None:
    for name, categories in (
        ("bfcl", SINGLE_TURN_CATEGORIES),
        ("bfcl-multi-turn", MULTI_TURN_CATEGORIES),
        ("bfcl-memory", MEMORY_CATEGORIES),
    ):
        found = [b.environment for b in find_suite(name, []).benchmarks.values()]
        assert [e and e.settings for e in found] == [{"categories": [c]} for c in categories]
    titles = [benchmark.title for benchmark in find_suite("bfcl", []).benchmarks.values()]
    assert len(set(titles)) == len(titles)


def test_an_interpreter_is_that_of_the_environments() -> None:
    python = Path("/envs/bfcl/bin/python")
    suite = find_suite(None, ["nq", "bfcl-multiple"]).with_python(python)
    assert suite.benchmarks["nq"] == load_benchmarks()["nq"]
    environment = suite.benchmarks["bfcl-multiple"].environment
    assert environment is not None
    assert environment.settings == {"categories": ["multiple"], "python": str(python)}
    unchanged = load_benchmarks()["bfcl-multiple"].environment
    assert unchanged is not None
    assert "python" not in unchanged.settings
    with pytest.raises(UserError, match="--python names the interpreter of a benchmark"):
        find_suite("search-r1", []).with_python(python)


def test_a_benchmark_of_an_own_environment_is_graded_by_it(tmp_path: Path) -> None:
    text = "benchmarks: {games: {environment: {name: text, env: 'a:B'}, budget: {max_calls: 2}}}"
    games = find_suite(written(tmp_path, text), []).benchmarks["games"]
    assert games.graded_by == "environment"
    assert games.origin == "environment text"
    own = "benchmarks: {bfcl-multiple: {environment: {name: bfcl, categories: [parallel]}}}"
    changed = find_suite(written(tmp_path, own), []).benchmarks["bfcl-multiple"]
    assert changed.size is None  # not that of the published selection


@pytest.mark.parametrize("text", ["benchmarks:\n  - nq: nq.jsonl\n", "benchmarks: {1: a.jsonl}\n"])
def test_a_list_of_mappings_is_no_list_of_names(tmp_path: Path, text: str) -> None:
    message = refused(written(tmp_path, text))
    assert "benchmarks must be a list of names, or files by name" in message
