"""An agent in Python that molt trains as it is.

    go run ./cmd/molt -config examples/python/run.toml

It needs nothing but Python: the model's address and key are in the environment, where OpenAI's and Anthropic's packages look for them too,
the task comes on standard input, and the answer goes to standard output. A grader that run.toml names says what it is worth; an agent that
knows that by itself prints {"reward": 1} as its last line. What it writes to standard error is in runs/python/agent.log.
"""

import json
import os
import sys
import urllib.request


def reply(messages):
    """What the model says next in a conversation."""
    request = urllib.request.Request(
        os.environ["OPENAI_BASE_URL"] + "/chat/completions",
        json.dumps({"model": os.environ["MOLT_MODEL"], "messages": messages}).encode(),
        {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request) as response:  # no time limit: it may have to wait for its turn
        return json.load(response)["choices"][0]["message"]["content"]


task = json.load(sys.stdin)
messages = task["messages"]
answer = reply(messages)
if len(answer.split()) > 1:  # it was asked for a number only
    print("asking again after", repr(answer), file=sys.stderr)
    messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": "The number only, please."}]
    answer = reply(messages)
print(answer)
