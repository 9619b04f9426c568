"""transformers_check.py MOLT MODEL SAVED: compares `MOLT score -model MODEL` with what transformers makes of the folder SAVED."""
import json
import random
import subprocess
import sys

import torch
import transformers

TOLERANCE = 1e-3  # float32 against float32, summed in another order
molt, model, saved = sys.argv[1:]
transformers.utils.logging.disable_progress_bar()
transformers.utils.logging.set_verbosity_error()
config = transformers.AutoConfig.from_pretrained(saved)
text = config.get_text_config()
made = getattr(transformers, config.architectures[0]).from_pretrained(
    saved, dtype=torch.float32, attn_implementation="eager", output_loading_info=True)
net, info = made[0].eval(), {kind: list(names) for kind, names in made[1].items() if names}
if info:
    sys.exit(f"{model}: transformers does not load what molt saved: {info}")

rng = random.Random(1)
images = {v for k, v in config.to_dict().items() if k.endswith("_token_id") and k.split("_")[0] in ("image", "video", "vision")}
ids = [[t for t in (rng.randrange(text.vocab_size) for _ in range(n)) if t not in images] for n in (2, 7, 40, min(200, text.max_position_embeddings))]
lines = "".join(json.dumps({"ids": row}) + "\n" for row in ids)
out = subprocess.run([molt, "score", "-model", model, "-dtype", "float32"], input=lines, stdout=subprocess.PIPE, text=True)
if out.returncode:
    sys.exit(f"{model}: molt score ends with {out.returncode}: {out.stdout[:2000]}")
worst = 0.0
for row, line in zip(ids, out.stdout.splitlines(), strict=True):
    with torch.no_grad():
        logits = net(input_ids=torch.tensor([row])).logits[0]
    want = logits.log_softmax(-1)[:-1].gather(1, torch.tensor(row[1:])[:, None])[:, 0]
    worst = max(worst, (want - torch.tensor(json.loads(line)["logprobs"])).abs().max().item())
print(f"{model}: {type(net).__name__}, {sum(map(len, ids))} tokens, largest difference of log-probs {worst:.2g}")
if not worst <= TOLERANCE:
    sys.exit(f"{model}: over {TOLERANCE}")
