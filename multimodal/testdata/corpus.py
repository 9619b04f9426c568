"""corpus.py SEED COUNT TOKENIZER.json: adversarial strings, and what the tokenizers library makes of them.

A JSON line a string: {"text", "ids", "decoded"}, decoded only where it is not the text; ids without special tokens around them.
"""
import json
import random
import sys

from tokenizers import Tokenizer

SCRIPTS = [  # ranges of characters
    (0x21, 0x7E), (0x41, 0x5A), (0x61, 0x7A), (0xA1, 0xFF), (0x100, 0x24F), (0x250, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x530, 0x58F),
    (0x590, 0x5FF), (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF), (0xE00, 0xE7F), (0x10A0, 0x10FF), (0x1100, 0x11FF),
    (0x1E00, 0x1FFF), (0x2000, 0x206F), (0x2070, 0x218F), (0x2190, 0x25FF), (0x3000, 0x30FF), (0x4E00, 0x9FFF), (0xAC00, 0xD7A3),
    (0xE000, 0xE0FF), (0xF900, 0xFAFF), (0xFB00, 0xFDFF), (0xFE00, 0xFFFF), (0x10000, 0x107FF), (0x11900, 0x119FF), (0x1D400, 0x1D7FF),
    (0x1F300, 0x1FAFF), (0x20000, 0x2A6DF), (0xE0000, 0xE01EF)]
SPACES = [" ", "  ", "   ", "\n", "\n\n", "\r\n", "\t", " \n", "\n ", "\u00a0", "\u3000", "\u2028", "\x85", "\u200b", "\x0b", "\x1c"]
DIGITS = ["0123456789", "\u0660\u0661\u0669", "\u0966\u096f", "\u00b2\u00bd\u2167", "\u4e00\u4e8c\u5341", "\U0001d7d8\U0001d7ff"]
PARTS = ["'s", "'S", "'re", "'LL", "'ve", "'d", "'\u017f", "don't", "I'M", "\u2019s", "camelCase", "HTTPServer", "\u01c5a", "snake_case",
         "x+=1;", "if (a[i] != b) {", "}\n\n\treturn", "</div>", "https://a.b/c?d=e#f", "1,234.50", "2026-01-31", "3e-7", "0x1F", "...", "!?",
         "//\n", "--\r\n", "\u2581", "\u2581\u2581", "<0x0A>", "<0xE4>", "<unk>", "</s>", "<|", "|>", "\ufffd", "\ufeff", "\U0001f468\u200d\U0001f469",
         "\U0001f1e9\U0001f1ea", "e\u0301\u0323", "\u1112\u1161\u11ab", "\u0b95\u0bbf", "the", " the", " of", "ing", "tion", "\u4f60\u597d", "\u3053\u3093"]


def char(rng):
    while True:
        c = rng.randrange(0x110000) if rng.random() < 0.05 else rng.randint(*rng.choice(SCRIPTS))
        if not 0xD800 <= c < 0xE000:
            return chr(c)


def part(rng, added):
    kind = rng.randrange(20)
    if kind < 5:
        script = rng.choice(SCRIPTS)
        word = "".join(chr(rng.randint(*script)) for _ in range(rng.randint(1, 9)))
        return rng.choice(["", " "]) + word
    if kind < 9:
        return rng.choice(PARTS)
    if kind < 13:
        return rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 3, 17])
    if kind < 15:
        return "".join(rng.choices(rng.choice(DIGITS), k=rng.randint(1, 8)))
    if kind == 15:
        return rng.choice(added)
    if kind == 16:
        token = rng.choice(added)
        return token[:rng.randint(0, len(token))]
    if kind == 17 and rng.random() < 0.2:
        return (char(rng) + rng.choice(["", "", "a", " "])) * rng.randint(10, 300)
    if kind == 18:  # the case of letters, and marks on them
        return "".join(rng.choice("aZ\u00e9\u00c9\u01c5\u02b0\u05d0\u0301\u0903") for _ in range(rng.randint(1, 8)))
    return "".join(char(rng) for _ in range(rng.randint(1, 5)))


def main(seed, count, path):
    rng, tokenizer = random.Random(int(seed)), Tokenizer.from_file(path)
    added = [t.content for _, t in sorted(tokenizer.get_added_tokens_decoder().items())] or [" "]
    for _ in range(int(count)):
        text = "".join(part(rng, added) for _ in range(rng.randint(1, 12)))
        line = {"text": text, "ids": tokenizer.encode(text, add_special_tokens=False).ids}
        decoded = tokenizer.decode(line["ids"], skip_special_tokens=False)
        if decoded != text:
            line["decoded"] = decoded
        print(json.dumps(line))


if __name__ == "__main__":
    main(*sys.argv[1:])
