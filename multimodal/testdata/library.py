"""library.py: what the tokenizers library makes of tokenizers and texts.

A JSON line in, {"file": text of a tokenizer.json, "texts"}; a line out, {"error"}, or a list with each text's {"ids", "special": ids with
special tokens around them, "decoded": text of ids}.
"""
import json
import sys

from tokenizers import Tokenizer

for line in sys.stdin:
    job = json.loads(line)
    try:
        tokenizer = Tokenizer.from_str(job["file"])
        answer = []
        for text in job["texts"]:
            ids, special = (tokenizer.encode(text, add_special_tokens=add).ids for add in (False, True))
            answer.append({"ids": ids, "special": special, "decoded": tokenizer.decode(ids, skip_special_tokens=False)})
    except BaseException as e:  # the library's panics are no Exception
        answer = {"error": str(e)}
    print(json.dumps(answer), flush=True)
