"""Settings of demonstrations that the search of a run makes: the key `retrieve` of a recipe."""

from __future__ import annotations

from collections.abc import Iterator
from string import Formatter

from pydantic import PositiveInt, ValidationError

from fieldcraft.config.base import ConfigSection
from fieldcraft.config.recipe import Recipe
from fieldcraft.config.validation_errors import InvalidRecipeError, describe_section_errors

EVIDENCE_FIELDS = ("sentence", "answer")  # placeholders of the last thought


class RetrievalSettings(ConfigSection):
    """Limits and thoughts of retrieved demonstrations. An empty thought is left out."""

    questions: PositiveInt = 20_000  # maximum number of training questions to search for
    searches: PositiveInt = 2  # maximum per question
    queries: PositiveInt = 24  # tried for each further search, until one finds what is missing
    search_thought: str = "I look it up."
    again_thought: str = "I do not have it yet, so I search again."
    # may contain {sentence}, the one with the answer, and {answer}
    read_thought: str = "I read it."

    def find_violations(self) -> Iterator[str]:
        advice = "write only {sentence} and {answer} in braces"
        try:
            fields = [field[1:] for field in Formatter().parse(self.read_thought)]
        except ValueError:
            yield f"read_thought has a single brace: {advice}"
            return
        for name, *formats in fields:
            if name is not None and (name not in EVIDENCE_FIELDS or any(formats)):
                yield f"read_thought has the unknown placeholder {{{name}}}: {advice}"


def parse_retrieval_settings(recipe: Recipe) -> RetrievalSettings:
    """Return the settings of a recipe. Raises InvalidRecipeError for unknown or wrong ones, and for
    more searches than its budget permits."""
    try:
        settings = RetrievalSettings.model_validate(recipe.retrieve)
    except ValidationError as error:
        sentences = describe_section_errors(error, RetrievalSettings, ("retrieve",))
        raise InvalidRecipeError(sentences) from error
    if settings.searches > recipe.budget.max_calls:
        raise InvalidRecipeError(
            [
                f"retrieve.searches={settings.searches} shows more searches than"
                f" budget.max_calls={recipe.budget.max_calls} permits: lower it, or raise the"
                " budget."
            ]
        )
    return settings
