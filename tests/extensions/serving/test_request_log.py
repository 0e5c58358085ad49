"""Recorded requests, user feedback, and a run that learns from both."""

import json
from pathlib import Path

import httpx
import pytest

from checkpoints import write_tiny_checkpoint
from cli_parts import lines, sentence, status
from fieldcraft.data.request_logs import read_log_demonstrations, read_log_tasks
from fieldcraft.data.steps_io import read_demonstrations
from fieldcraft.data.tasks import read_tasks
from fieldcraft.extensions.serving.app import create_app
from fieldcraft.extensions.serving.service import RequestLog
from fieldcraft.records.trajectories import read_trajectories
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.types import Answer, Author, Observation, Status, Thought, ToolCall, UserError
from serving_parts import SEARCHES, client, scripted
from small_disk import small_disk

TROUBLE = ["Hm.\n<begin_search>  </end_search>", *SEARCHES]


def ask(url: str, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    return client(url).chat.completions.create(model="scripted", messages=messages).id


def rate(url: str, **fields: object) -> httpx.Response:
    return httpx.post(f"{url}/v1/feedback", json=fields)


def test_each_request_is_a_trajectory_and_a_demonstration(tmp_path: Path) -> None:
    service, engine = scripted(recording=RequestLog(tmp_path))
    with serve_in_thread(create_app(service)) as url:
        first = ask(url, "Who made Solaris?")
        engine.turns = TROUBLE
        second = client(url).responses.create(model="scripted", input="And Stalker?").id
        engine.turns = SEARCHES[:1]
        with pytest.raises(Exception, match="failed"):
            ask(url, "Broken?")
    done = list(read_trajectories(tmp_path / "trajectories.jsonl"))
    assert [t.task.id for t in done[:2]] == [first, second]
    assert [t.status for t in done] == [Status.ANSWERED, Status.ANSWERED, Status.ERROR]
    assert done[0].segments[0].author is Author.PROMPT
    assert "".join(done[0].policy_turns) == "".join(SEARCHES) + "<|im_end|>"
    demonstrations = read_demonstrations(tmp_path / "demonstrations.jsonl")
    assert demonstrations[0][1] == [
        Thought("I need the director."),
        ToolCall("search", {"query": "Solaris"}),
        Observation("Solaris is a film by Tarkovsky"),
        Thought("It is he & nobody else."),
        Answer("Tarkovsky"),
    ]
    assert demonstrations[1][1] == []  # it made a malformed call


def test_an_answer_that_an_agent_was_made_to_give_is_no_demonstration(tmp_path: Path) -> None:
    turns = [SEARCHES[0], SEARCHES[0], "Tarkovsky}"]
    service, _ = scripted(turns, RequestLog(tmp_path), most_calls=1, at_limit="answer")
    with serve_in_thread(create_app(service)) as url:
        ask(url, "Who made Solaris?")
    [done] = read_trajectories(tmp_path / "trajectories.jsonl")
    assert (done.answer, done.forced) == ("Tarkovsky", True)
    assert [steps for _, steps in read_demonstrations(tmp_path / "demonstrations.jsonl")] == [[]]


def test_feedback_says_which_answers_are_right(tmp_path: Path) -> None:
    service, _ = scripted(recording=RequestLog(tmp_path))
    with serve_in_thread(create_app(service)) as url:
        ids = [ask(url, question) for question in ("A?", "B?", "C?", "D?", "A?")]
        assert rate(url, id=ids[0], score=0).status_code == 200
        assert rate(url, id=ids[0], score=1, comment="On second thought.").status_code == 200
        assert rate(url, id=ids[1], score=0, answer="Bergman").status_code == 200
        assert rate(url, id=ids[2], score=0.5).status_code == 200
        assert rate(url, id="none", score=1).status_code == 404
        assert rate(url, id=ids[0], score=2).status_code == 400
        assert rate(url, id=ids[0], stars=5).status_code == 400
    tasks = [(task.question, task.answers) for task in read_tasks(tmp_path)]
    assert tasks == [("A?", ("Tarkovsky",)), ("B?", ("Bergman",))]
    demonstrations, reasons = read_log_demonstrations(tmp_path)
    assert [task.id for task, _ in demonstrations] == ids[:2]
    assert reasons == {"without feedback": 2, "with a score below 1": 1}


def test_a_folder_is_continued_and_a_line_cut_short_is_dropped(tmp_path: Path) -> None:
    service, _ = scripted(recording=RequestLog(tmp_path))
    with serve_in_thread(create_app(service)) as url:
        first = ask(url, "A?")
    with (tmp_path / "demonstrations.jsonl").open("a") as file:
        file.write('{"id": "chatcmpl-')
    service, _ = scripted(recording=RequestLog(tmp_path))
    with serve_in_thread(create_app(service)) as url:
        assert rate(url, id=first, score=1).status_code == 200
        ask(url, "B?")
    assert len(read_demonstrations(tmp_path / "demonstrations.jsonl")) == 2


def test_who_cannot_be_recorded_is_answered_all_the_same(tmp_path: Path) -> None:
    service, _ = scripted(recording=RequestLog(tmp_path / "folder"))
    (tmp_path / "folder").rename(tmp_path / "elsewhere")
    with serve_in_thread(create_app(service)) as url:
        ask(url, "A?")
        assert "fieldcraft_agent_unrecorded_total 1.0" in httpx.get(f"{url}/metrics").text


def test_a_full_disk_leaves_whole_lines_and_says_so(tmp_path: Path) -> None:
    service, _ = scripted(recording=RequestLog(tmp_path))
    with serve_in_thread(create_app(service)) as url:
        first = ask(url, "A?")
        sizes = {path.name: path.stat().st_size for path in tmp_path.iterdir()}
        with small_disk(max(sizes.values()) + 100):
            ask(url, "B?")
            refused = rate(url, id=first, score=1, comment="a" * 10_000)
        assert refused.status_code == 507
        assert refused.json()["error"]["code"] == "disk_full"
        assert "fieldcraft_agent_unrecorded_total 1.0" in httpx.get(f"{url}/metrics").text
        assert rate(url, id=first, score=1).status_code == 200
    assert {name: (tmp_path / name).stat().st_size for name in sizes} == sizes
    assert len(read_log_tasks(tmp_path)) == 1


def test_without_feedback_there_is_nothing_to_learn(tmp_path: Path) -> None:
    service, _ = scripted(recording=RequestLog(tmp_path))
    with serve_in_thread(create_app(service)) as url:
        ask(url, "A?")
    with pytest.raises(UserError, match="no question whose correct answer is known"):
        read_log_tasks(tmp_path)
    with pytest.raises(UserError, match=r"demonstrations\.jsonl does not exist"):
        read_log_tasks(tmp_path / "none")
    plain, _ = scripted()
    with serve_in_thread(create_app(plain)) as url:
        response = rate(url, id="x", score=1)
    assert response.status_code == 404
    assert "start it with --log-folder" in response.json()["error"]["message"]


@pytest.mark.long
def test_a_run_learns_from_what_was_served(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Supervised training on answers rated as correct, then reinforcement learning on their
    questions."""
    folder = tmp_path / "served"
    service, _ = scripted(recording=RequestLog(folder))
    with serve_in_thread(create_app(service)) as url:
        for film in ("Solaris", "Stalker", "Mirror"):
            rate(url, id=ask(url, f"Who made {film}?"), score=1)
        rate(url, id=ask(url, "Who made Persona?"), score=0, answer="Bergman")
    model = write_tiny_checkpoint(tmp_path / "model", "qwen3")
    corpus = lines(tmp_path / "corpus.jsonl", [{"title": "Solaris", "text": "Tarkovsky made it."}])
    settings = [f"model={model}", f"tasks={folder}", f"corpus={corpus}", f"demonstrations={folder}"]
    small = ["evaluation.splits.heldout=1", "evaluation.workflows=[]", "budget.max_turn_tokens=24"]
    small += [
        "stages.sft.steps=1",
        "stages.sft.batch_size=2",
        "stages.rl.steps=1",
        "stages.rl.questions_per_step=1",
        "device=cpu",
    ]
    assert status("run", "hotpotqa", *settings, *small, "--out", tmp_path / "run") == 0
    row = json.loads((tmp_path / "run" / "sft" / "metrics.jsonl").read_text().splitlines()[0])
    assert row["loss"] > 0
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert report
    capsys.readouterr()
    assert status("eval", "--model", tmp_path / "run", "--tasks", folder, "--limit", 2) == 0
    assert status("run", "hotpotqa", *settings, f"tasks={tmp_path}", "--out", tmp_path / "b") == 2
    assert "is a folder without a dataset: give a file" in sentence(capsys)
