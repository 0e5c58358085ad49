"""Errors of sections that are built in Python: one sentence, as for a recipe file."""

import math
from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

import fieldcraft as fc
from fieldcraft.config.base import ConfigSection
from fieldcraft.config.renamed_keys import RENAMED_KEYS
from fieldcraft.config.sections import ClusterConfig, EvaluationConfig
from fieldcraft.types import UserError

OPTIM = {"lr": 1e-4}


@pytest.mark.parametrize(
    ("section", "keys", "sentence"),
    [
        (fc.Rl, {"stpes": 1, "optim": OPTIM}, "Rl: unknown key 'stpes'; did you mean 'steps'?"),
        # a misspelt key that is required is not called missing
        (fc.Rl, {"otpim": OPTIM}, "Rl: unknown key 'otpim'; did you mean 'optim'?"),
        (
            fc.Rl,
            {"questions": 4, "optim": OPTIM},
            "Rl: unknown key 'questions'; it is now called 'questions_per_step'.",
        ),
        (fc.Rl, {"optim": {"lrr": 1}}, "Rl: unknown key 'optim.lrr'; did you mean 'optim.lr'?"),
        (fc.Rl, {"steps": 1}, "Rl: 'optim' is missing: give it a value."),
        (fc.Optim, {"lr": 0}, "Optim: 'lr' is wrong: it must be greater than 0.0, not 0."),
        (fc.Optim, {"lr": 1, "warmup_steps": math.inf}, "Optim: 'warmup_steps' is wrong: it is a"),
        (fc.Sft, {"dataset": "d", "optim": {"lr": "x"}}, "Sft: 'optim.lr' is wrong: it must be"),
        (
            fc.Rl,
            {"steps": 1, "optim": OPTIM, "cot_questions": "known"},
            "Rl: cot_questions: known needs a cot_share above 0.",
        ),
        (ClusterConfig, {"trainers": 1, "engines": 2, "colocate": True}, "ClusterConfig: "),
        (
            EvaluationConfig,
            {"periodic": {"evrey": 3}},
            "EvaluationConfig: unknown key 'periodic.evrey'; did you mean 'periodic.every'?",
        ),
    ],
)
def test_an_invalid_key_ends_with_one_sentence(
    section: type[ConfigSection], keys: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UserError) as caught:
        section(**keys)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def _list_sections(base: type[BaseModel]) -> list[type[BaseModel]]:
    return [s for section in base.__subclasses__() for s in (section, *_list_sections(section))]


@pytest.mark.parametrize("section", _list_sections(ConfigSection), ids=lambda s: s.__name__)
def test_each_section_answers_in_the_same_way(section: type[BaseModel]) -> None:
    with pytest.raises(ValidationError):
        section.model_validate(["no mapping"])
    if section.model_config["extra"] == "forbid":
        with pytest.raises(UserError, match=rf"^{section.__name__}: unknown key 'zzz'; use one of"):
            section(zzz=1)


def test_each_renamed_key_of_a_stage_is_answered_with_its_current_name() -> None:
    renamed = {
        old.removeprefix("stages.*."): new.removeprefix("stages.*.")
        for old, new in RENAMED_KEYS.items()
        if old.startswith("stages.*.") and old.count(".") == 2
    }
    assert len(renamed) > 10
    answered = 0
    for old, new in renamed.items():
        for stage in (fc.Rl, fc.Sft, fc.Contrastive, fc.Distil):
            if new in stage.model_fields:
                with pytest.raises(UserError, match=f"'{old}'; it is now called '{new}'"):
                    stage(**{old: 1})
                answered += 1
    assert answered >= len(renamed)
