"""Meanings of the columns of the report. The page shows them beside a column and in a list."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

TERMS = {
    "Exact match": (
        "Share of the gradable questions whose answer equals an accepted one, both without case,"
        " punctuation and articles. The interval holds the true share in 95 of 100 such samples."
    ),
    "F1": "Overlap of the words of the answer with those of the accepted answer it fits best.",
    "Calls / optimal": (
        "Executed tool calls a question, failed ones included, beside the least number of calls"
        " that suffices, where the world knows it."
    ),
    "Answered": "Share of the questions that ended with an answer, right or wrong.",
    "Well formed": "Share of the trajectories that keep to the grammar of the dialect throughout.",
    "Known: match": "Exact match on the questions that the first model was taught.",
    "Known: no call": "Share of those questions that are answered without a call.",
    "Tokens": "Tokens that the model wrote, a question.",
    "Training time": "Wall time of the stage, without its evaluation.",
    "Evaluation time": "Wall time from loading the model to its last answer.",
    "Productivity": "Right answers per executed call: the sum of the ones over that of the others.",
    "Cost of calls / least": (
        "What the executed calls of a question cost, failed ones included, beside the least with"
        " which it can be answered, where the run knows it."
    ),
    "Cost: distance": (
        "Distance of the cost of the calls from the least one, above or below it, a question."
    ),
    "Cost of tokens": "What the tokens that the model wrote cost, a question.",
    "Cost a success": "Cost of the calls and tokens of all questions, for each right answer.",
    "Needless": "Calls above the optimum of their question, a question.",
    "Missing": "Calls below the optimum of their question, a question.",
    "Regret": (
        "Needless and missing calls together: the distance from the oracle, in which too many calls"
        " here do not make up for too few there."
    ),
    "Offloading": "Share of the known questions on which the model calls a tool all the same.",
    "Tokens written / read": "Tokens that the model wrote, and that tools gave it to read.",
    "Repeated": "Share of the written calls that repeat an earlier one which was answered.",
    "Failed": "Share of the written calls on which the tool itself failed.",
    "Malformed": (
        "Share of the written calls that cannot be read, name no tool or have wrong arguments; they"
        " are not executed."
    ),
    "Refused": "Share of the written calls above the limit of calls; they are not executed.",
    "Unseen names": "Exact match with names of tools that no training shows.",
    "Used": "Share of the answers with an executed call.",
    "Used, unseen": "The same with names of tools that no training shows.",
    "Malformed, unseen": "Malformed calls with names of tools that no training shows.",
    "With a call": "Share of the answers that write a call, well formed or not.",
    "Names the tool": "Share of the written calls that name a tool which the question offers.",
    "Fitting arguments": "Share of these calls whose arguments can be read and fit the tool.",
    "Pass at k": (
        "Share of the questions of which at least one of k samples is right, unbiased; for k = 1"
        " the mean over all samples."
    ),
    "Best of n": "Share of right answers among the samples that a verifier picked.",
    "Requests": "Requests to models, a question: turns of a policy, or of the members of a team.",
    "Tokens read / written": "Of all requests of a question; each reads its whole prompt.",
    "Tokens a success": "Tokens read and written by all questions, for each right answer.",
    "Calls a success": "Executed calls of all questions, for each right answer.",
    "Seconds a success": "Seconds of all questions, which ran side by side, for each right answer.",
    "Cost of 1,000 successes": "By the prices of the models, or those of the evaluation.",
    "Behaviour": (
        "Shares of the questions: MA (more accurate), right where the stage before was wrong; AE,"
        " the part of MA with fewer calls; ME (more efficient), the same verdict with fewer calls;"
        " LE (less efficient), the same verdict with more calls; LA (less accurate), wrong where it"
        " was right."
    ),
    "Difference": "Difference in exact match, in percentage points, and its 95 % interval.",
    "Gained, lost": (
        "Questions that only the later or only the earlier stage answered right, and the p-value of"
        " McNemar's exact test, where questions of one cluster change sides together."
    ),
    "Calls saved": (
        "Executed calls that a question takes less than before; where calls or tokens have prices,"
        " beside it what it costs less."
    ),
    "Tokens saved": "Written tokens that a question takes less than before.",
    "Seconds saved": "Seconds that a question takes less than before, among all beside it.",
}

# Columns by the key of an evaluation's summary that they show.
TERM_KEYS = {
    "Exact match": "em",
    "F1": "f1",
    "Known: match": "known",
    "Known: no call": "known",
    "Productivity": "tool_productivity",
    "Needless": "needless_calls_mean",
    "Missing": "missing_calls_mean",
    "Regret": "calls_regret_mean",
    "Offloading": "offloading_rate",
    "Repeated": "call_duplicate_rate",
    "Failed": "call_failed_rate",
    "Malformed": "call_malformed_rate",
    "Refused": "call_refused_rate",
    "Cost: distance": "call_cost_regret_mean",
    "Cost a success": "acting_cost_per_success",
    "Tokens a success": "tokens_per_success",
    "Calls a success": "calls_per_success",
    "Seconds a success": "seconds_per_success",
    "Cost of 1,000 successes": "cost_per_success",
}


def find_empty_terms(evals: Collection[Mapping[str, Any]]) -> set[str]:
    """Return the columns for which no evaluation has a value, so that they are left out."""
    return {term for term, key in TERM_KEYS.items() if all(e.get(key) is None for e in evals)}
