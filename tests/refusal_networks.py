"""Networks that shaping methods refuse, each for another reason."""

from __future__ import annotations

from typing import Any

import kcalc as kc

L, A = kc.layers, kc.architectures


def _net(*steps: Any) -> kc.Network:
    """The network of steps (node, layer, parents ...), each behind the one before if not said."""
    given: list[Any] = []
    for node, layer, *parents in steps:
        if not parents and not isinstance(layer, L.Input):
            parents = [given[-1][0]]
        given.append((node, layer, tuple(parents)))
    return kc.Network.from_steps(given)


def networks(phi: str = "tanh") -> dict[str, kc.Network]:
    """{name: network}, all with the activation."""
    act, wide, conv, both = L.Nonlinear(phi), L.Affine(8), L.Affine(8, 3), L.Sum((0.6, 0.8))
    image, x, tokens = ("x", L.Input(8, (8, 8))), ("x", L.Input(8)), ("x", L.Input(8, (2,)))
    a, f, b, g = ("a", wide), ("f", act), ("b", wide), ("g", act)
    seen = (image, ("a", conv), f)
    two = (x, a, f, b, g)

    def end(node: str) -> tuple[Any, Any]:
        return (node, act), ("y", L.Affine(3))

    return {
        "plain": kc.chain(x[1], *[wide, act] * 3, L.Affine(3)),
        "depthwise": _net(*seen, ("d", L.Affine(8, 3, groups=8)), g, ("p", wide), *end("h")),
        "squeeze and excitation": _net(
            *(*seen, ("m", L.Pool("mean")), ("s", L.Affine(4)), g, ("e", wide)),
            *(("i", L.Nonlinear("sigmoid")), ("p", L.Product(), "f", "i"), b, *end("h")),
        ),
        "gate": _net(
            *(x, a, f, ("u", wide), ("v", wide, "f"), ("g", act, "u")),
            *(("p", L.Product(), "g", "v"), b, *end("h")),
        ),
        "gated stack": A.gated_mlp(6, phi, features=8),
        "dense": A.densenet(3, phi, growth=4),
        "dense, two activations in a row": _net(
            *(x, a, f, g, ("b", L.Affine(4)), ("c", L.Concat(), "f", "b"), *end("h"))
        ),
        "joined in two orders and added": _net(
            *(x, ("a", L.Affine(4)), f, b, g),
            *(("c", L.Concat(), "f", "g"), ("d", L.Concat(), "g", "f"), ("s", both, "c", "d")),
            *(("h", L.Affine(4)), *end("i")),
        ),
        "V1": _net(x, a, f, b, ("s", both, "f", "b"), *end("g")),
        "V1, plain sums": _net(x, a, f, b, ("s", L.Sum(), "f", "b"), *end("g")),
        "two activations added": _net(*two, ("s", both, "f", "g"), ("h", wide), *end("i")),
        "two activations added and activated": _net(
            x, a, f, ("b", wide, "x"), g, ("s", both, "f", "g"), *end("i")
        ),
        "one layer added twice": _net(*two, ("s", both, "b", "b"), *end("i")),
        "residual": A.rescaled_resnet(3, 1, 0.7, phi, features=8),
        "LayerNorm of activations": _net(x, a, f, ("n", L.LayerNorm()), b, *end("g")),
        "BatchNorm": _net(
            *(x, a, ("n", L.BatchNorm()), f, b, ("m", L.BatchNorm())),
            *(("s", L.Sum(), "a", "m"), *end("g")),
        ),
        "GroupNorm of joined maps": _net(
            x, a, f, ("c", L.Concat(), "f", "a", "a"), ("n", L.GroupNorm(2)), b, *end("g")
        ),
        "one channel normalised": _net(image, ("a", conv), ("n", L.GroupNorm(8)), *end("f")),
        "groups of joined maps": _net(
            x, a, f, ("c", L.Concat(), "f", "a"), ("b", L.Affine(16, groups=4)), *end("g")
        ),
        "not read": _net(x, a, f, ("o", L.Opaque("attention", "not covered", 8)), b, *end("g")),
        "tokens": _net(tokens, a, f, ("t", L.TokenMix([[0.8, 0.6], [0.3, 0.9]])), b, *end("g")),
        "tokens that change places": _net(
            tokens, a, f, ("t", L.TokenMix([[0.0, 1.0], [1.0, 0.0]])), b, *end("g")
        ),
        "two inputs added": _net(x, ("z", x[1]), ("s", both, "x", "z"), a, *end("f")),
        "max pools": _net(
            *seen, ("m", L.Pool("max", 2)), ("b", conv), g, ("n", L.Pool("mean")), end("")[1]
        ),
        "activations of the input": _net(x, f, b, *end("g")),
        "no bias": kc.chain(x[1], *[L.Affine(8, bias=False), act] * 3, L.Affine(3, bias=False)),
        "linear": kc.chain(x[1], wide, L.Affine(3)),
        "unknown widths": kc.chain(L.Input(), *[L.Affine(), act] * 3, L.Affine()),
        "shared": _net(*two, ("p", L.Product(), "g", "b"), ("c", wide), *end("h")),
    }
