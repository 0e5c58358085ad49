import pytest

from fieldcraft.config.collection import SelectConfig, TeacherConfig
from fieldcraft.config.recipe import dump_recipe
from fieldcraft.config.rl import Rl
from fieldcraft.config.sampling import count_samples, describe_sample_counts
from fieldcraft.config.sections import EvaluationConfig
from fieldcraft.recipes.loading import load_recipe
from fieldcraft.types import Task, UserError


def make_task(split: str = "heldout", **meta: str) -> Task:
    return Task("0", "?", (), {"split": split} | meta)


def test_the_first_key_that_fits_says_how_many_samples() -> None:
    samples = EvaluationConfig(
        temperature=0.8, samples={"default": 2, "mixed": 3, "*aime*": 16, "amc23": 8}
    ).samples
    numbers = [
        (make_task(), 2),
        (make_task("mixed"), 3),
        (make_task(data_source="aime24"), 16),
        (make_task(data_source="HuggingFaceH4/AIME_2024"), 16),
        (make_task(data_source="AMC23"), 8),
        (make_task(data_source="amc"), 2),
    ]
    assert [count_samples(samples, task) for task, _ in numbers] == [n for _, n in numbers]
    assert count_samples({"aime24": 16}, make_task()) == 1
    tasks = [task for task, _ in numbers]
    assert describe_sample_counts(samples, tasks) == [
        "2 with 2 samples", "1 with 3 samples", "1 with 8 samples", "2 with 16 samples",
    ]  # fmt: skip
    assert describe_sample_counts({"*amc*": 16, "default": 1}, tasks[:2]) == ["none of *amc*"]
    assert describe_sample_counts({"default": 1}, tasks) == []


def test_one_number_is_that_of_all_questions() -> None:
    assert EvaluationConfig(temperature=0.8, samples=4).samples == {"default": 4}
    assert EvaluationConfig(samples={}).max_samples == 1
    assert describe_sample_counts({}, [make_task()]) == []
    with pytest.raises(UserError, match="greater than 0"):
        EvaluationConfig(temperature=0.8, samples={"aime24": 0})


@pytest.mark.parametrize(
    ("section", "keys", "sentence"),
    [
        (EvaluationConfig, {"top_p": 0.9}, "top_p would have no effect on greedy sampling"),
        (
            EvaluationConfig,
            {"temperature": 0, "top_k": 5, "min_p": 0.1},
            "top_k and min_p would have no effect",
        ),
        (
            EvaluationConfig,
            {"samples": {"aime24": 16}},
            "greedy samples of a question are identical",
        ),
        (EvaluationConfig, {"temperature": 1, "top_p": 0}, "greater than 0"),
        (EvaluationConfig, {"temperature": 1, "min_p": 1}, "less than 1"),
        (SelectConfig, {"temperature": 0}, "greedy samples of a question are identical"),
        (
            SelectConfig,
            {"closed_book_model": None, "closed_book_samples": 4},
            "closed_book_samples needs a closed_book_model",
        ),
        (
            SelectConfig,
            {"closed_book_model": None, "solver": "sft", "max_closed_book_accuracy": 0.5},
            "max_closed_book_accuracy needs a closed_book_model",
        ),
        (SelectConfig, {"solver_rollouts": 4}, "solver_rollouts needs a solver"),
        (SelectConfig, {"closed_book_model": None, "top_p": 0.9}, "top_p needs a model that is"),
        (SelectConfig, {"closed_book_model": None, "sampling": "model"}, "sampling needs a model"),
        (TeacherConfig, {"sampling": "model"}, "set model to one, without a url"),
        (TeacherConfig, {"sampling": "model", "url": "http://h/v1", "model": "m"}, "without a url"),
        (
            TeacherConfig,
            {"url": "https://api.openai.com/v1", "model": "m", "top_k": 5},
            "not support top_k",
        ),
    ],
)
def test_keys_without_an_effect_are_refused(
    section: type, keys: dict[str, object], sentence: str
) -> None:
    with pytest.raises(UserError, match=sentence):
        section(**keys)


def test_what_is_not_said_is_the_usual() -> None:
    assert EvaluationConfig().is_greedy
    assert not TeacherConfig().is_greedy
    assert not SelectConfig().is_greedy
    assert not EvaluationConfig(sampling="model", samples=4).is_greedy  # not known yet
    assert EvaluationConfig(sampling="model", temperature=0).is_greedy


@pytest.mark.parametrize("key", ["top_k", "top_p", "min_p"])
def test_reinforcement_learning_refuses_to_truncate_with_its_reason(key: str) -> None:
    with pytest.raises(UserError, match=f"{key} truncates the sampling distribution, so its"):
        Rl(steps=1, optim={"lr": 1e-4}, **{key: 0.5})
    with pytest.raises(UserError, match=f"stages.rl2.*{key} truncates the sampling distribution"):
        load_recipe("smoke", [f"stages.rl2.{key}=0.5"])


def test_keys_of_sampling_come_back_as_they_were_written() -> None:
    recipe = load_recipe("smoke", ["evaluation.temperature=0.6", "evaluation.samples.aime24=4"])
    again = EvaluationConfig.model_validate(dump_recipe(recipe)["evaluation"])
    assert again == recipe.evaluation
    assert again.explicit_keys == {"temperature": 0.6}
    assert again.samples == {"aime24": 4}


def test_the_code_agent_is_evaluated_as_in_the_paper() -> None:
    keys = ["model=.", f"tasks={__file__}", f"demonstrations={__file__}"]
    recipe = load_recipe("afm-code-7b", keys)
    settings = recipe.evaluation
    assert settings.explicit_keys == {"temperature": 0.8, "top_p": 1.0}
    assert (recipe.budget.max_calls, recipe.evaluation_recipe.budget.max_calls) == (8, 12)
    named = ("aime24", "AIME2025", "math-ai/amc23", "math500", "OlympiadBench")
    counts = [count_samples(settings.samples, make_task(data_source=name)) for name in named]
    assert counts == [16, 16, 16, 1, 1]
