"""Adapters (LoRA, as PEFT writes them) that are put on a running model, changed for others, and taken off. The model's own weights are
mapped from their file and stay as they are.

    python lora_adapters.py base.safetensors adapter/ other-adapter/
"""
import json
import re
import sys

import torch

import sluice

NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


def read_adapter(uri):
    """{layer: (A, B, scale)} of a folder with adapter_config.json and adapter_model.safetensors, wherever it is."""
    with sluice.open(uri, framework="torch") as found:
        config = json.loads(bytes(found.files["adapter_config.json"].memoryview()))
        halves = {NAME.fullmatch(name).groups(): tensor for name, tensor in found.load().items()}
    scale = config["lora_alpha"] / config["r"]
    return {layer: (halves[layer, "A"], halves[layer, "B"], scale) for layer, half in halves if half == "A"}


class Layer(torch.nn.Module):
    """A linear layer on which an adapter may lie."""

    def __init__(self, weight):
        super().__init__()
        self.weight, self.adapter = weight, None

    def forward(self, x):
        y = x @ self.weight.t()
        if self.adapter is None:
            return y
        a, b, scale = self.adapter
        return y + (x @ a.t() @ b.t()) * scale


if len(sys.argv) < 2:
    sys.exit(__doc__)
base, *adapters = sys.argv[1:]
weights = sluice.load(base)
layers = {name[:-len(".weight")]: Layer(weight) for name, weight in weights.items() if name.endswith(".weight") and weight.dim() == 2}


def answers():
    """What each layer makes of ones."""
    return [layer(torch.ones(1, layer.weight.shape[1])) for layer in layers.values()]


plain = answers()
for uri in adapters:
    found = read_adapter(uri)
    for name, layer in layers.items():
        layer.adapter = found.get(name)
    for (name, layer), answer in zip(layers.items(), answers()):
        a, b, scale = found.get(name, (torch.zeros(1, layer.weight.shape[1]), torch.zeros(layer.weight.shape[0], 1), 1))
        merged = torch.ones(1, a.shape[1]) @ (layer.weight + scale * (b @ a)).t()
        assert torch.allclose(answer, merged, atol=1e-4)
    print(f"{uri}: {len(found)} of {len(layers)} layers adapted")
for layer in layers.values():
    layer.adapter = None
assert all(torch.equal(*pair) for pair in zip(plain, answers()))
print("and as before without them")
