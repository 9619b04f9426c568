"""The other side of the benchmarks: transformers, PyTorch and TRL as a Python user would run them.

peers.py export GGUF FOLDER   writes the model of a .gguf file as a Hugging Face folder
peers.py run                  reads a job as JSON on standard input and prints a report as JSON: see both in main.go
"""
import gzip
import json
import math
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time

import tokenizers
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging


def generate(job):
    model = load(job).eval()
    vocab, batch, length = model.config.vocab_size, job["batch"], job["length"]

    @torch.no_grad()
    def tokens(new):
        ids = torch.randint(100, vocab - 100, (batch, length))
        out = model.generate(
            ids, attention_mask=torch.ones_like(ids), pad_token_id=0, do_sample=True, temperature=1.0, top_k=0, top_p=1.0,
            min_new_tokens=new, max_new_tokens=new)
        assert out.shape == (batch, length + new)

    tokens(4)  # to warm up
    start = time.perf_counter()
    tokens(job["new"])
    return {"value": batch * job["new"] / (time.perf_counter() - start)} | products(job, model)


@torch.no_grad()
def products(job, model=None):
    """Tokens/s of the matrix products of a decode step alone, those of one input fused."""
    model, batch = model or load(job), job["batch"]
    weights = [model.lm_head.weight]
    for layer in model.model.layers:
        a, m = layer.self_attn, layer.mlp
        weights += [torch.cat([a.q_proj.weight, a.k_proj.weight, a.v_proj.weight]), a.o_proj.weight,
                    torch.cat([m.gate_proj.weight, m.up_proj.weight]), m.down_proj.weight]
    inputs = [torch.zeros(batch, w.shape[1], dtype=w.dtype) for w in weights]
    times = []
    for _ in range(5):
        start = time.perf_counter()
        for x, w in zip(inputs, weights):
            torch.nn.functional.linear(x, w)
        times.append(time.perf_counter() - start)
    return {"bound": batch / min(times)}


@torch.no_grad()
def refit(job):
    source = [p.float() for p in load(job).parameters()]
    target = [p.to(getattr(torch, job["dtype"]), copy=True) for p in source]
    times = []
    for _ in range(1 + job["steps"]):
        start = time.perf_counter()
        for t, p in zip(target, source):
            t.copy_(p)
        times.append(time.perf_counter() - start)
    return {"value": statistics.median(times[1:]) * 1e3}


def train(job):
    model = load(job).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=job["lr"])
    batch, length = job["batch"], job["length"]
    rows = (torch.arange(batch * length) * 7919 % (model.config.vocab_size - 200) + 100).reshape(batch, length)

    def step():
        optimizer.zero_grad()
        total = 0.0
        for micro in rows.split(job["micro"]):
            loss = model(input_ids=micro, labels=micro).loss * len(micro) / batch
            loss.backward()
            total += loss.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return total

    first, start = step(), time.perf_counter()
    for _ in range(job["steps"]):
        step()
    return {"value": job["steps"] * rows.numel() / (time.perf_counter() - start), "loss": first}


@torch.no_grad()
def adamw(job):  # gradients are the weights; the fastest step counts
    params = list(load(job).parameters())
    for p in params:
        p.grad = p.clone()
    optimizer = torch.optim.AdamW(params, lr=job["lr"], weight_decay=0.01, fused=True)
    optimizer.step()
    loss, times = sum(p.abs().sum().item() for p in params) / sum(p.numel() for p in params), []
    for _ in range(job["steps"]):
        start = time.perf_counter()
        optimizer.step()
        times.append(time.perf_counter() - start)
    return {"value": min(times), "loss": loss}


def grpo(job):
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    ends = []

    class Clock(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            ends.append(time.perf_counter())

    def reward(completions, answer, **_):  # that of our environment "largest"
        found = [re.findall(r"-?[0-9]+", c[0]["content"]) for c in completions]
        return [float(f == [a]) for f, a in zip(found, answer)]

    with open("bench/tasks.jsonl") as file:
        tasks = [json.loads(line) for line in file]
    data = Dataset.from_list([{"prompt": t["messages"], "answer": t["answer"]} for t in tasks])
    with tempfile.TemporaryDirectory(prefix="molt-bench-") as out:
        config = GRPOConfig(
            output_dir=out, use_cpu=True, bf16=False, gradient_checkpointing=False, max_steps=1 + job["steps"],
            per_device_train_batch_size=job["batch"] * job["samples"], num_generations=job["samples"], max_completion_length=job["new"],
            temperature=1.0, top_p=1.0, top_k=0, beta=0.0, loss_type="dapo", shuffle_dataset=False,
            learning_rate=job["lr"], lr_scheduler_type="constant", adam_beta2=0.95, weight_decay=0.0, max_grad_norm=1.0,
            logging_steps=1, report_to="none", save_strategy="no", disable_tqdm=True)
        GRPOTrainer(
            model=load(job), reward_funcs=reward, args=config, train_dataset=data, callbacks=[Clock()],
            processing_class=AutoTokenizer.from_pretrained(folder(job), padding_side="left")).train()
    assert len(ends) == 1 + job["steps"]
    return {"value": (ends[-1] - ends[0]) / job["steps"]}


def allreduce(job):
    if "RANK" not in os.environ:  # this process starts the other rank
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        os.environ.update(RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
        other = subprocess.Popen([sys.executable, __file__, "run"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
        other.stdin.write(json.dumps(job).encode())
        other.stdin.close()
        os.environ["RANK"] = "0"
    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    x = torch.full((job["length"],), 1.0 + torch.distributed.get_rank(), dtype=getattr(torch, job["dtype"]))
    times = []
    for _ in range(1 + job["steps"]):
        start = time.perf_counter()
        torch.distributed.all_reduce(x)
        times.append(time.perf_counter() - start)
    torch.distributed.destroy_process_group()
    return {"value": statistics.median(times[1:]), "loss": x[-1].item()}


def op(job):
    x, w, b = torch.full((1, 64), 0.5), torch.full((64, 64), 0.25), torch.full((64,), 1.0)
    u, v = torch.full((64,), 0.5, requires_grad=True), torch.full((64,), 0.25, requires_grad=True)
    linear = torch.nn.functional.linear

    def backward():
        (u * v).sum().backward()
        grad = u.grad
        u.grad = v.grad = None
        return grad

    run = {"op_add": lambda: x + x, "op_linear": lambda: linear(x, w, b), "op_backward": backward}[job["name"]]
    times = []
    for _ in range(15):
        start = time.perf_counter()
        for _ in range(job["steps"]):
            run()
        times.append(time.perf_counter() - start)
    return {"value": min(times) / job["steps"] * 1e6, "loss": run().sum().item()}


def encode(job):
    tokenizer = tokenizers.Tokenizer.from_file(os.path.join(folder(job), "tokenizer.json"))
    with gzip.open("testdata/reference/text/strings.jsonl.gz") as file:
        lines = [json.loads(line) for line in file]
    texts = [line["text"] for line in lines if line["kind"].startswith("lang_") or line["kind"] == "chat"]

    def once():
        return sum(len(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts)

    count, start = once(), time.perf_counter()
    total = sum(once() for _ in range(job["steps"]))
    return {"value": total / (time.perf_counter() - start), "loss": count}


@torch.no_grad()
def estimate(job):
    size, length = job["batch"], job["length"]
    i, t = torch.arange(size)[:, None], torch.arange(length)
    rewards = (i[:, 0] * 7919 % 101).float() / 101
    kl = ((i * length + t) * 7919 % 1009).float() / 1009
    mask, values = ((t >= 256 + i % 64) & ((t + i) % 128 < 96)).float(), kl - 0.5
    num = mask.sum()

    def token_rewards():
        x = kl * mask * -1e-3
        x[i[:, 0], (mask * t).argmax(1)] += rewards
        return x

    def whiten(x):
        centred = (x - (x * mask).sum() / num) * mask
        return centred * (centred.square().sum() / num).clamp(min=1e-8).rsqrt()

    def grpo():
        r = rewards.view(-1, 8)
        r = (r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-9)
        advantages = r.view(-1, 1) * mask
        return advantages, advantages

    def reinforce():
        returns = token_rewards().flip(1).cumsum(1).flip(1) * mask
        return whiten(returns), returns

    def gae():  # a time step is a row of its own: columns would miss the cache
        r, v, on = token_rewards().T.contiguous(), values.T.contiguous(), mask.bool().T.contiguous()
        out, total, after = torch.empty_like(r), torch.zeros(size), torch.zeros(size)
        for k in reversed(range(length)):
            total = torch.where(on[k], r[k] + after - v[k] + 0.95 * total, total)
            after = torch.where(on[k], v[k], after)
            out[k] = total
        advantages = out.T.contiguous()
        return whiten(advantages), (advantages + values) * mask

    run, times = {"grpo": grpo, "reinforce": reinforce, "gae": gae}[job["name"].removeprefix("estimate_")], []
    for _ in range(1 + job["steps"]):
        start = time.perf_counter()
        advantages, returns = run()
        times.append(time.perf_counter() - start)
    sums = ((advantages + rewards[:, None]).abs() * t / length).double().sum(), returns.abs().double().sum()
    return {"value": statistics.median(times[1:]) * 1e3, "loss": (sums[0] / num * sums[1] / num).item()}


def loss(job):
    n, dtype = job["length"], getattr(torch, job["dtype"])
    h = torch.empty(n, 576, dtype=dtype).normal_().requires_grad_()
    w = torch.empty(49_152, 576, dtype=dtype).normal_(0, 0.05).requires_grad_()
    advantages, ids, times = torch.empty(n).normal_(-0.5), torch.arange(n) * 7919 % len(w), []

    def step():
        logps = torch.log_softmax(h @ w.T, -1, dtype=torch.float32)
        logp = logps.gather(1, ids[:, None])[:, 0]
        with torch.no_grad():
            entropy = -(logps.exp() * logps).sum(-1)
        ratio = (logp + math.log(len(w))).exp()  # the old policy was uniform
        value = -torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages).mean()
        value.backward()
        return entropy, value.detach()

    for _ in range(1 + job["steps"]):
        h.grad = w.grad = None
        start = time.perf_counter()
        entropy, value = step()
        times.append(time.perf_counter() - start)
    norms = [torch.linalg.vector_norm(x, 1, dtype=torch.float32).item() for x in (h.grad, w.grad)]
    return {"value": statistics.median(times[1:]), "loss": entropy.mean().item() * value.item() * math.prod(norms)}


def folder(job):
    return os.path.join(job["models"], "SmolLM2-135M-Instruct-hf")


def load(job):
    return AutoModelForCausalLM.from_pretrained(folder(job), dtype=getattr(torch, job["dtype"]))


def run():
    answer = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what the libraries print is no answer
    logging.disable_progress_bar()
    job = json.load(sys.stdin)
    torch.set_num_threads(job["threads"])
    torch.manual_seed(0)
    kinds = {"generate": generate, "products": products, "refit": refit, "train": train, "grpo": grpo, "allreduce": allreduce,
             "adamw": adamw, "op": op, "encode": encode, "estimate": estimate, "loss": loss}
    json.dump(kinds[job["kind"]](job), answer)


def export(gguf, folder):
    from tokenizers import pre_tokenizers

    where, name = os.path.split(os.path.abspath(gguf))
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
    # The file's tokenizer.ggml.pre = smollm, which transformers does not read: every digit alone, then bytes.
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    assert len(tokenizer.encode("2026", add_special_tokens=False)) == 4
    model = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    model.is_quantized, model.hf_quantizer = False, None  # the weights are plain now
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    tokenizer.save_pretrained(folder)
    model.save_pretrained(folder)


if __name__ == "__main__":
    {"run": run, "export": export}[sys.argv[1]](*sys.argv[2:])
