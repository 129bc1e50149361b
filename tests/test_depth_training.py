"""The transformers that benchmarks train in PyTorch are the networks of kcalc."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import kcalc as kc
from benchmarks import depth_training


@pytest.mark.parametrize("name", ["shaped, no shortcuts", "DeepNorm", "AnyInit"])
def test_logits_are_those_of_the_jax_backend(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(depth_training, "BLOCKS", 2)
    variant = depth_training.VARIANTS[name]
    net = variant.build()
    model, other = depth_training.Transformer(net, variant.law, 0), kc.to_jax(net, rolled=False)
    ids = np.random.default_rng(0).integers(0, depth_training.CHARACTERS, (2, 64))
    params = {
        node: {
            part: model.weights[str(node).replace(".", "_")].detach().numpy().reshape(array.shape)
            if part == "weight"
            else np.zeros(array.shape, np.float32)
            for part, array in own.items()
        }
        for node, own in other.init(0, ids).items()
    }
    end = torch.tensor(np.asarray(other.apply(params, ids)).reshape(2, 64, -1))
    with torch.no_grad():
        expected = torch.nn.functional.rms_norm(end, (end.shape[-1],)) @ model.readout
        torch.testing.assert_close(model(torch.tensor(ids)), expected, atol=1e-4, rtol=1e-4)
