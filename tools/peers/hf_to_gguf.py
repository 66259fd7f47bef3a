#!/usr/bin/env python3
"""A checkpoint in the official DeepSeek-V4 layout as GGUF (architecture deepseek4), so that llama.cpp runs the same
weights.

    hf_to_gguf.py CHECKPOINT OUT.gguf [--dense q8_0|bf16|f32]

Routed experts stay bit-exact (MXFP4 holds the same codes and scales). Other matrices become --dense: bf16 is exact for
fp8 codes under power-of-two scales, q8_0 is what people run. Vectors, hyper-connections and routers are f32. The file
carries a stand-in vocabulary: speed is measured on token ids. MTP blocks are left out.
"""
import argparse
import json
import os
import struct
import sys

import numpy as np

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "nano", "reference"))
import numfmt  # noqa: E402

# Tensor types of GGUF.
F32, Q8_0, I32, BF16, MXFP4 = 0, 8, 26, 30, 39
# Value types of its metadata.
V_UINT32, V_INT32, V_FLOAT32, V_BOOL, V_STRING, V_ARRAY = 4, 5, 6, 7, 8, 9
ALIGNMENT = 32

TOP_NAMES = {
    "embed.weight": "token_embd.weight",
    "norm.weight": "output_norm.weight",
    "head.weight": "output.weight",
    "hc_head_base": "output_hc_base.weight",
    "hc_head_fn": "output_hc_fn.weight",
    "hc_head_scale": "output_hc_scale.weight",
}
LAYER_NAMES = {
    "hc_attn_base": "hc_attn_base.weight",
    "hc_attn_fn": "hc_attn_fn.weight",
    "hc_attn_scale": "hc_attn_scale.weight",
    "hc_ffn_base": "hc_ffn_base.weight",
    "hc_ffn_fn": "hc_ffn_fn.weight",
    "hc_ffn_scale": "hc_ffn_scale.weight",
    "attn_norm.weight": "attn_norm.weight",
    "ffn_norm.weight": "ffn_norm.weight",
    "attn.attn_sink": "attn_sinks.weight",
    "attn.wq_a.weight": "attn_q_a.weight",
    "attn.wq_b.weight": "attn_q_b.weight",
    "attn.q_norm.weight": "attn_q_a_norm.weight",
    "attn.wkv.weight": "attn_kv.weight",
    "attn.kv_norm.weight": "attn_kv_a_norm.weight",
    "attn.wo_a.weight": "attn_output_a.weight",
    "attn.wo_b.weight": "attn_output_b.weight",
    "attn.compressor.ape": "attn_compressor_ape.weight",
    "attn.compressor.wkv.weight": "attn_compressor_kv.weight",
    "attn.compressor.wgate.weight": "attn_compressor_gate.weight",
    "attn.compressor.norm.weight": "attn_compressor_norm.weight",
    "attn.indexer.wq_b.weight": "indexer.attn_q_b.weight",
    "attn.indexer.weights_proj.weight": "indexer.proj.weight",
    "attn.indexer.compressor.ape": "indexer_compressor_ape.weight",
    "attn.indexer.compressor.wkv.weight": "indexer_compressor_kv.weight",
    "attn.indexer.compressor.wgate.weight": "indexer_compressor_gate.weight",
    "attn.indexer.compressor.norm.weight": "indexer_compressor_norm.weight",
    "ffn.gate.weight": "ffn_gate_inp.weight",
    "ffn.gate.bias": "exp_probs_b.bias",
    "ffn.gate.tid2eid": "ffn_gate_tid2eid.weight",
    "ffn.shared_experts.w1.weight": "ffn_gate_shexp.weight",
    "ffn.shared_experts.w3.weight": "ffn_up_shexp.weight",
    "ffn.shared_experts.w2.weight": "ffn_down_shexp.weight",
}
EXPERT_NAMES = {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}
# Parts of GGUF names whose matrices llama.cpp wants as f32.
ALWAYS_F32 = ("norm", "hc_", "ape", "sink", "bias", "gate_inp")


class Checkpoint:
    """Tensors of all shards, mapped: name -> (dtype label, shape, bytes)."""

    def __init__(self, folder):
        with open(os.path.join(folder, "config.json")) as f:
            self.config = json.load(f)
        self.tensors = {}
        for file_name in sorted(os.listdir(folder)):
            if not file_name.endswith(".safetensors"):
                continue
            path = os.path.join(folder, file_name)
            with open(path, "rb") as f:
                (header_bytes,) = struct.unpack("<Q", f.read(8))
                header = json.loads(f.read(header_bytes))
            data = np.memmap(path, np.uint8, "r", offset=8 + header_bytes)
            for name, tensor in header.items():
                if name != "__metadata__":
                    begin, end = tensor["data_offsets"]
                    self.tensors[name] = (tensor["dtype"], tensor["shape"], data[begin:end])

    def floats(self, name):
        label, shape, raw = self.tensors[name]
        if label == "F32":
            return raw.view(np.float32).reshape(shape)
        if label == "BF16":
            return numfmt.bf16_decode(raw.view(np.uint16)).reshape(shape)
        if label == "F8_E4M3":
            _, scale_shape, scale_raw = self.tensors[name.removesuffix("weight") + "scale"]
            scale = numfmt.ue8m0_decode(scale_raw).astype(np.float32).reshape(scale_shape)
            blocks = np.repeat(np.repeat(scale, 128, 0), 128, 1)[:shape[0], :shape[1]]
            return E4M3_VALUES[raw].reshape(shape) * blocks
        raise ValueError(f"{name}: dtype {label}")

    def ids(self, name):
        label, shape, raw = self.tensors[name]
        return raw.view({"I64": np.int64, "I32": np.int32}[label]).reshape(shape).astype(np.int32)

    def mxfp4(self, name):
        """Blocks of 32: the scale byte, then codes 0..15 in the low and 16..31 in the high nibbles."""
        _, shape, raw = self.tensors[name]
        _, scale_shape, scale = self.tensors[name.removesuffix("weight") + "scale"]
        codes = numfmt.fp4_unpack(raw.reshape(shape)).reshape(shape[0], -1, 32)
        packed = codes[..., :16] | (codes[..., 16:] << 4)
        return np.concatenate([scale.reshape(scale_shape)[..., None], packed], -1).reshape(-1)


E4M3_VALUES = numfmt.e4m3_decode(np.arange(256))


def q8_0(x):
    """Blocks of 32: an fp16 scale, then int8 codes."""
    blocks = x.reshape(-1, 32)
    scale = (np.abs(blocks).max(1) / 127).astype(np.float16)
    divisor = np.where(scale == 0, 1, scale.astype(np.float32))
    codes = np.rint(blocks / divisor[:, None]).clip(-127, 127).astype(np.int8)
    return np.concatenate([scale.view(np.uint8).reshape(-1, 2), codes.view(np.uint8)], 1)


def tensor_bytes(gguf_type, shape):
    count = int(np.prod(shape))
    return {F32: 4 * count, I32: 4 * count, BF16: 2 * count, Q8_0: count // 32 * 34, MXFP4: count // 32 * 17}[gguf_type]


def plan_tensors(checkpoint, dense_type):
    """[(GGUF name, type, shape as numpy has it, function that makes the values)]"""
    planned = []

    def plan(name, gguf_name):
        label, shape, _ = checkpoint.tensors[name]
        if label in ("I64", "I32"):
            planned.append((gguf_name, I32, shape, lambda: checkpoint.ids(name)))
            return
        keep = len(shape) < 2 or any(part in gguf_name for part in ALWAYS_F32)
        gguf_type = F32 if keep else dense_type
        make = {
            F32: lambda: checkpoint.floats(name).astype(np.float32),
            BF16: lambda: numfmt.bf16_encode(checkpoint.floats(name)),
            Q8_0: lambda: q8_0(checkpoint.floats(name)),
        }[gguf_type]
        planned.append((gguf_name, gguf_type, shape, make))

    for name, gguf_name in TOP_NAMES.items():
        plan(name, gguf_name)
    experts = range(checkpoint.config["n_routed_experts"])
    for layer in range(checkpoint.config["num_hidden_layers"]):
        for part, gguf_name in LAYER_NAMES.items():
            if f"layers.{layer}.{part}" in checkpoint.tensors:
                plan(f"layers.{layer}.{part}", f"blk.{layer}.{gguf_name}")
        for matrix, gguf_name in EXPERT_NAMES.items():
            names = [f"layers.{layer}.ffn.experts.{e}.{matrix}.weight" for e in experts]
            rows, packed_cols = checkpoint.tensors[names[0]][1]
            planned.append((f"blk.{layer}.{gguf_name}.weight", MXFP4, [len(names), rows, 2 * packed_cols],
                            lambda names=names: np.concatenate([checkpoint.mxfp4(name) for name in names])))
    return planned


def string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


PACK = {
    V_UINT32: lambda v: struct.pack("<I", v),
    V_INT32: lambda v: struct.pack("<i", v),
    V_FLOAT32: lambda v: struct.pack("<f", v),
    V_BOOL: lambda v: struct.pack("<B", v),
    V_STRING: string,
}


def metadata(config):
    """Key-value pairs as bytes, one per element."""
    pairs = []

    def put(key, value_type, value):
        pairs.append(string(key) + struct.pack("<I", value_type) + PACK[value_type](value))

    def put_array(key, value_type, values):
        pairs.append(string(key) + struct.pack("<IIQ", V_ARRAY, value_type, len(values)) +
                     b"".join(map(PACK[value_type], values)))

    layers = config["num_hidden_layers"]
    scaling = config["rope_scaling"]
    put("general.architecture", V_STRING, "deepseek4")
    put("general.name", V_STRING, "peer")
    put("general.alignment", V_UINT32, ALIGNMENT)
    counts = {
        "vocab_size": config["vocab_size"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": layers,
        "feed_forward_length": config["moe_intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": 1,
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "rope.dimension_count": config["qk_rope_head_dim"],
        "attention.q_lora_rank": config["q_lora_rank"],
        "attention.output_lora_rank": config["o_lora_rank"],
        "attention.output_group_count": config["o_groups"],
        "expert_feed_forward_length": config["moe_intermediate_size"],
        "expert_count": config["n_routed_experts"],
        "expert_used_count": config["num_experts_per_tok"],
        "expert_shared_count": config["n_shared_experts"],
        "hash_layer_count": config["num_hash_layers"],
        "attention.sliding_window": config["sliding_window"],
        "attention.indexer.head_count": config["index_n_heads"],
        "attention.indexer.key_length": config["index_head_dim"],
        "attention.indexer.top_k": config["index_topk"],
        "hyper_connection.count": config["hc_mult"],
        "hyper_connection.sinkhorn_iterations": config["hc_sinkhorn_iters"],
        "expert_gating_func": 4,  # sqrt of softplus
        "rope.scaling.original_context_length": scaling["original_max_position_embeddings"],
    }
    for key, value in counts.items():
        put("deepseek4." + key, V_UINT32, value)
    numbers = {
        "rope.freq_base": config["rope_theta"],
        "attention.compress_rope_freq_base": config["compress_rope_theta"],
        "attention.layer_norm_rms_epsilon": config["rms_norm_eps"],
        "expert_weights_scale": config["routed_scaling_factor"],
        "hyper_connection.epsilon": config["hc_eps"],
        "rope.scaling.factor": scaling["factor"],
        "rope.scaling.yarn_beta_fast": scaling["beta_fast"],
        "rope.scaling.yarn_beta_slow": scaling["beta_slow"],
    }
    for key, value in numbers.items():
        put("deepseek4." + key, V_FLOAT32, float(value))
    put("deepseek4.rope.scaling.type", V_STRING, "yarn")
    put("deepseek4.expert_weights_norm", V_BOOL, True)
    put_array("deepseek4.attention.compress_ratios", V_UINT32, config["compress_ratios"][:layers])
    put_array("deepseek4.swiglu_clamp_exp", V_FLOAT32, [config["swiglu_limit"]] * layers)

    tokens = ["<s>", "</s>"] + [f"t{i}" for i in range(config["vocab_size"] - 2)]
    put("tokenizer.ggml.model", V_STRING, "gpt2")
    put("tokenizer.ggml.pre", V_STRING, "default")
    put_array("tokenizer.ggml.tokens", V_STRING, tokens)
    put_array("tokenizer.ggml.token_type", V_INT32, [3, 3] + [1] * (len(tokens) - 2))  # control, normal
    put_array("tokenizer.ggml.merges", V_STRING, ["t 0"])
    put("tokenizer.ggml.bos_token_id", V_UINT32, 0)
    put("tokenizer.ggml.eos_token_id", V_UINT32, 1)
    return pairs


def padding(size):
    return b"\0" * (-size % ALIGNMENT)


def write_gguf(path, pairs, planned):
    """Header, then the tensors one after the other: one is in memory at a time. Returns the bytes of all tensors."""
    infos, offset = [], 0
    for name, gguf_type, shape, _ in planned:
        dims = b"".join(struct.pack("<Q", d) for d in reversed(shape))
        infos.append(string(name) + struct.pack("<I", len(shape)) + dims + struct.pack("<IQ", gguf_type, offset))
        size = tensor_bytes(gguf_type, shape)
        offset += size + len(padding(size))
    header = b"GGUF" + struct.pack("<IQQ", 3, len(planned), len(pairs)) + b"".join(pairs) + b"".join(infos)
    with open(path, "wb") as f:
        f.write(header + padding(len(header)))
        for name, gguf_type, shape, make in planned:
            values = np.ascontiguousarray(make())
            if values.nbytes != tensor_bytes(gguf_type, shape):
                sys.exit(f"{name}: {values.nbytes} bytes, expected {tensor_bytes(gguf_type, shape)}")
            f.write(values.tobytes() + padding(values.nbytes))
    return offset


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint")
    parser.add_argument("out")
    parser.add_argument("--dense", choices=["q8_0", "bf16", "f32"], default="q8_0")
    args = parser.parse_args()
    checkpoint = Checkpoint(args.checkpoint)
    planned = plan_tensors(checkpoint, {"q8_0": Q8_0, "bf16": BF16, "f32": F32}[args.dense])
    size = write_gguf(args.out, metadata(checkpoint.config), planned)
    print(f"{args.out}: {len(planned)} tensors, {size / 1e9:.2f} GB")


if __name__ == "__main__":
    main()
