"""The page in a real browser: it filters, searches, sorts and compares, by fragment and by hand, in
light and dark, on a desktop and on a phone."""

import html
import json
import re
import shutil
import subprocess

import pytest

from fieldcraft.evaluation.browsing import PageContext
from fieldcraft.evaluation.seed_table import aggregate_seeds, write_seeds_page
from fieldcraft.records.training_rollouts import TrainingRollout
from fieldcraft.types import Status
from report_parts import ATTACK, SAMPLES, run, trajectory
from seeds_parts import STAGES, recipe, report

CHROMIUM = shutil.which("chromium")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")

CURVES = {
    "rl1": [
        {"step": step, "reward_mean": 0.5, "em": 0.5 + step / 100, "calls_mean": 2.0}
        for step in range(20)
    ]
}
# Functions with which a test inspects the page and acts as a user does.
TOOLS = """
const report = {};
const form = document.querySelector("form");
const shown = () => [...document.querySelectorAll("#list > .trajectory")]
  .map((card) => [card.dataset.stage, card.dataset.grade]);
const choose = (name, value) => {
  form.elements[name].value = value;
  form.elements[name].dispatchEvent(new Event("input", { bubbles: true }));
};
const press = (element, key) => element.dispatchEvent(new KeyboardEvent("keydown", { key }));
const wait = () => new Promise((done) => setTimeout(done, 50));
const until = async (holds) => { while (!holds()) await wait(); };
"""
FRAME = """<!DOCTYPE html><body style="margin:0"><script>
addEventListener("message", ({ data }) => { document.body.dataset.told = JSON.stringify(data); });
</script>"""


@pytest.fixture
def browser(tmp_path):
    """Return a function that opens a page and runs a program in it.
    It returns the value that the program put into `report`, and the output of the console. A
    program needs a copy of the page without its policy, which allows none."""

    def act(page, program="", fragment="", *, width=1300, dark=False):
        """Run the program; a phone's page is in a frame, since a window has a minimum width."""
        steps = f"(async () => {{ await until(() => !form?.hidden);\n{program}\n}})()"
        end = '.catch((e) => console.error(e)).then(() => parent.postMessage(report, "*"))'
        text = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", page.read_text())
        copy = tmp_path / "driven.html"
        copy.write_text(text.replace("</body>", f"<script>{TOOLS}{steps}{end};</script></body>"))
        frame = tmp_path / "frame.html"
        size = f"width:{width}px;height:900px;border:0"
        frame.write_text(f'{FRAME}<iframe style="{size}" src="driven.html{fragment}"></iframe>')
        dom, console = browse(frame, "", tmp_path / "profile", dark=dark)
        result = re.search(r'data-told="([^"]*)"', dom)
        assert result, console
        return json.loads(html.unescape(result[1])), console

    return act


def browse(page, fragment, profile, *, dark=False):
    """Return the page's DOM after its program ran, and the log of the browser's console and
    network."""
    done = subprocess.run(
        [
            CHROMIUM,
            *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
            *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
            *("--enable-logging=stderr", "--window-size=1300,900", "--virtual-time-budget=10000"),
            f"--blink-settings=preferredColorScheme={0 if dark else 1}",
            f"--user-data-dir={profile}",
            "--dump-dom",
            f"file://{page}{fragment}",
        ],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def cards(dom, stage):
    """Return the verdicts of a stage's trajectories in the list."""
    return re.findall(rf'<details class="card [^"]*" data-stage="{stage}" data-grade="(\w+)"', dom)


@pytest.mark.long
def test_the_fragment_is_the_state_and_there_is_nothing_to_complain_about(tmp_path):
    page = tmp_path / "r.html"
    samples = {**SAMPLES, "rl2": [trajectory("x", correct=True, observation=ATTACK)]}
    run(page, samples, curves=CURVES)

    dom, console = browse(page, "#stage=rl1&filter=wrong", tmp_path / "profile")
    # A blocked request or an inline script that the policy stopped would be logged here.
    assert console == []
    assert [len(cards(dom, name)) for name in samples] == [0, 2, 0]
    assert "2 of 8</output>" in dom or ">2 of 8<" in dom

    dom, console = browse(page, "#stage=rl1&hops=3", tmp_path / "profile")
    assert console == []
    assert [cards(dom, name) for name in samples] == [[], ["right"], []]

    dom, console = browse(page, "", tmp_path / "profile")  # without a fragment: the final stage
    assert console == []  # the attack, which is open now, had no effect
    assert [len(cards(dom, name)) for name in samples] == [0, 0, 1]
    assert dom.count("&lt;img") == 1
    assert "<img" not in dom


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """Write a page of three stages; the last one has every kind of trajectory for the filters."""
    after = [
        trajectory("a", correct=True, question="Where is Kelm?", split="heldout"),
        trajectory("b", correct=False, question="Who met Sur Tor?", split="train", known=True),
        trajectory("c", correct=True, question="Who is Dro?", split="train", calls_optimal=0),
    ]
    after[1].calls, after[1].status = [], Status.TRUNCATED
    after[2].calls *= 2
    after[1].segments[1].ids = [2, 3, 3, 3]
    before = [trajectory(t.task.id, correct=False) for t in after]
    for trained, earlier in zip(after, before, strict=True):
        earlier.task = trained.task
    source = PageContext(
        dict(enumerate(("", "Q:", "I ", "look", ATTACK, "</think>\n"))).__getitem__
    )
    path = tmp_path_factory.mktemp("page") / "r.html"
    drawn = [trajectory("t", correct=correct, question="Who trains?") for correct in (True, False)]
    training = {
        "rl1": [
            TrainingRollout(step, [0.0, size, size, 0.0, size], rollout)
            for step in (0, 19)
            for size, rollout in zip((0.5, -0.5), drawn, strict=True)
        ]
    }
    samples = {"sft1": before, "rl1": after}
    run(path, samples, curves=CURVES, source=source, training=training)
    return path


def test_every_filter_filters_and_the_search_finds(page, browser):
    program = """
report.first = shown();
for (const [name, value] of [["filter", "wrong"], ["split", "train"], ["calls", "2"],
    ["status", "truncated"], ["known", "true"], ["known", "false"]]) {
  choose(name, value); await wait();
  report[name + value] = [shown().length, location.hash];
  choose(name, ""); await wait();
}
choose("text", "sur TOR"); await wait(); report.found = shown(); report.hash = location.hash;
choose("text", "kelm lies nowhere"); await wait(); report.none = shown();
form.querySelector("button[type=reset]").click(); await wait();
report.all = form.querySelector("output").value;
"""
    result, console = browser(page, program)
    assert console == []
    assert result["first"] == [["rl1", "right"], ["rl1", "wrong"], ["rl1", "right"]]
    assert result["filterwrong"] == [1, "#stage=rl1&filter=wrong"]
    assert result["splittrain"] == [2, "#stage=rl1&split=train"]
    assert result["calls2"][0] == 1
    assert result["statustruncated"][0] == 1
    assert result["knowntrue"][0] == 1
    assert result["knownfalse"][0] == 2
    assert result["found"] == [["rl1", "wrong"]]
    assert result["hash"] == "#stage=rl1&text=sur+TOR"
    assert result["none"] == []
    assert result["all"] == "6 of 6"


def test_sorting(page, browser):
    program = """
const titles = () => [...document.querySelectorAll("#list .question")].map((q) => q.textContent);
for (const order of ["", "calls", "excess", "tokens", "wrong", "right"]) {
  choose("sort", order); await wait();
  report["by " + order] = titles().map((title) => title.split(" ").pop());
}
"""
    result, _ = browser(page, program, "#stage=rl1")
    assert result == {
        "by ": ["Kelm?", "Tor?", "Dro?"],
        "by calls": ["Dro?", "Kelm?", "Tor?"],  # 2, 1, 0
        "by excess": ["Dro?", "Kelm?", "Tor?"],  # 2, 0, -1
        "by tokens": ["Tor?", "Kelm?", "Dro?"],  # 5, 3, 3
        "by wrong": ["Tor?", "Kelm?", "Dro?"],
        "by right": ["Kelm?", "Dro?", "Tor?"],
    }


def test_one_question_across_stages_and_its_tokens(page, browser):
    program = """
const button = (place, text) =>
  [...document.querySelectorAll(place + " button")].find((b) => b.textContent.startsWith(text));
await until(() => button("#list", "All stages"));
button("#list", "All stages").click();
await until(() => document.querySelector("#compared article"));
const compared = document.querySelector("#compared");
report.question = compared.querySelector(".asked").textContent;
report.stages = [...compared.querySelectorAll("article")].map((a) => a.dataset.stage);
report.commands = [...compared.querySelectorAll("code")].map((code) => code.textContent);
report.list = document.querySelector("#list").hidden;
const tokens = compared.querySelectorAll(".tokens-of")[1];
report.before = tokens.querySelectorAll(".token").length;
tokens.open = true; await until(() => tokens.querySelector(".token"));
const segments = [...tokens.querySelectorAll(".segment")];
report.mask = segments.map((segment) => segment.innerText.replaceAll("\\n", ""));
report.line = getComputedStyle(tokens.querySelector(".trained .piece")).borderBottomStyle;
report.plain = getComputedStyle(tokens.querySelector(".masked .piece")).borderBottomStyle;
tokens.querySelector("input").click();
report.likely = tokens.querySelectorAll(".segment")[1].innerText.replaceAll("\\n", " ");
report.title = tokens.querySelectorAll(".trained .token")[1].title;
report.markup = document.querySelectorAll("img").length;
button("#compared", "Next").click();
await until(() => location.hash.includes("question=b"));
await wait();
report.next = compared.querySelector(".asked").textContent;
"""
    result, console = browser(page, program, "#stage=rl1")
    assert console == []
    assert result["question"] == "Where is Kelm?"
    assert result["stages"] == ["sft1", "rl1"]
    assert result["commands"][1] == "fieldcraft show . --stage rl1 --index 0"
    assert result["list"] is True
    assert result["before"] == 0  # created only on request
    assert result["mask"] == [
        "prompt, not trainedQ:",
        "policy, trained[I look]",
        f"tool, not trained{ATTACK}",
        "policy, trained[</think>⏎]",
    ]
    assert (result["line"], result["plain"]) == ("solid", "dotted")
    assert "−0.10" in result["likely"]
    assert "−1.20" in result["likely"]
    assert result["title"] == "token 3 · log-probability -1.2 · probability 0.301"  # exp(-1.2)
    assert result["markup"] == 0
    assert result["next"] == "Who met Sur Tor?"


def test_training_rollouts_are_found_by_step_and_tell_their_advantages(page, browser):
    program = """
report.evaluated = form.querySelector("output").value;
choose("step", "all"); await wait(); report.all = shown(); report.first = location.hash;
choose("step", "19"); await wait(); report.step = form.querySelector("output").value;
const [card] = document.querySelectorAll("#list > .trajectory");
report.badge = card.querySelector(".badges").textContent;
report.place = card.querySelector(".actions code").textContent;
report.told = [...card.querySelectorAll("dd")].map((field) => field.textContent);
const tokens = card.querySelector(".tokens-of");
tokens.open = true; await until(() => tokens.querySelector(".token"));
const second = () => tokens.querySelectorAll(".trained .token")[1];
const trained = () => second().innerText.replaceAll("\\n", " ");
report.hidden = trained();
tokens.querySelector("input[name=advantages]").click();
report.credited = trained();
report.title = second().title;
card.querySelector("button").click(); await until(() => location.hash.includes("question"));
await wait();
report.columns = [...document.querySelectorAll("#compared article")].map((e) => e.dataset.grade);
choose("step", ""); await wait(); report.back = form.querySelector("output").value;
"""
    result, console = browser(page, program, "#stage=rl1")
    assert console == []
    assert (result["evaluated"], result["back"]) == ("3 of 6", "3 of 6")
    assert result["first"] == "#stage=rl1&step=all"
    assert result["all"] == [["rl1", grade] for grade in ("right", "wrong", "right", "wrong")]
    assert result["step"] == "2 of 4"
    assert "training step 19" in result["badge"]
    assert result["place"] == "rl1/rollouts/000019.jsonl"
    assert "+0.5" in result["told"]
    assert result["hidden"] == "look"
    assert result["credited"] == "look +0.5"
    assert result["title"].endswith(" · advantage 0.5")
    assert result["columns"] == ["right", "wrong", "right", "wrong"]


def test_a_chart_tells_its_values_by_pointer_and_by_key(page, browser):
    program = """
const plot = document.querySelector(".plot.desktop"), tip = document.querySelector(".tip");
const lines = () => [...tip.children].map((line) => line.textContent);
report.focusable = plot.tabIndex;
press(plot, "Home"); report.home = lines();
press(plot, "ArrowRight"); report.right = lines();
press(plot, "Escape"); report.hidden = tip.hidden;
const ring = () => plot.querySelector(".ring").getBoundingClientRect();
press(plot, "End"); const box = ring(); report.end = lines(); press(plot, "Home");
plot.dispatchEvent(new PointerEvent("pointermove",
  { clientX: box.x + box.width / 2, clientY: box.y + box.height / 2 }));
report.pointed = lines();
plot.dispatchEvent(new PointerEvent("pointerleave"));
report.gone = tip.hidden && !plot.querySelector(".ring");
let saved = null;
URL.createObjectURL = (blob) => { saved = blob; return "#"; };
document.querySelector(".course .csv").click();
report.csv = (await saved.text()).split("\\r\\n");
"""
    result, console = browser(page, program)
    assert console == []
    assert result["focusable"] == 0
    assert result["home"] == ["evaluation", "stage sft1", "exact match 0"]
    assert result["right"] == ["evaluation", "stage sft1", "calls per question 1"]
    assert result["hidden"] is True
    assert result["end"] == ["evaluation", "stage rl1", "calls per question 1"]
    assert result["pointed"] == result["end"]
    assert result["gone"] is True
    assert result["csv"][0] == "series,at,where,measure,value"
    assert '"rl1, training rollouts",step,19,exact match,0.69' in result["csv"]


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Write the page over two seeds, of rows with attacks as titles."""
    one = {"type": "rl", "start_from": "sft", "steps": 3, "optim": {"lr": 0.1}}
    settings = recipe(
        stages=STAGES | {"one": one, "two": one},
        table_rows={"ReAct": "workflow", "SFT": "sft", "A": "one", ATTACK: "two"},
    )
    reports = {seed: report(0.25 + seed / 4) for seed in range(2)}
    for found in reports.values():
        found["evals"] |= dict.fromkeys(("one", "two"), found["evals"]["rl2"])
    steps = [
        {"step": i, "em": 0.5, "calls_mean": 1.0 + i / 9, "calls_optimal_mean": 1.0}
        for i in range(9)
    ]
    path = tmp_path_factory.mktemp("sweep") / "report.html"
    curves = {"one": [steps, steps], "two": [steps, steps]}
    write_seeds_page(aggregate_seeds(settings, reports), {}, curves, {}, path)
    return path


def test_the_charts_of_several_seeds_tell_their_values_too(sweep, browser, tmp_path):
    dom, console = browse(sweep, "", tmp_path / "untouched")
    assert console == []  # the policy of the page allows its script, and the titles had no effect
    assert dom.count('class="csv"') == 4
    program = """
const tip = document.querySelector(".tip");
const lines = () => [...tip.children].map((line) => line.textContent);
report.ends = [...document.querySelectorAll(".plot")].map((plot) => {
  press(plot, "Home"); const first = lines();
  press(plot, "End"); return [first, lines()];
});
"""
    result, console = browser(sweep, program)
    assert console == []
    learning, against, shares, rates = result["ends"]
    # a rollout makes 1.5 calls and is right with rates of 0.25 and 0.5 in the two seeds
    assert against[0] == ["ReAct", "calls per question 1.5", "exact match 0.375"]
    assert against[1] == [ATTACK, "calls per question 1.5", "exact match 0.375"]
    assert learning[0] == ["A", "step 0", "exact match 0.5"]
    assert learning[1] == [ATTACK, "step 8", "calls per rollout 1.889"]  # 1 + 8 / 9
    assert shares[0] == ["ReAct", "calls 1", "share of correct answers 0.6667"]  # 2 + 4 of 9
    assert rates[0] == ["ReAct", "calls 1", "success rate 0.4286"]  # 6 of 14
    assert rates[1] == [ATTACK, "calls 1", "success rate 0.4286"]


LAYOUT = """
const box = document.documentElement;
report.overflow = box.scrollWidth - box.clientWidth;
report.width = innerWidth;
report.page = getComputedStyle(document.body).backgroundColor;
report.ink = getComputedStyle(document.querySelector("h1")).color;
report.drawings = [".desktop", ".phone"].map((name) =>
  getComputedStyle(document.querySelector(".plot" + name)).display);
report.clipped = [...document.querySelectorAll("main select, main button, main input")]
  .filter((e) => e.offsetParent && e.getBoundingClientRect().right > innerWidth).length;
"""


@pytest.mark.parametrize(
    ("width", "dark", "colours", "drawings"),
    [
        (1300, False, ("rgb(246, 246, 243)", "rgb(29, 33, 39)"), ["block", "none"]),
        (1300, True, ("rgb(18, 20, 24)", "rgb(232, 234, 237)"), ["block", "none"]),
        (390, False, ("rgb(246, 246, 243)", "rgb(29, 33, 39)"), ["none", "block"]),
        (390, True, ("rgb(18, 20, 24)", "rgb(232, 234, 237)"), ["none", "block"]),
    ],
)
def test_light_and_dark_desktop_and_phone(page, browser, width, dark, colours, drawings):
    result, console = browser(page, LAYOUT, width=width, dark=dark)
    assert console == []
    assert result["width"] == width
    assert result["overflow"] == 0
    assert result["clipped"] == 0
    assert (result["page"], result["ink"]) == colours
    assert result["drawings"] == drawings
