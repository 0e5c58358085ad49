"""Checks of recipes: each check finds its errors, and none reports a valid recipe."""

import json
import tempfile
from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import pytest
from starlette.responses import JSONResponse
from tokenizers import normalizers

from chat_server import answering, completion
from checkpoints import tiny_tokenizer, write_tiny_checkpoint
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.rl import Rl
from fieldcraft.recipes.loading import load_recipe, parse_recipe
from fieldcraft.runs import check as preflight
from fieldcraft.runs import memory_estimate
from fieldcraft.runs.check import check_recipe
from fieldcraft.runs.inputs import WorldData
from fieldcraft.runs.setup import CheckReport, load_first_model, load_questions
from fieldcraft.tools.serving import serve_in_thread
from fieldcraft.train.stages.rl import RlStage
from fieldcraft.types import Author, Segment, Status, Task, Trajectory

# sizes of the checkpoint: untied embeddings of 400 words, two layers of width 32
PARAMETERS = 2 * 400 * 32 + 2 * (32 * 32 * 2 + 32 * 16 * 2 + 64 + 3 * 32 * 64 + 64) + 32
PROCESS = 600_000_000  # before the model exists
SMALL = ["world.people=60", "world.variants=2", "tiny_model.layers=2", "tiny_model.width=16"]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("checkpoint"), "qwen2")


class Seen:
    """Notes that a check reported, by name."""

    def __init__(self) -> None:
        self.notes: dict[str, list[str]] = {}

    def __call__(self, name: str, notes: Sequence[str], problems: Sequence[str]) -> None:
        self.notes[name] = list(notes)


def problems_of(recipe: Recipe, seen: Seen | None = None) -> list[str]:
    return check_recipe(recipe, Path.cwd(), seen or Seen())


def world(*overrides: str) -> Recipe:
    return load_recipe("smoke", [*SMALL, *overrides])


def files(folder: Path, checkpoint: Path, **changes: Any) -> Recipe:
    """Return a recipe on files: four questions, their passages, and three demonstrations."""
    names = ("Ada", "Bo", "Cy", "Di")
    tasks = [{"question": f"Who made film {i}?", "answer": n} for i, n in enumerate(names)]
    demonstrations = [
        {"question": f"Who made song {i}?", "answer": n, "gen_text_store": f"<answer>{n}</answer>"}
        for i, n in enumerate(names[:3])
    ]
    optim = {"lr": 1e-5, "micro_batch_tokens": 512}
    sft = {"type": "sft", "dataset": "demonstrations", "batch_size": 3}
    data = {
        "name": "files",
        "model": checkpoint,
        "dialect": "autocoa",
        "tasks": write(folder / "tasks.jsonl", tasks),
        "corpus": write(folder / "corpus.jsonl", [{"text": f"{name} is one."} for name in names]),
        "demonstrations": write(folder / "demonstrations.jsonl", demonstrations),
        "budget": {"max_turn_tokens": 64, "max_context_tokens": 1024},
        "stages": {
            "sft": {**sft, "steps": 1, "optim": optim},
            "rl": {"type": "rl", "steps": 1, "optim": optim},
        },
    }
    return parse_recipe(data | changes)


def write(path: Path, records: list[dict[str, str]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


# -- valid recipes -----------------------------------------------------------------------------


def test_the_world_is_sound() -> None:
    seen = Seen()
    assert problems_of(world("evaluation.splits.heldout=10"), seen) == []
    assert list(seen.notes) == [
        "device",
        "questions",
        "tools",
        "model",
        "judge",
        "engine",
        "weights",
        "dialect",
        "gold answers",
        "correct answers",
        "closed book",
        "budget",
        "workflows",
        "stage base",
        "stage sft2",
        "stage rl2",
        "memory",
        "disk",
    ]
    assert seen.notes["tools"] == ["the world's articles"]
    assert seen.notes["weights"] == ["random ones of a new model"]
    assert seen.notes["stage rl2"] == ["rewards: correct"]


def test_files_are_sound(tmp_path: Path, checkpoint: Path) -> None:
    seen = Seen()
    assert problems_of(files(tmp_path, checkpoint), seen) == []
    assert seen.notes["tools"] == ["4 passages"]
    assert seen.notes["questions"][:2] == ["2 to train", "2 to test"]
    assert seen.notes["gold answers"] == ["4 of 4 score 1"]


@pytest.mark.long
def test_real_files_are_sound(shared: Path, checkpoint: Path) -> None:
    questions = shared / "data" / "qa" / "hotpotqa_300_with_context.jsonl"
    demonstrations = shared / "data" / "trajectories" / "r1searcher_hotpotqa_500.jsonl"
    given = [f"model={checkpoint}", f"tasks={questions}", f"corpus={questions}"]
    seen = Seen()
    recipe = load_recipe("hotpotqa", [*given, f"demonstrations={demonstrations}"])
    assert problems_of(recipe, seen) == []
    assert seen.notes["gold answers"] == ["300 of 300 score 1"]
    assert "212 left out: with a wrong answer" in seen.notes["stage sft"]


# -- inputs ------------------------------------------------------------------------------------


def test_a_question_that_is_held_out_is_not_trained_on(tmp_path: Path, checkpoint: Path) -> None:
    recipe = files(tmp_path, checkpoint)
    tasks = write(tmp_path / "tasks.jsonl", [{"question": "Why?", "answer": "So"}] * 2)
    assert problems_of(recipe)[0] == (
        f"no question of {tasks} is left to train on, because evaluations use all of them:"
        " give questions with other texts and other ids."
    )


def test_a_checkpoint_without_weights(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "llama")
    (folder / "model.safetensors").unlink()
    assert problems_of(files(tmp_path, folder)) == [
        f"{folder} holds no weights: copy its .safetensors files there."
    ]


def test_a_tokenizer_of_a_larger_model(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    tokenizer = tiny_tokenizer()
    tokenizer.add_tokens(["<one>", "<two>"])
    tokenizer.save_pretrained(folder)
    [problem] = problems_of(files(tmp_path, folder))
    assert "has 402 tokens and the model only 400: use the tokenizer that" in problem


def test_a_tokenizer_that_loses_tags(tmp_path: Path) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace("_", " ")
    tokenizer.save_pretrained(folder)
    problems = problems_of(files(tmp_path, folder))
    assert (
        "The tokenizer turns the tag '<begin_search>' into '<begin search>', so the dialect"
        f" 'autocoa' cannot be used with {folder}: choose a model whose tokenizer preserves every"
        " text, like byte-level ones."
    ) in problems


def test_a_judge_is_asked_once(checkpoint: Path) -> None:
    app, got = answering(completion(), JSONResponse({"error": "no model n"}, 404))
    with serve_in_thread(app) as url:
        seen = Seen()
        assert problems_of(world(f"judge={{url: {url}/v1, model: m}}"), seen) == []
        assert seen.notes["judge"] == [f"m at {url}/v1 answers, 3 votes an answer"]
        [problem] = problems_of(world(f"judge={{url: {url}/v1, model: n}}"))
    assert "The model 'n' does not answer" in problem
    assert "no model n" in problem
    assert len(got) == 2


def test_gold_answers_that_cannot_be_read_back(tmp_path: Path, checkpoint: Path) -> None:
    recipe = files(tmp_path, checkpoint)
    golds = ["Ada", "a } b", "Bo", "Cy"]
    records = [{"id": g, "question": f"Who is {g}?", "answer": g} for g in golds]
    write(tmp_path / "tasks.jsonl", records)
    assert problems_of(recipe) == [
        "1 of 4 questions can never be graded correct, because their gold answers do not round-trip"
        " through the dialect 'autocoa', such as 'a } b' of task 'a } b': remove or rewrite them."
    ]


@pytest.mark.parametrize(
    ("budget", "complaint"),
    [
        ({"max_context_tokens": 4096}, "than the 2048 positions of the model: set budget.max_con"),
        ({"max_context_tokens": 600, "max_turn_tokens": 130}, "leaves no room for a search and an"),
    ],
)
def test_budgets(budget: dict[str, int], complaint: str, tmp_path: Path, checkpoint: Path) -> None:
    assert complaint in " ".join(problems_of(files(tmp_path, checkpoint, budget=budget)))


# -- stages ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("override", "complaint"),
    [
        ("stages.rl2.group_size=1", "stage 'rl2' has group_size=1: an advantage compares rollouts"),
        ("stages.rl2.rewards={em: 0}", "stage 'rl2' gives no reward a weight"),
        ("stages.sft2.dataset=pears", "the world has no data set 'pears'"),
        ("stages.sft2.train_on=[tool]", "demonstrations of stage 'sft2' have no trainable token"),
        ("stages.sft2.max_examples=3", "has 3 demonstrations, fewer than one batch of 24"),
        ("budget={max_context_tokens: 120, max_turn_tokens: 40}", "raise budget.max_context_tok"),
    ],
)
def test_stages_of_the_world(override: str, complaint: str) -> None:
    problems = problems_of(world(override))
    assert len(problems) == 1
    assert complaint in problems[0]


def test_a_single_rollout_is_compared_with_nothing_only_where_groups_are() -> None:
    def problems(algorithm: str) -> list[str]:
        stage = {"type": "rl", "steps": 1, "group_size": 1, "optim": {"lr": 1.0}}
        unused: Any = None  # its data is sampled
        settings = Rl.model_validate(stage | {"algorithm": algorithm})
        return list(RlStage.check(settings, "rl", unused, []))

    names = ("rloo", "dapo", "reinforce++", "ppo")
    assert [bool(problems(name)) for name in names] == [True, True, False, False]


def test_a_contrastive_stage_without_pairs(tmp_path: Path, checkpoint: Path) -> None:
    optim = {"lr": 1e-5}
    stage = {"type": "contrastive", "dataset": "pairs", "steps": 1, "optim": optim}
    assert problems_of(files(tmp_path, checkpoint, stages={"pairs": stage})) == [
        "data set 'pairs' of pairs is unknown here: use dataset: pairs with pairs=FILE, as"
        " 'fieldcraft run autocoa-data' writes one."
    ]


def test_pairs_of_the_world() -> None:
    seen = Seen()
    given = [*SMALL, "world.taught=0.4", "tiny_model.heads=1", "seed=1"]
    assert problems_of(load_recipe("autocoa-mini", given), seen) == []
    assert seen.notes["stage sft1"][0].startswith("400 samples of up to ")


def test_an_encoder_that_is_not_there(tmp_path: Path, checkpoint: Path) -> None:
    recipe = files(tmp_path, checkpoint, search={"encoder": "/no/encoder"})
    assert problems_of(recipe) == [
        "The encoder /no/encoder does not exist; give a folder or a hub name."
    ]
    recipe = files(tmp_path, checkpoint, search={"ranking": "hybrid"})
    assert problems_of(recipe) == [
        "Search by vectors needs an encoder; give a model that produces them."
    ]


def test_demonstrations_that_break_the_grammar(monkeypatch: pytest.MonkeyPatch) -> None:
    segments = [Segment(Author.PROMPT, [1], "a"), Segment(Author.POLICY, [2], "b")]
    bad = Trajectory(Task("7", "Why?", ("So",)), segments, status=Status.ANSWERED)
    monkeypatch.setattr(WorldData, "encoded", lambda *_: [bad] * 40)
    assert [problem for problem in problems_of(world()) if "grammar" in problem] == [
        # and not the questions of the stage base, whose texts name no tool
        "40 of 40 demonstrations of stage 'sft2' break the grammar of 'autocoa', such as that of"
        " task '7': fix or remove them, or choose another dialect."
    ]


# -- memory and disk ---------------------------------------------------------------------------


def test_memory_is_estimated(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = files(tmp_path, checkpoint)
    monkeypatch.setattr(preflight, "read_free_memory", lambda _: 1_000_000)
    # A parameter takes 16 bytes, 4 for its gradient. Each of 1,024 tokens (the longest rollout)
    # stores 2 layers of 10 x 32 + 4 x 64 floats and 3 logits for each of 400 words.
    trained = PROCESS + 16 * PARAMETERS + 1024 * 4 * (2 * 576 + 3 * 400)
    # Each of 32 x 8 rollouts stores as many keys and values, in 2 layers, of 2 heads of 8 floats.
    rl = PROCESS + 12 * PARAMETERS + 256 * 1024 * 2 * 2 * 2 * 8 * 4
    assert largest(recipe) == ("stage 'rl'", rl)
    assert problems_of(recipe) == [
        f"stage 'rl' needs about {rl / 1e9:.3g} GB of memory and cpu has 0.001 GB: its"
        f" weights alone need {(PROCESS + 12 * PARAMETERS) / 1e9:.3g} GB, so use"
        " a smaller model."
    ]
    few = recipe.model_copy(update={"max_num_seqs": 8})
    assert largest(few) == ("stage 'rl'", trained)


def largest(recipe: Recipe) -> tuple[str, int]:
    """Return the name of the largest memory estimate, and its bytes."""
    with tempfile.TemporaryDirectory() as draft:
        setup = preflight.CheckContext(recipe, Path(draft))
        load_questions(setup, CheckReport())
        load_first_model(setup, CheckReport())
        sizes = memory_estimate.estimate_run_memory(setup.sizes)
    name = max(sizes, key=sizes.__getitem__)
    return name, sizes[name]


def test_memory_of_an_adapter(tmp_path: Path, checkpoint: Path) -> None:
    optim = {"lr": 1e-5, "micro_batch_tokens": 512, "activation_checkpointing": True}
    one = {"type": "rl", "steps": 1, "questions_per_step": 1, "group_size": 2}
    stage = {**one, "kl_coef": 0.1, "optim": optim}
    recipe = files(
        tmp_path,
        checkpoint,
        stages={"rl": stage},
        lora={"rank": 4},
        dtype="bfloat16",
        max_num_seqs=1,
    )
    # seven linear layers in each of two blocks, and rank 4 on both of their sides
    adapter = 2 * 4 * (2 * (32 + 32) + 2 * (32 + 16) + 3 * (32 + 64))
    # The model is loaded in bfloat16 and the KL's reference is a second adapter. Each layer stores
    # its input, and one layer stores all of its activations; the rest is as above.
    logits = 1024 * 4 * 3 * 400  # three for each of 400 words in reinforcement learning
    size = PROCESS + 2 * PARAMETERS + (16 + 4) * adapter + 1024 * 4 * (2 * 32 + 576) + logits
    assert largest(recipe) == ("stage 'rl'", size)


def test_memory_in_bfloat16_with_moments_in_8_bit(tmp_path: Path, checkpoint: Path) -> None:
    optim = {"lr": 1e-5, "micro_batch_tokens": 512, "optimizer_state": "8bit"}
    stage = {"type": "rl", "steps": 1, "questions_per_step": 1, "group_size": 2, "optim": optim}
    recipe = files(tmp_path, checkpoint, stages={"rl": stage}, dtype="bfloat16", max_num_seqs=1)
    # Bytes: weight 2, master 4, gradient 4, two moments of 1 with a float for each 256.
    weights = ceil((2 + 4 + 2 + 2 * 4 / 256) * PARAMETERS) + 4 * PARAMETERS
    activations = 1024 * (2 * 2 * 576 + 4 * 3 * 400)
    output = (4 + 2) * 400 * 32  # the float32 sum of its gradient, and the rounded one
    assert largest(recipe) == ("stage 'rl'", PROCESS + weights + activations + output)


def test_disk_of_an_adapter(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every stage leaves a merged model in float32, but checkpoints hold only the adapter.
    Reinforcement learning has three checkpoints at once."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    [problem] = problems_of(files(tmp_path, checkpoint, lora={"rank": 4}))
    size = 2 * 4 * PARAMETERS + 3 * 12 * 4096
    assert f"writes about {size / 1e9:.3g} GB" in problem


def test_without_weights_this_machine_is_not_held_against_a_recipe(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_checkpoint(tmp_path / "model", "qwen2")
    (folder / "model.safetensors").unlink()
    monkeypatch.setattr(preflight, "read_free_memory", lambda _: 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1}))
    seen = Seen()
    assert problems_of(files(tmp_path, folder), seen) == [
        f"{folder} holds no weights: copy its .safetensors files there."
    ]
    assert seen.notes["memory"][0].endswith(" of 1e-09 GB")  # but it is reported
    assert seen.notes["disk"][0].startswith("about ")


def test_a_critic_of_its_own_needs_room(
    tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "read_free_memory", lambda _: 1)
    monkeypatch.setattr(memory_estimate, "PROCESS_BYTES", 0)  # it hides a tiny critic
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1}))

    def needed(**stage: Any) -> list[float]:
        rl = {"type": "rl", "steps": 1, "optim": {"lr": 1.0}} | stage
        problems = problems_of(files(tmp_path, checkpoint, stages={"rl": rl}))
        return [float(text.partition("about ")[2].split()[0]) for text in problems]

    plain, policy = needed(), needed(algorithm="ppo", critic={"backbone": "policy"})
    own = needed(algorithm="ppo")
    assert policy == plain
    # Sampling takes the most memory here, and there are no gradients while rollouts are sampled.
    assert own[0] - plain[0] == pytest.approx(12 * PARAMETERS / 1e9, rel=0.15)  # rounded
    assert own[1] - plain[1] == pytest.approx(36 * PARAMETERS / 1e9, rel=0.05)


def test_a_full_disk(tmp_path: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 100}))
    [problem] = problems_of(files(tmp_path, checkpoint))
    assert problem.endswith("1e-07 GB free: free disk space or choose a folder on another disk.")
