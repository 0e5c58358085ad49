"""Program that holds the memory conversations of a scenario with the handler of bfcl-eval itself.

It runs in the interpreter of the package. Its input is JSON: the category, the scenario, a folder,
and for each conversation the calls of its first message. Its output is JSON: the first messages of
each conversation and of the first question, and the memory after the last conversation.
"""

import json
import sys
from pathlib import Path

from bfcl_eval import utils
from bfcl_eval.model_handler.base_handler import BaseHandler


class ScriptedHandler(BaseHandler):
    """Handler whose model writes given calls first, and then a text in each turn."""

    def __init__(self):
        super().__init__("scripted", 0.0, "scripted-FC", is_fc_model=True)
        self.calls, self.first_messages = [], []

    def decode_execute(self, result, has_tool_call_tag):
        return [f"{name}(**{arguments!r})" for name, arguments in result]

    def _pre_query_processing_FC(self, inference_data, test_entry):
        return inference_data

    def _compile_tools(self, inference_data, test_entry):
        return inference_data

    def add_first_turn_message_FC(self, inference_data, messages):
        self.first_messages.append(messages)
        return inference_data

    def _add_next_turn_user_message_FC(self, inference_data, messages):
        return inference_data

    def _query_FC(self, inference_data):
        calls, self.calls = self.calls, []
        return calls, 0.0

    def _parse_query_response_FC(self, response):
        return {"model_responses": response, "input_token": 0, "output_token": 0}

    def _add_assistant_message_FC(self, inference_data, response):
        return inference_data

    def _add_execution_results_FC(self, inference_data, results, response):
        return inference_data


def main():
    given, written = json.load(sys.stdin), sys.stdout
    sys.stdout = sys.stderr  # the handler reports its steps
    folder = Path(given["folder"])
    entries = utils.populate_initial_settings_for_memory_test_cases(
        [
            e
            for e in utils.load_dataset_entry(given["category"])
            if e["scenario"] == given["scenario"]
        ],
        folder,
    )
    entries.sort(key=utils.sort_key)
    handler = ScriptedHandler()
    for calls, entry in zip([*given["calls"], []], entries, strict=False):
        handler.calls = calls
        handler.inference(entry, False, True)
    [memory] = folder.rglob(f"{given['scenario']}_final.json")
    json.dump(
        {"messages": handler.first_messages, "memory": json.loads(memory.read_text())}, written
    )


main()
