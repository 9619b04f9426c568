"""Measures molt's server and vLLM's in turns with one client, /v1/completions with token ids in and out, under the Python of scripts/vllm.

serve.py OURS...   reads a job as JSON on standard input and prints its figures as JSON: see both in main.go. OURS is molt's command
                   but for the address. Both servers run at once: one that nobody asks computes nothing.
"""
import asyncio
import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import statistics
import subprocess
import sys
import time

import aiohttp

import peers


def on_stop(handler):
    signal.signal(signal.SIGINT, handler)
    signal.signal(signal.SIGTERM, handler)


def stop(*_):
    on_stop(signal.SIG_IGN)  # nothing interrupts the end of the servers
    sys.exit("stopped")


@contextlib.contextmanager
def server(log, *command):
    """Runs the command with a free port in the place of PORT: a process group of its own, which only this process stops."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    env = os.environ | {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", "VLLM_CPU_KVCACHE_SPACE": "2"}
    with open(log, "w") as out:
        command = [c.replace("PORT", str(port)) for c in command]
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out, env=env, start_new_session=True)
    try:
        wait(process, port, log)
        yield process, port, log
    finally:
        on_stop(signal.SIG_IGN)
        for number in signal.SIGTERM, signal.SIGKILL:  # the second one also ends what the first process leaves behind
            with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
                os.killpg(process.pid, number)
                process.wait(20)


def wait(process, port, log):
    for _ in range(9000):  # 15 minutes: vLLM compiles first, long on a busy machine
        if process.poll() is not None:
            sys.exit(f"the server ended before it was ready, with status {process.returncode}: see {log}")
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
            connection.request("GET", "/health")
            if connection.getresponse().status == 200:
                return
        time.sleep(0.1)
    sys.exit(f"the server was not ready in 15 minutes: see {log}")


def peak(process):
    """The sum of the peaks of resident memory in the process group, in MiB."""
    total = 0
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):  # it has just ended
            if os.getpgid(int(pid)) == process.pid:
                with open(f"/proc/{pid}/status") as status:
                    total += int(re.search(r"VmHWM:\s*(\d+)", status.read())[1]) / 1024
    return total


async def wave(session, job, batch, new, stream=False):
    """So many requests at once: tokens/s, or the median milliseconds to the first token."""

    async def ask():
        prompt = [random.randrange(100, 40_000) for _ in range(job["length"])]
        body = {"model": "policy", "prompt": prompt, "max_tokens": new, "temperature": 1.0, "ignore_eos": True, "logprobs": 0,
                "return_token_ids": True, "stream": stream}
        count, first, start = 0, 0.0, time.perf_counter()
        async with session.post("/v1/completions", json=body) as response:
            if response.status != 200:
                raise ValueError(response.status, await response.text())
            async for line in response.content:
                line = line.removeprefix(b"data: ").strip()
                if line.startswith(b"{"):
                    count += len(json.loads(line)["choices"][0]["token_ids"])
                    first = first or (time.perf_counter() - start) * 1e3
        if count != new:
            raise ValueError(f"{count} tokens instead of {new}")
        return first

    start = time.perf_counter()
    firsts = await asyncio.gather(*[ask() for _ in range(batch)])
    return statistics.median(firsts) if stream else batch * new / (time.perf_counter() - start)


async def measure(job, port, log, batch, first):
    connector, timeout = aiohttp.TCPConnector(limit=0), aiohttp.ClientTimeout(total=1200)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}", connector=connector, timeout=timeout) as session:
        try:
            await wave(session, job, batch, 4)  # to warm up
            rate = await wave(session, job, batch, job["new"])
            # The last request has its first token long before the first request has 16.
            return rate, await wave(session, job, batch, 16, stream=True) if first else 0
        except (aiohttp.ClientError, ValueError) as error:
            sys.exit(f"{error!r}: see {log}")


def main(*ours):
    on_stop(stop)
    job = json.load(sys.stdin)
    dtype, names, figures = job["dtype"], set(job["figures"]), []
    peers.torch.set_num_threads(job["threads"])
    ours += "-addr", "127.0.0.1:PORT"
    vllm = [os.path.join(os.path.dirname(sys.executable), "vllm"), "serve", peers.folder(job), "--dtype", dtype, "--max-model-len", "2048",
            "--served-model-name", "policy", "--host", "127.0.0.1", "--port", "PORT"]
    with server(f"build/serve-molt-{dtype}.log", *ours) as molt, server(f"build/serve-vllm-{dtype}.log", *vllm) as peer:
        for batch in 1, 8, 32, 64:
            rate = {"name": f"serve_b{batch}_{dtype}", "unit": "tokens/s", "sides": [[], []]}
            first = {"name": f"serve_ttft_b{batch}", "unit": "ms", "sides": [[], []]}
            if not names & {rate["name"], first["name"], "serve_memory"}:
                continue
            figures += [rate | peers.products(job | {"batch": batch}), first]
            for _ in range(job["rounds"]):
                for side, (_, *address) in enumerate([molt, peer]):
                    numbers = asyncio.run(measure(job, *address, batch, first["name"] in names))
                    for figure, number in zip([rate, first], numbers):
                        figure["sides"][side].append(number)
                print(rate, first, file=sys.stderr)
        figures.append({"name": "serve_memory", "unit": "MiB", "sides": [[peak(molt[0])], [peak(peer[0])]]})
    json.dump(figures, sys.stdout)


main(*sys.argv[1:])
