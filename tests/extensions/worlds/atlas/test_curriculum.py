"""The training data of the world Atlas, down to tokens and names."""

import hashlib
import json
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain

import pytest

from fieldcraft.dialects import make_dialect
from fieldcraft.dialects.encoding import DemonstrationEncoder, encode_demonstration
from fieldcraft.extensions.worlds.atlas.curriculum import AtlasCurriculum, iterate_tokenizer_texts
from fieldcraft.extensions.worlds.atlas.facts import render_statement
from fieldcraft.extensions.worlds.atlas.generation import generate_atlas, regenerate_untaught
from fieldcraft.extensions.worlds.atlas.oracle import iterate_decisions, make_demonstration
from fieldcraft.extensions.worlds.atlas.questions import draw_evaluation_tasks, draw_train_tasks
from fieldcraft.extensions.worlds.names import SYLLABLES
from fieldcraft.rewards.answers import exact_match
from fieldcraft.train.scratch import make_tokenizer
from fieldcraft.train.stages.contrastive import make_last_segment_sample
from fieldcraft.types import Author, Status, Task, Thought, Trajectory

WORLD = generate_atlas(people=60, taught=0.4, heldout=0.5, seed=0)
TAGS = make_dialect("autocoa", make_tokenizer([], SYLLABLES), "").tags
TOKENIZER = make_tokenizer(iterate_tokenizer_texts(WORLD, TAGS), SYLLABLES)
DIALECT = make_dialect("autocoa", TOKENIZER, "")
SCHEMAS = [{"type": "function", "function": {"name": "search"}}]
CURRICULUM = AtlasCurriculum(
    WORLD, variants=12, seed=0, encoder=DemonstrationEncoder(DIALECT, SCHEMAS)
)
HELDOUT = {name for name, entity in WORLD.entities.items() if entity.region == "heldout"}
NAME = re.compile(r"[A-Z][a-z]+(?: ?[A-Z][a-z]+)")


@pytest.fixture(scope="module")
def demonstrations() -> list[Trajectory]:
    return CURRICULUM.make_demonstrations(300)


@pytest.fixture(scope="module")
def pairs() -> list[tuple[Trajectory, Trajectory]]:
    return CURRICULUM.make_pairs(200)


def whole_text(trajectory: Trajectory) -> str:
    return DIALECT.tokenizer.decode(trajectory.ids)


def ids_of(trajectory: Trajectory, *authors: Author) -> list[int]:
    return [i for s in trajectory.segments if s.author in authors for i in s.ids]


# -- held-out content is never shown ---------------------------------------------------------------


def test_no_pair_holds_a_heldout_name(
    pairs: Sequence[tuple[Trajectory, Trajectory]],
) -> None:
    """Wrong guesses contain no held-out name either."""
    named = {name for t in chain(*pairs) for name in NAME.findall(whole_text(t))}
    assert named & HELDOUT == set()


def test_no_training_text_holds_a_heldout_name(demonstrations: Sequence[Trajectory]) -> None:
    texts = [whole_text(t) for t in (*demonstrations, *CURRICULUM.make_base_texts(200))]
    texts += [f"{task.question} {task.answers}" for task in draw_train_tasks(WORLD, 0, 500)]
    named = {name for text in texts for name in NAME.findall(text)}
    assert len(named - WORLD.entities.keys()) > 10  # names of variants are found
    assert len(named & WORLD.entities.keys()) > 40
    assert named & HELDOUT == set()
    tasks = draw_evaluation_tasks(WORLD, 0, {"heldout": 50})
    assert all(NAME.findall(task.question)[-1] in HELDOUT for task in tasks)


def test_no_variant_holds_a_heldout_name() -> None:
    rng = random.Random(1)
    for _ in range(1000):
        assert HELDOUT.isdisjoint(regenerate_untaught(WORLD, rng).entities)


# -- demonstrations -----------------------------------------------------------------------------


def test_every_demonstration_answers_right_by_the_reward_that_is_used(
    demonstrations: Sequence[Trajectory],
) -> None:
    for trajectory in demonstrations:
        assert (trajectory.status, trajectory.well_formed) == (Status.ANSWERED, True)
        assert exact_match(trajectory.answer or "", trajectory.task.answers) == 1.0
        assert len(trajectory.calls) == trajectory.task.meta["calls_optimal"]
        assert trajectory.segments[-1].ids[-1] == TOKENIZER.eos_token_id


def test_both_ways_of_reasoning_are_demonstrated(demonstrations: Sequence[Trajectory]) -> None:
    calls = [len(t.calls) for t in demonstrations]
    known = [t.task.meta["known"] for t in demonstrations]
    assert {0, 1, 2, 3} <= set(calls)
    assert all(k == (c == 0) for k, c in zip(known, calls, strict=True))
    assert 0.08 < sum(known) / len(known) < 0.26  # a sixth


def test_every_word_is_one_token_and_every_name_two(
    demonstrations: Sequence[Trajectory],
) -> None:
    for segment in chain(*(t.segments for t in demonstrations[:50])):
        assert TOKENIZER.decode(segment.ids) == segment.text
    unseen = regenerate_untaught(WORLD, random.Random(99))
    stated = [render_statement(*fact, value) for fact, value in unseen.facts.items()]
    # two syllables, three words, two syllables, a full stop
    assert {len(TOKENIZER.encode(text)) for text in stated} == {8}
    assert {len(TOKENIZER.encode(tag)) for tag in TAGS} == {1}


def test_the_base_is_never_shown_a_search() -> None:
    found = CURRICULUM.make_base_texts(100)
    tags = set(TAGS) - {"<think>", "</think>"}
    assert not [t for t in found for tag in tags if tag in whole_text(t)]
    answers = [t for t in found if t.status is Status.ANSWERED]
    assert 20 < len(answers) < 80
    unknown = [t.task.id for t in answers if t.answer == "unknown"]
    assert 10 < len(unknown) < 30
    assert all(t.task.meta["known"] == (t.task.id not in unknown) for t in answers)
    for reading in (t for t in found if t not in answers):
        articles, stated = reading.segments
        assert (articles.author, stated.author) == (Author.PROMPT, Author.POLICY)
        for sentence in re.findall(r"(.+?) has the (\w+) (.+?)\.(?: |$)", stated.text):
            subject, relation, value = sentence
            pattern = rf"the {relation} {value}\b" if subject in articles.text else value
            assert re.search(pattern, articles.text) or f" in {value}" in articles.text


def test_what_is_read_has_names_that_begin_alike() -> None:
    few = replace(CURRICULUM, reading_syllables=5)
    for reading in (t for t in few.make_base_texts(60) if t.task.id.startswith("reading:")):
        parts = set(re.findall(r"[A-Z][a-z]+[nrl](?![a-z])", reading.segments[0].text))
        assert 2 <= len(parts & set(SYLLABLES)) <= 5


def test_data_is_a_function_of_the_seed() -> None:
    def ids(seed: int) -> list[list[int]]:
        curriculum = AtlasCurriculum(
            WORLD, variants=3, seed=seed, encoder=DemonstrationEncoder(DIALECT, SCHEMAS)
        )
        found = [
            *curriculum.make_base_texts(6),
            *curriculum.make_demonstrations(6),
            *chain(*curriculum.make_pairs(6)),
        ]
        return [trajectory.ids for trajectory in found]

    assert ids(0) == ids(0)
    assert all(a != b for a, b in zip(ids(0)[6:], ids(1)[6:], strict=True))


def fingerprint(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


def test_data_stays_what_it_was_when_it_was_measured() -> None:
    """Compare fingerprints of the ids. A change of them requires a new measurement of the demo."""
    both = [[chosen.ids, rejected.ids] for chosen, rejected in CURRICULUM.make_pairs(120)]
    tasks = draw_evaluation_tasks(WORLD, 0, {"heldout": 60, "train": 30, "known": 30})
    assert fingerprint([t.ids for t in CURRICULUM.make_base_texts(120)]) == "5471d1fe085a468e"
    assert fingerprint([t.ids for t in CURRICULUM.make_demonstrations(120)]) == "a0708971c76b0673"
    assert fingerprint(both) == "6cdec4f4571c2f4a"
    assert fingerprint([t.id for t in draw_train_tasks(WORLD, 0, 300)]) == "f64f0393821c7aa0"
    assert fingerprint([[t.id, t.meta["split"]] for t in tasks]) == "f862db48bc9a8cff"


# -- chains reserved for other questions -----------------------------------------------------------

RESERVING = generate_atlas(people=60, taught=0.4, heldout=0.5, seed=0, reserved=4)


def parse_relations(question: str) -> tuple[str, ...]:
    """Return the relations of a question in the order in which they are followed."""
    return tuple(reversed(re.findall(r"the (\w+) of", question)))


def test_no_training_question_follows_a_reserved_chain() -> None:
    curriculum = AtlasCurriculum(
        RESERVING, variants=12, seed=0, encoder=DemonstrationEncoder(DIALECT, SCHEMAS)
    )
    found = [
        *curriculum.make_base_texts(400),
        *curriculum.make_demonstrations(300),
        *curriculum.make_wasteful(300),
    ]
    found += [side for pair in curriculum.make_pairs(300) for side in pair]
    questions = [t.task.question for t in found if t.task.question]
    questions += [task.question for task in draw_train_tasks(RESERVING, 0, 500)]
    questions += [
        text for text in iterate_tokenizer_texts(RESERVING, TAGS) if text.startswith("What")
    ]
    chains = [parse_relations(question) for question in questions]
    assert {len(chain) for chain in chains} == {1, 2, 3}
    assert not [chain for chain in chains if RESERVING.is_reserved(chain)]
    before = [parse_relations(t.task.question) for t in CURRICULUM.make_demonstrations(300)]
    assert any(RESERVING.is_reserved(chain) for chain in before)  # trained if not reserved


def test_the_wasteful_teacher_also_searches_for_what_is_known() -> None:
    wasteful = CURRICULUM.make_wasteful(300)
    needed = sum(t.task.meta["calls_optimal"] for t in wasteful)
    assert sum(len(t.calls) for t in wasteful) > 1.15 * needed
    known = [t for t in wasteful if t.task.meta["known"]]
    assert 0.1 < len(known) / len(wasteful) < 0.25
    assert 0.4 < sum(bool(t.calls) for t in known) / len(known) < 0.95
    for trajectory in wasteful:
        assert (trajectory.status, trajectory.well_formed) == (Status.ANSWERED, True)
        assert exact_match(trajectory.answer or "", trajectory.task.answers) == 1.0


def stated(trajectory: Trajectory) -> list[tuple[str, ...]]:
    """Return (subject, relation, object) of the facts stated by the thoughts of a trajectory."""
    output = "".join(s.text for s in trajectory.segments if s.author is Author.POLICY)
    name = r"([A-Z][a-z]+ ?[A-Z][a-z]+)"
    return re.findall(rf"{name} has the (\w+) {name}\.", output)


def test_what_the_wasteful_teacher_searches_for_is_no_fact_of_the_training_region() -> None:
    mentioned = {WORLD.facts[fact] for fact in WORLD.taught_facts}
    untaught_count, real, crossing = 0, 0, 0
    for trajectory in CURRICULUM.make_wasteful(300):
        start = trajectory.task.meta["path"][0]
        first = WORLD.entities.get(start)
        assert first is None or first.region == "taught" or start in mentioned
        crosses = first is not None and first.region == "taught"
        crossing += crosses and trajectory.task.meta["calls_optimal"] > 0
        for subject, relation, value in stated(trajectory):
            untaught = (subject, relation) in WORLD.facts and (
                WORLD.entities[subject].region != "taught"
            )
            untaught_count += untaught
            real += untaught and WORLD.facts[subject, relation] == value
    assert crossing > 30  # from a taught entity to an entity that must be searched for
    assert untaught_count > 30  # about a real name that a taught fact mentions
    assert real / untaught_count < 0.2  # by chance


# -- contrastive pairs --------------------------------------------------------------------------


def test_a_pair_shares_its_prefix_and_differs_after_it(
    pairs: Sequence[tuple[Trajectory, Trajectory]],
) -> None:
    for chosen, rejected in pairs:
        ours, theirs = chosen.segments[-1], rejected.segments[-1]
        prefix = len(chosen.ids) - len(ours.ids)
        assert chosen.ids[:prefix] == rejected.ids[: len(rejected.ids) - len(theirs.ids)]
        assert (ours.author, theirs.author) == (Author.POLICY, Author.POLICY)
        shorter = min(len(ours.ids), len(theirs.ids))
        assert shorter > 0
        assert ours.ids[:shorter] != theirs.ids[:shorter]


def test_only_the_step_itself_is_compared(
    pairs: Sequence[tuple[Trajectory, Trajectory]],
) -> None:
    for trajectory in chain(*pairs[:40]):
        sample = make_last_segment_sample(trajectory)
        last = len(trajectory.segments[-1].ids)
        assert sample.weight.tolist() == [0.0] * (len(trajectory.ids) - last) + [1.0] * last


def test_the_chosen_way_is_that_of_the_demonstration() -> None:
    """Prefix and chosen step together equal the start of the whole demonstration, id for id."""
    rng = random.Random(0)
    acting = 0
    stops = Counter()
    for _ in range(60):
        path = CURRICULUM.draw_untaught_path(WORLD, rng)
        task: Task = WORLD.make_task(path, "train")
        whole = encode_demonstration(task, make_demonstration(WORLD, path), DIALECT, SCHEMAS).ids
        for decision in iterate_decisions(WORLD, path, rng):
            chosen, rejected = CURRICULUM._make_pair(task, decision)
            assert whole[: len(chosen.ids)] == chosen.ids
            assert whole[: len(rejected.ids)] != rejected.ids
            acting += decision.chooses_tool
            last = TOKENIZER.decode(chosen.ids[-1:])
            stops[last] += isinstance(decision.chosen[-1], Thought)
    assert acting > 60
    assert min(stops["."], stops[". "]) > 5


def test_a_guess_ends_in_the_token_of_the_fact_it_stands_for() -> None:
    """The guess and the fact thus differ only in the name."""
    rng = random.Random(1)
    stops = Counter()
    for _ in range(40):
        path = CURRICULUM.draw_untaught_path(WORLD, rng)
        for decision in iterate_decisions(WORLD, path, rng):
            if decision.chooses_tool:
                rejected = CURRICULUM._make_pair(WORLD.make_task(path, "train"), decision)[1]
                stops[TOKENIZER.decode(rejected.ids[-1:]), decision.is_last] += 1
    assert set(stops) == {(".", True), (". ", False)}


def test_fewer_pairs_choose_thinking_than_acting(
    pairs: Sequence[tuple[Trajectory, Trajectory]],
) -> None:
    acts = sum("<begin_search>" in chosen.segments[-1].text for chosen, _ in pairs)
    assert len(pairs) / 2 < acts < len(pairs)


# -- questions, tokens, sizes -------------------------------------------------------------------


@pytest.mark.long
def test_no_training_asks_a_question_of_an_evaluation() -> None:
    """No question is repeated verbatim. The base model learns single facts as questions."""
    splits = ("heldout", "heldout_start", "known", "mixed", "four_hops", "unseen_chains")
    tasks = draw_evaluation_tasks(RESERVING, 0, dict.fromkeys(splits, 300))
    questions = {task.question for task in tasks}
    curriculum = AtlasCurriculum(
        RESERVING, variants=12, seed=0, encoder=DemonstrationEncoder(DIALECT, SCHEMAS)
    )
    demonstrations = [*curriculum.make_demonstrations(600), *curriculum.make_wasteful(600)]
    demonstrations += [side for pair in curriculum.make_pairs(600) for side in pair]
    trained = {t.task.question for t in demonstrations}
    trained |= {task.question for task in draw_train_tasks(RESERVING, 0, 4000)}
    assert len(trained) > 800
    assert questions.isdisjoint(trained)
    several = {task.question for task in tasks if task.meta["hops"] > 1}
    assert several.isdisjoint(t.task.question for t in curriculum.make_base_texts(2000))


def test_the_tokenizers_texts_hold_no_name() -> None:
    syllables, texts = re.compile("|".join(SYLLABLES)), iterate_tokenizer_texts(WORLD, TAGS)
    assert not [text for text in texts if syllables.search(text)]
    assert len(TOKENIZER) < 1200


def test_data_sets_grow_with_the_number_of_taught_facts() -> None:
    big = AtlasCurriculum(
        generate_atlas(400, 0.5, 0.5, seed=0),
        variants=3,
        seed=0,
        encoder=DemonstrationEncoder(DIALECT, SCHEMAS),
    )
    facts = len(big.world.taught_facts)
    assert facts == 200 * 3 + 40 * 2 + 40 * 2 + 20 * 2
    assert big.get_size("demonstrations", None) == 45 * facts
    assert big.get_size("demonstrations", 10) == 10
    assert (
        CURRICULUM.get_size("base", None) == 64 * 320
    )  # the same for a small world as for one with 320 facts
