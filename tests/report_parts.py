"""Report of a made-up run, for tests."""

import base64
import json
import re
import zlib

from fieldcraft.evaluation.comparison import compare_consecutive
from fieldcraft.evaluation.pages import PageContext
from fieldcraft.evaluation.report import StageSummary, build_report
from fieldcraft.evaluation.summary import summarise_evaluation
from fieldcraft.extensions.studio.report_page import write_report_page
from fieldcraft.types import Author, CallOutcome, CallRecord, Segment, Status, Task, Trajectory

ATTACK = "<script>alert('owned')</script><img src=x onerror=alert(1)>"


def trajectory(
    name, *, correct, hops=1, observation="Kelm lies in Bar.", question="Where?", **meta
):
    meta = {"hops": hops, "known": False, "calls_optimal": 1, **meta}
    return Trajectory(
        Task(name, question, ("Bar",), meta),
        segments=[
            Segment(Author.PROMPT, [1], f"Question: {question}"),
            Segment(
                Author.POLICY, [2, 3], "<think>I look.</think><search>Kelm</search>", [-0.1, -1.25]
            ),
            Segment(Author.TOOL, [4], f"<result>{observation}</result>"),
            Segment(Author.POLICY, [5], "<answer>Bar</answer>", [-0.000123]),
        ],
        calls=[CallRecord("search", {"query": "Kelm"}, observation, CallOutcome.OK, 0.0)],
        status=Status.ANSWERED,
        answer="Bar",
        well_formed=True,
        rewards={"em": float(correct), "f1": float(correct)},
    )


def folded(name, *, correct):
    """Return the same trajectory with a summary after the search, and the answer in a separate
    chain."""
    found = trajectory(name, correct=correct)
    request = Segment(Author.PROMPT, [6], "\n<summary>\n")
    summary = Segment(Author.POLICY, [7, 7], "Kelm lies in Bar.\n</summary>", [-0.5, -0.5])
    again = Segment(Author.PROMPT, [8], "Where?\n\n<summary>\nKelm lies in Bar.\n</summary>")
    found.segments[3:3] = [request, summary, again]
    found.folds = [5]
    return found


SAMPLES = {
    "sft1": [trajectory("a", correct=True), trajectory("b", correct=False, hops=2)],
    "rl1": [trajectory(str(i), correct=i > 1, hops=1 + i % 3) for i in range(5)],
}


def run(path, samples, *, curves=None, source=None, training=None, split=None):
    """Return the content of the report and its page."""
    report = build_report(
        recipe="mini",
        seed=7,
        device="cpu",
        stages=[
            StageSummary("world", 1.5),
            *(StageSummary(name, 60.25) for name in samples),
            StageSummary("evaluation", 12.5 * len(samples)),
        ],
        evals={
            name: summarise_evaluation(part, split) | {"seconds": 12.5}
            for name, part in samples.items()
        },
        comparisons=compare_consecutive(samples if same_questions(samples) else {}),
        extra={"versions": {"torch": "2"}},
    )
    write_report_page(report, curves or {}, samples, path, source or PageContext(), training or {})
    return report, path.read_text(encoding="utf-8")


def same_questions(samples):
    return len({tuple(t.task.id for t in part) for part in samples.values()}) == 1


def data_of(page):
    """Return the data of a page, `window.RUN`."""
    [text] = re.findall(r'id="run">([^<]*)<', page)
    return json.loads(text)


def unpacked(page):
    """Return the JSON lines of the trajectories in a page."""
    packed = base64.b64decode(data_of(page)["trajectories"])
    return [json.loads(line) for line in zlib.decompress(packed, 31).decode().splitlines()]


def charts_of(page):
    """Return the charts in a page by their titles."""
    return {chart["title"]: chart for chart in data_of(page)["charts"]}
