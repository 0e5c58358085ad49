"""The best next step after any history."""

import itertools
import random
from collections import Counter

import pytest

from fieldcraft.data.world import WorldOracle, merge_thoughts
from fieldcraft.extensions.worlds.atlas import AtlasWorld
from fieldcraft.extensions.worlds.atlas.facts import Atlas, Entity, Route, render_statement
from fieldcraft.extensions.worlds.atlas.generation import generate_atlas
from fieldcraft.extensions.worlds.atlas.oracle import (
    AtlasOracle,
    make_demonstration,
    make_wasteful_demonstration,
)
from fieldcraft.extensions.worlds.atlas.reading import SEARCH_THOUGHT, make_reading_steps
from fieldcraft.types import Answer, DemoStep, Observation, Task, Thought, ToolCall

WORLD = generate_atlas(people=60, taught=0.4, heldout=0.5, seed=0)
ORACLE = AtlasOracle(WORLD)
HELDOUT = {name for name, entity in WORLD.entities.items() if entity.region == "heldout"}
PATHS = [
    WORLD.sample_path(random.Random(seed), [region], 1 + seed % 4)
    for seed in range(40)
    for region in ("taught", "train", "heldout")
]

# Ada Lin (untaught) works for AcMe (untaught), whose headquarters are in NorPor (taught).
SMALL = Atlas(
    {
        "Ada Lin": Entity("Ada Lin", "person", "train"),
        "AcMe": Entity("AcMe", "company", "train"),
        "NorPor": Entity("NorPor", "city", "taught"),
    },
    {
        ("Ada Lin", "employer"): "AcMe",
        ("Ada Lin", "birthplace"): "NorPor",
        ("Ada Lin", "mentor"): "Bo Ber",
        ("AcMe", "headquarters"): "NorPor",
        ("AcMe", "founder"): "Cy Dal",
        ("NorPor", "country"): "WesLan",
        ("NorPor", "mayor"): "Cy Dal",
    },
    {},
)
TASK = Task("t", "?", ("WesLan",), {"path": ["Ada Lin", "employer", "headquarters", "country"]})
ADA = Observation(
    'result 1: "Ada Lin"\n'
    "Ada Lin is a person with the employer AcMe, the birthplace NorPor, the mentor Bo Ber."
)
ACME = Observation(
    'result 1: "AcMe"\n'
    "AcMe is a company with the headquarters NorPor, in WesLan, the founder Cy Dal."
)
FIRST, SECOND, THIRD = (
    Thought("Ada Lin has the employer AcMe."),
    Thought("AcMe has the headquarters NorPor."),
    Thought("NorPor has the country WesLan."),
)
SEARCH = Thought("I must search.")


def looked_up(name: str) -> ToolCall:
    return ToolCall("search", {"query": name})


@pytest.mark.parametrize(
    ("so_far", "best"),
    [
        ([], SEARCH),
        ([SEARCH], looked_up("Ada Lin")),
        ([SEARCH, looked_up("Ada Lin")], ADA),
        ([SEARCH, looked_up("Ada Lin"), ADA], FIRST),
        ([ADA, FIRST], SEARCH),
        ([ADA, Thought(f"{FIRST.text} {SEARCH.text}")], looked_up("AcMe")),
        ([ADA, FIRST, ACME], SECOND),
        ([ADA, FIRST, ACME, SECOND], THIRD),  # taught, and read as well
        ([ADA, FIRST, ACME, Thought(f"{SECOND.text} {THIRD.text}")], Answer("WesLan")),
        # needless searches, before and in between
        ([looked_up("NorPor")], None),
        ([looked_up("AcMe"), ACME], SEARCH),
        ([ACME, ADA], FIRST),
        ([ACME, ADA, FIRST], SECOND),
        # a thought about a search that is not needed
        ([ADA, SEARCH], FIRST),
        # wrong statements and premature correct ones change nothing
        ([Thought("Ada Lin has the employer NorPor.")], SEARCH),
        ([ADA, Thought("Ada Lin has the employer NorPor.")], FIRST),
        ([ADA, THIRD], FIRST),
        ([ADA, THIRD, FIRST, ACME, SECOND], THIRD),
        # guessed correctly, without having read it
        ([FIRST], SEARCH),
        ([FIRST, ACME, SECOND, THIRD], Answer("WesLan")),
        # an observation that states something false, or nothing
        ([Observation(ADA.text.replace("AcMe", "NorPor"))], SEARCH),
        ([SEARCH, looked_up("Ada Lin"), Observation("No result.")], SEARCH),
        # both articles at once, as with a larger topk
        ([Observation(f"{ADA.text}\n\n{ACME.text}"), FIRST], SECOND),
    ],
)
def test_the_next_step_by_hand(so_far: list[DemoStep], best: DemoStep | None) -> None:
    oracle = AtlasOracle(SMALL)
    assert oracle.next_step(TASK, so_far) == (best or make_reading_steps(SMALL, "NorPor")[2])


def test_where_no_step_is_known() -> None:
    oracle = AtlasOracle(SMALL)
    with pytest.raises(ValueError, match="nothing follows an answer"):
        oracle.next_step(TASK, [Answer("unknown")])
    for query in ("Ada", 3, ["AcMe"]):
        with pytest.raises(ValueError, match="does not know what ToolCall"):
            oracle.next_step(TASK, [ToolCall("search", {"query": query})])


def as_it_was_first_written(world: Atlas, path: Route, careful: bool) -> list[DemoStep]:
    """Return the demonstration, computed in one loop over the facts of the path."""
    steps: list[DemoStep] = []
    read: set[tuple[str, str]] = set()
    articles: set[str] = set()
    for subject, relation, value in world.trace_path(path):
        untaught = world.entities[subject].region != "taught"
        needed = careful or (untaught and (subject, relation) not in read)
        if subject not in articles and needed:
            steps += make_reading_steps(world, subject)
            articles.add(subject)
            read |= world.get_article_facts(subject)
        steps.append(Thought(render_statement(subject, relation, value)))
    return merge_thoughts([*steps, Answer(world.trace_path(path)[-1][2])])


def test_demonstrations_are_what_they_were() -> None:
    rng = random.Random(0)
    wasteful = Counter[bool]()
    for path in PATHS:
        plain, careful = (as_it_was_first_written(WORLD, path, c) for c in (False, True))
        assert make_demonstration(WORLD, path) == plain
        assert WorldOracle.demonstration(ORACLE, WORLD.make_task(path, "train")) == plain
        found = make_wasteful_demonstration(WORLD, path, rng)
        assert found in (plain, careful)
        wasteful[found != plain] += 1
    assert min(wasteful[True], wasteful[False]) > 20


def test_a_fact_that_comes_twice_is_stated_twice() -> None:
    pair = ("Ada Lin", "Bo Ber")
    entities = {name: Entity(name, "person", "taught") for name in pair}
    world = Atlas(entities, {(a, "mentor"): b for a, b in (pair, pair[::-1])}, {})
    assert make_demonstration(world, ("Ada Lin", "mentor", "mentor", "mentor")) == [
        Thought(
            "Ada Lin has the mentor Bo Ber. Bo Ber has the mentor Ada Lin."
            " Ada Lin has the mentor Bo Ber."
        ),
        Answer("Bo Ber"),
    ]


def fewest_more(path: Route, read: set[tuple[str, str]]) -> int:
    """Return the number of articles still to be read, by trying sets of growing size."""
    hops = WORLD.trace_path(path)
    needed = {(s, r) for s, r, _ in hops if WORLD.entities[s].region != "taught"} - read
    subjects = {subject for subject, _, _ in hops}
    return next(
        count
        for count in range(5)
        for names in itertools.combinations(subjects, count)
        if needed <= {fact for name in names for fact in WORLD.get_article_facts(name)}
    )


def test_after_needless_searches_and_mistakes_it_still_searches_as_little_as_possible() -> None:
    rng = random.Random(1)
    saved = 0
    for path in PATHS:
        task = WORLD.make_task(path, "train")
        on_the_way = [subject for subject, _, _ in WORLD.trace_path(path)]
        names = rng.sample([*on_the_way, *rng.sample(sorted(WORLD.entities), 3)], 2)
        so_far = [step for name in names for step in make_reading_steps(WORLD, name)]
        so_far.append(Thought(f"{path[0]} has the {path[1]} {rng.choice(sorted(WORLD.entities))}."))
        read = {fact for name in names for fact in WORLD.get_article_facts(name)}
        steps = list(so_far)
        while not isinstance(steps[-1], Answer):
            steps.append(ORACLE.next_step(task, steps))
        searches = sum(isinstance(step, ToolCall) for step in steps[len(so_far) :])
        assert searches == fewest_more(path, read)
        assert steps[-1] == Answer(task.answers[0])
        saved += searches < ORACLE.optimal_calls(task)
    assert saved > 20


def test_a_guess_replaces_what_is_not_taught() -> None:
    changed = 0
    for path in PATHS:
        task = WORLD.make_task(path, "train")
        [thought, answer] = ORACLE.guess(task, random.Random(task.id))
        assert isinstance(thought, Thought)
        assert isinstance(answer, Answer)
        assert thought.text.endswith(f" {answer.text}.")
        if task.meta["known"]:
            assert [thought, answer] == make_demonstration(WORLD, path)
        changed += answer.text != task.answers[0]
        assert SEARCH_THOUGHT not in thought.text
        assert WORLD.entities[answer.text].region != "heldout" or path[0] in HELDOUT
    assert changed > 20


# -- the world that recipes name -----------------------------------------------------------------


def test_fewer_variants_make_the_same_world() -> None:
    world = AtlasWorld(seed=0, people=30, variants=50)
    few = world.small_copy()
    assert (world.variants, few.variants, few.small_copy().variants) == (50, 20, 20)
    assert AtlasWorld(seed=0, people=30, variants=5).small_copy().variants == 5
    assert few.passages() == world.passages()
    assert AtlasWorld(seed=1, people=30).passages() != world.passages()


def test_its_oracle_and_its_questions_agree() -> None:
    world = AtlasWorld(seed=0, people=30)
    tasks = [*world.training_questions(20), *world.evaluation_questions({"heldout": 20})]
    for task in tasks:
        assert world.oracle.optimal_calls(task) == task.meta["calls_optimal"]
        assert world.oracle.demonstration(task)[-1] == Answer(task.answers[0])
        acting = [
            decision.chooses_tool for decision in world.oracle.decisions(task, random.Random(0))
        ]
        assert sum(acting) == task.meta["calls_optimal"]
