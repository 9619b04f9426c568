"""write_gguf.py OUT MODEL…: writes each Hugging Face folder MODEL as GGUF files OUT/MODEL/TYPE.gguf, laid out as llama.cpp's converter does,
and beside each a folder OUT/MODEL/TYPE with the same model in Hugging Face's layout, its weights those that quantising leaves.
Models that the gguf package has no layout for, such as vision towers, are left out: it prints a line on each of them."""
import json
import math
import re
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from safetensors.numpy import load_file, save_file

ARCHS = {"LlamaForCausalLM": "llama", "MixtralForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3",
         "Qwen3MoeForCausalLM": "qwen3moe", "OlmoeForCausalLM": "olmoe", "Gemma2ForCausalLM": "gemma2", "Gemma3ForCausalLM": "gemma3"}
EXPERT = re.compile(r"(.*\.experts)\.(\d+)\.(\w+)\.weight")
TYPES = "F32 F16 BF16 Q4_0 Q4_1 Q5_0 Q5_1 Q8_0".split()  # the package cannot quantise to others


def unfit(c):
    """Why llama.cpp has no layout for the model, if so."""
    arch = ARCHS.get(c["architectures"][0])
    window = c.get("sliding_window") and c.get("use_sliding_window", True)
    if arch is None:
        return f"no layout for {c['architectures'][0]}"
    if window and not arch.startswith("gemma"):
        return f"no windows in {arch}"


def metadata(w, c, arch):
    heads, head_dim = c["num_attention_heads"], c.get("head_dim") or c["hidden_size"] // c["num_attention_heads"]
    w.add_context_length(c["max_position_embeddings"])
    w.add_embedding_length(c["hidden_size"])
    w.add_block_count(c["num_hidden_layers"])
    w.add_feed_forward_length(c["intermediate_size"])
    w.add_head_count(heads)
    w.add_head_count_kv(c["num_key_value_heads"])
    w.add_layer_norm_rms_eps(c["rms_norm_eps"])
    w.add_eos_token_id(c["eos_token_id"])
    if c.get("head_dim"):
        w.add_key_length(head_dim)
        w.add_value_length(head_dim)
    if arch == "llama":
        w.add_vocab_size(c["vocab_size"])
        w.add_rope_dimension_count(head_dim)
    rope = c["rope_parameters"]
    if local := rope.get("sliding_attention"):
        w.add_rope_freq_base_swa(local["rope_theta"])
    rope = rope.get("full_attention", rope)
    if arch != "gemma2":  # whose base llama.cpp knows
        w.add_rope_freq_base(rope["rope_theta"])
    if rope["rope_type"] in ("linear", "yarn"):
        w.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        w.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        w.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        w.add_rope_scaling_yarn_beta_fast(rope.get("beta_fast") or 32)
        w.add_rope_scaling_yarn_beta_slow(rope.get("beta_slow") or 1)
    if rope["rope_type"] == "llama3":
        w.add_tensor("rope_freqs.weight", llama3(rope, head_dim))
    if experts := c.get("num_local_experts", c.get("num_experts")):
        w.add_expert_count(experts)
        w.add_expert_used_count(c["num_experts_per_tok"])
    if "moe_intermediate_size" in c:
        w.add_expert_feed_forward_length(c["moe_intermediate_size"])
    if c.get("norm_topk_prob", arch == "qwen3moe") != (arch == "qwen3moe"):  # no converter writes it; the key is llama.cpp's
        w.add_expert_weights_norm(c["norm_topk_prob"])
    if c.get("clip_qkv"):  # likewise
        w.add_clamp_kqv(c["clip_qkv"])
    if "sliding_attention" in c.get("layer_types", ()):
        w.add_sliding_window(c["sliding_window"])
        w.add_sliding_window_pattern([t == "sliding_attention" for t in c["layer_types"]])
    if c.get("query_pre_attn_scalar", head_dim) != head_dim:
        w.add_attention_scale(c["query_pre_attn_scalar"] ** -0.5)
    if "attn_logit_softcapping" in c:
        w.add_attn_logit_softcapping(c["attn_logit_softcapping"] or 0)
    if "final_logit_softcapping" in c:
        w.add_final_logit_softcapping(c["final_logit_softcapping"] or 0)


def llama3(rope, head_dim):
    factor, low, high = rope["factor"], rope["low_freq_factor"], rope["high_freq_factor"]
    original, factors = rope["original_max_position_embeddings"], []
    for i in range(0, head_dim, 2):
        wavelength = 2 * math.pi * rope["rope_theta"] ** (i / head_dim)
        smooth = (original / wavelength - low) / (high - low)
        factors.append(1 / ((1 - min(max(smooth, 0), 1)) / factor + min(max(smooth, 0), 1)))
    return np.array(factors, dtype=np.float32)


def permute(x, heads):
    """Rows of each head, half after half, become pairs."""
    return x.reshape(heads, 2, x.shape[0] // heads // 2, *x.shape[1:]).swapaxes(1, 2).reshape(x.shape)


def quantise(x, kind):
    """The bytes of x, their type, and the values that are left."""
    if x.ndim == 1:
        kind = Type.F32
    elif x.shape[-1] % GGML_QUANT_SIZES[kind][0]:
        kind = Type.F16  # as llama.cpp falls back
    data = gguf.quants.quantize(x, kind)
    return data, kind, gguf.quants.dequantize(data, kind)


def write(model, out, kind, c, arch):
    w = gguf.GGUFWriter(out / f"{kind.name}.gguf", arch)
    metadata(w, c, arch)
    layers = c["num_hidden_layers"]
    code = {v: k for k, v in gguf.MODEL_ARCH_NAMES.items()}
    names = [gguf.get_tensor_name_map(code[a], layers) for a in (arch, "llama")]  # dense layers among sparse ones have llama's names
    left, together, experts = {}, {}, c.get("num_local_experts", c.get("num_experts"))
    for name, x in load_file(model / "model.safetensors").items():
        stored = x
        if arch == "llama" and ".q_proj." in name:
            stored = permute(x, c["num_attention_heads"])
        if arch == "llama" and ".k_proj." in name:
            stored = permute(x, c["num_key_value_heads"])
        if arch.startswith("gemma") and name.endswith("norm.weight"):
            stored = x + np.float32(1)
            x = stored - np.float32(1)
        data, stored_as, _ = quantise(stored, kind)
        left[name] = quantise(x, kind)[2]
        if m := EXPERT.fullmatch(name):
            name = f"{m[1]}.{m[3]}.weight"
            together.setdefault(name, {})[int(m[2])] = data
            if len(together[name]) < experts:
                continue
            data = np.stack([together[name][i] for i in range(experts)])
        to = next(filter(None, (n.get_name(name, try_suffixes=(".weight", ".bias")) for n in names)))
        w.add_tensor(to, data, raw_dtype=stored_as)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()
    (out / kind.name).mkdir()
    shutil.copy(model / "config.json", out / kind.name)
    save_file(left, out / kind.name / "model.safetensors")


for model in map(Path, sys.argv[2:]):
    config = json.loads((model / "config.json").read_text())
    if reason := unfit(config):
        print(f"{model.name}: {reason}")
        continue
    (Path(sys.argv[1]) / model.name).mkdir()
    for kind in TYPES:
        write(model, Path(sys.argv[1]) / model.name, Type[kind], config, ARCHS[config["architectures"][0]])
