"""Program that asks the policy about successive letters, and writes its reward."""

import json
import os
import urllib.request

PARTNERS = {"a": "0", "b": "3", "c": "1", "d": "2"}
with open(os.environ["FIELDCRAFT_TASK"]) as file:
    question = json.load(file)["question"]
messages, right = [], 0
for letter in question:
    messages.append({"role": "user", "content": letter})
    body = json.dumps({"model": "policy", "max_tokens": 100, "messages": messages})
    request = urllib.request.Request(
        os.environ["ANTHROPIC_BASE_URL"] + "/v1/messages",
        body.encode(),
        {"content-type": "application/json", "x-api-key": os.environ["ANTHROPIC_API_KEY"]},
    )
    with urllib.request.urlopen(request) as response:
        message = json.load(response)
    messages.append({"role": "assistant", "content": message["content"]})
    right += message["content"][0]["text"].startswith(PARTNERS[letter])
with open("reward.txt", "w") as file:
    file.write(str(right / len(question)))
