"""The peer of tests/bench/generate.py: a GPT-2 under plain PyTorch that writes greedily with a cache.

Reads what weft-train exported. Linear layers are F.linear with the weights as [out, in], attention is
scaled_dot_product_attention over a preallocated cache. Prints tokens/s of reading the prompts and of decoding as JSON.
"""

import argparse
import json
import pathlib
import time

import numpy
import torch
import torch.nn.functional as F


def read_tensors(path: pathlib.Path) -> dict[str, torch.Tensor]:
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, info in header.items():
        begin, end = (8 + length + offset for offset in info["data_offsets"])
        assert info["dtype"] == "F32", info
        tensors[name] = torch.from_numpy(numpy.frombuffer(data[begin:end], "<f4").copy()).view(info["shape"])
    return tensors


class Gpt2:
    def __init__(self, folder: pathlib.Path, dtype: torch.dtype, batch: int):
        config = json.loads((folder / "config.json").read_text())
        self.heads, self.epsilon = config["n_head"], config["layer_norm_epsilon"]
        tensors = {}
        for name, tensor in read_tensors(folder / "model.safetensors").items():
            is_matrix = name.endswith("weight") and ".c_" in name
            tensors[name] = (tensor.t() if is_matrix else tensor).contiguous().to(dtype)
        self.wte, self.wpe = tensors["wte.weight"], tensors["wpe.weight"]
        self.head = tensors.get("lm_head.weight", self.wte)
        self.norm = tensors["ln_f.weight"], tensors["ln_f.bias"]
        self.layers = [{name: (tensors[f"h.{i}.{name}.weight"], tensors[f"h.{i}.{name}.bias"])
                        for name in ("ln_1", "attn.c_attn", "attn.c_proj", "ln_2", "mlp.c_fc", "mlp.c_proj")}
                       for i in range(config["n_layer"])]
        width = config["n_embd"] // self.heads
        self.cache = [torch.empty(2, batch, self.heads, config["n_positions"], width, dtype=dtype)
                      for _ in self.layers]

    def step(self, tokens: torch.Tensor, position: int) -> torch.Tensor:
        """tokens [batch, count]; their logits' last row."""
        batch, count = tokens.shape
        hidden = self.wte.shape[1]
        x = self.wte[tokens] + self.wpe[position:position + count]
        for layer, cache in zip(self.layers, self.cache):
            normed = F.layer_norm(x, (hidden,), *layer["ln_1"], self.epsilon)
            q, k, v = (part.view(batch, count, self.heads, -1).transpose(1, 2)
                       for part in F.linear(normed, *layer["attn.c_attn"]).chunk(3, -1))
            cache[0, :, :, position:position + count] = k
            cache[1, :, :, position:position + count] = v
            end = position + count
            mixed = F.scaled_dot_product_attention(q, cache[0, :, :, :end], cache[1, :, :, :end],
                                                   is_causal=count > 1)
            x = x + F.linear(mixed.transpose(1, 2).reshape(batch, count, hidden), *layer["attn.c_proj"])
            normed = F.layer_norm(x, (hidden,), *layer["ln_2"], self.epsilon)
            inner = F.gelu(F.linear(normed, *layer["mlp.c_fc"]), approximate="tanh")
            x = x + F.linear(inner, *layer["mlp.c_proj"])
        return F.linear(F.layer_norm(x[:, -1], (hidden,), *self.norm, self.epsilon), self.head)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", type=pathlib.Path)
    parser.add_argument("--precision")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--tokens", type=int)
    parser.add_argument("--prompt", type=int, default=8, help="tokens of each prompt")
    options = parser.parse_args()
    dtype = torch.bfloat16 if options.precision == "bf16" else torch.float32
    with torch.inference_mode():
        model = Gpt2(options.model, dtype, options.batch)
        prompt = (torch.arange(options.prompt) % 100 + 1).expand(options.batch, options.prompt)
        model.step(prompt[:, :8], 0)  # warms up
        begin = time.perf_counter()
        tokens = model.step(prompt, 0).argmax(-1, keepdim=True)
        prefill = time.perf_counter() - begin
        begin = time.perf_counter()
        for i in range(options.tokens - 1):
            tokens = model.step(tokens, options.prompt + i).argmax(-1, keepdim=True)
        decode = time.perf_counter() - begin
    print(json.dumps({"prefill": options.batch * options.prompt / prefill,
                      "decode": options.batch * (options.tokens - 1) / decode if options.tokens > 1 else 0}))


if __name__ == "__main__":
    main()
