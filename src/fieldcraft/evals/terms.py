"""Meanings of the columns of the report. The page shows them next to a column and in a list."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

TERMS = {
    "Exact match": (
        "Share of the gradable questions whose answer equals an accepted one, both without case,"
        " punctuation and articles. The interval holds the true share in 95 of 100 such samples."
    ),
    "F1": "Word overlap of the answer with the best-matching accepted answer.",
    "Calls / optimal": (
        "Executed tool calls per question, including failed ones, and the least number of calls"
        " that suffices, if the world knows it."
    ),
    "Answered": "Share of the questions that ended with an answer, correct or wrong.",
    "Well formed": "Share of the trajectories that match the grammar of the dialect.",
    "Known: match": "Exact match on the questions that the first model was taught.",
    "Known: no call": "Share of those questions that are answered without a call.",
    "Tokens": "Tokens that the model wrote per question.",
    "Training time": "Wall time of the stage, without its evaluation.",
    "Evaluation time": "Wall time from loading the model to its last answer.",
    "Productivity": "Correct answers per executed call: total answers divided by total calls.",
    "Cost of calls / least": (
        "Cost of the executed calls per question, including failed ones, and the lowest cost with"
        " which it can be answered, if the run knows it."
    ),
    "Cost: distance": (
        "Absolute difference of the cost of the calls from the lowest cost, per question."
    ),
    "Cost of tokens": "Cost of the tokens that the model wrote, per question.",
    "Cost per success": "Cost of the calls and tokens of all questions, per correct answer.",
    "Needless": "Calls above the optimum, per question.",
    "Missing": "Calls below the optimum, per question.",
    "Regret": (
        "Needless and missing calls together: the distance from the oracle. Too many calls on one"
        " question do not compensate for too few on another."
    ),
    "Offloading": "Share of the known questions on which the model calls a tool nevertheless.",
    "Tokens written / read": "Tokens that the model wrote, and tokens of tool results.",
    "Repeated": "Share of the written calls that repeat an earlier answered call.",
    "Failed": "Share of the written calls on which the tool itself failed.",
    "Malformed": (
        "Share of the written calls that cannot be parsed, name no known tool or have invalid"
        " arguments; they are not executed."
    ),
    "Refused": "Share of the written calls above the limit of calls; they are not executed.",
    "Unseen names": "Exact match with tool names not seen in training.",
    "Used": "Share of the answers with an executed call.",
    "Used, unseen": "The same with tool names not seen in training.",
    "Malformed, unseen": "Malformed calls with tool names not seen in training.",
    "With a call": "Share of the rollouts that write a call, well formed or not.",
    "Names the tool": "Share of the written calls that name a tool offered by the question.",
    "Fitting arguments": "Share of these calls whose arguments are valid for the tool.",
    "Pass at k": (
        "Share of the questions with at least one correct answer in k samples, unbiased; for k = 1"
        " the mean over all samples."
    ),
    "Best of n": "Share of correct answers among the samples selected by a verifier.",
    "Requests": "Requests to models per question: turns of a policy, or of the members of a team.",
    "Tokens read / written": "In all requests of a question; each reads its whole prompt.",
    "Tokens per success": "Tokens read and written for all questions, per correct answer.",
    "Calls per success": "Executed calls of all questions, per correct answer.",
    "Seconds per success": "Seconds of all questions, which ran concurrently, per correct answer.",
    "Cost of 1,000 successes": "From the prices of the models or of the evaluation.",
    "Behaviour": (
        "Shares of the questions: MA (more accurate), correct where the previous stage was wrong;"
        " AE, the part of MA with fewer calls; ME (more efficient), the same verdict with fewer"
        " calls; LE (less efficient), the same verdict with more calls; LA (less accurate), wrong"
        " where it was correct."
    ),
    "Difference": "Difference in exact match, in percentage points, and its 95 % interval.",
    "Gained, lost": (
        "Questions that only the later or only the earlier stage answered correctly, and the"
        " p-value of McNemar's exact test, in which questions of one cluster change sides together."
    ),
    "Calls saved": (
        "Reduction of executed calls per question and, if calls or tokens have prices, of the"
        " acting cost."
    ),
    "Tokens saved": "Reduction of written tokens per question.",
    "Seconds saved": "Reduction of seconds per question, among concurrent questions.",
}

# Columns by the summary key of an evaluation that they show.
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
    "Cost per success": "acting_cost_per_success",
    "Tokens per success": "tokens_per_success",
    "Calls per success": "calls_per_success",
    "Seconds per success": "seconds_per_success",
    "Cost of 1,000 successes": "cost_per_success",
}


def find_empty_terms(evals: Collection[Mapping[str, Any]]) -> set[str]:
    """Return the columns without a value in any evaluation, which are omitted."""
    return {term for term, key in TERM_KEYS.items() if all(e.get(key) is None for e in evals)}
