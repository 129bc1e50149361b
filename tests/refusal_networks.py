"""Networks that shaping methods refuse, each for another reason."""

from __future__ import annotations

from typing import Any

import sympy as sp

import kcalc as kc

L, A = kc.layers, kc.architectures
CARRY = 1 - 1 / (1 + sp.exp(-sp.Symbol("x", real=True)))


def _net(*steps: Any, outputs: Any = None) -> kc.Network:
    return kc.Network.from_steps(
        [(node, layer, tuple(parents)) for node, layer, *parents in steps], outputs
    )


def _with_widths(net: kc.Network) -> kc.Network:
    """The network with 4 inputs and 3 outputs, where they are not said."""

    def change(_: Any, layer: Any) -> Any:
        return (
            L.Input(4)
            if isinstance(layer, L.Input)
            else L.Affine(3)
            if layer == L.Affine()
            else layer
        )

    return net.map_layers(change)


def networks(phi: str = "tanh") -> dict[str, kc.Network]:
    """{name: network}, all with the activation."""
    act = L.Nonlinear(phi)
    image, x = ("x", L.Input(8, (8, 8))), ("x", L.Input(8))
    a = ("a", L.Affine(8), "x")
    f = ("f", act, "a")
    two = (x, a, f, ("b", L.Affine(8), "f"), ("g", act, "b"))
    return {
        "plain": kc.chain(L.Input(8), *[L.Affine(8), act] * 3, L.Affine(3)),
        "depthwise": _net(
            image,
            ("a", L.Affine(8, 3), "x"),
            f,
            ("d", L.Affine(8, 3, groups=8), "f"),
            ("g", act, "d"),
            ("p", L.Affine(8), "g"),
            ("h", act, "p"),
            ("y", L.Affine(3), "h"),
        ),
        "squeeze and excitation": _net(
            image,
            ("a", L.Affine(8, 3), "x"),
            f,
            ("m", L.Pool("mean"), "f"),
            ("s", L.Affine(4), "m"),
            ("g", act, "s"),
            ("e", L.Affine(8), "g"),
            ("i", L.Nonlinear("sigmoid"), "e"),
            ("p", L.Product(), "f", "i"),
            ("b", L.Affine(8), "p"),
            ("h", act, "b"),
            ("y", L.Affine(3), "h"),
        ),
        "squeeze and excitation behind weights": _net(
            image,
            ("a", L.Affine(8, 3), "x"),
            f,
            ("c", L.Affine(8), "f"),
            ("m", L.Pool("mean"), "c"),
            ("s", L.Affine(4), "m"),
            ("g", act, "s"),
            ("e", L.Affine(8), "g"),
            ("i", L.Nonlinear("sigmoid"), "e"),
            ("p", L.Product(), "c", "i"),
            ("b", L.Affine(8), "p"),
            ("h", act, "b"),
            ("y", L.Affine(3), "h"),
        ),
        "gate": _net(
            x,
            a,
            f,
            ("u", L.Affine(8), "f"),
            ("v", L.Affine(8), "f"),
            ("g", act, "u"),
            ("p", L.Product(), "g", "v"),
            ("b", L.Affine(8), "p"),
            ("h", act, "b"),
            ("y", L.Affine(3), "h"),
        ),
        "gated stack": A.gated_mlp(6, phi, features=8),
        "dense": _with_widths(A.densenet(3, phi, growth=4)),
        "dense, two activations in a row": _net(
            x,
            a,
            f,
            ("g", act, "f"),
            ("b", L.Affine(4), "g"),
            ("c", L.Concat(), "f", "b"),
            ("h", act, "c"),
            ("y", L.Affine(3), "h"),
        ),
        "dense, activations joined": _net(
            *two[:3],
            ("b", L.Affine(4), "f"),
            two[4],
            ("c", L.Concat(), "f", "g"),
            ("h", L.Affine(4), "c"),
            ("i", act, "h"),
            ("y", L.Affine(3), "i"),
        ),
        "joined in two orders and added": _net(
            x,
            ("a", L.Affine(4), "x"),
            f,
            ("b", L.Affine(8), "f"),
            ("g", act, "b"),
            ("c", L.Concat(), "f", "g"),
            ("d", L.Concat(), "g", "f"),
            ("s", L.Sum((0.6, 0.8)), "c", "d"),
            ("h", L.Affine(4), "s"),
            ("i", act, "h"),
            ("y", L.Affine(3), "i"),
        ),
        "V1": _net(
            x,
            a,
            f,
            ("b", L.Affine(8), "f"),
            ("s", L.Sum((0.6, 0.8)), "f", "b"),
            ("g", act, "s"),
            ("y", L.Affine(3), "g"),
        ),
        "V1, plain sums": _net(
            x,
            a,
            f,
            ("b", L.Affine(8), "f"),
            ("s", L.Sum(), "f", "b"),
            ("g", act, "s"),
            ("y", L.Affine(3), "g"),
        ),
        "two activations added": _net(
            *two,
            ("s", L.Sum((0.6, 0.8)), "f", "g"),
            ("h", L.Affine(8), "s"),
            ("i", act, "h"),
            ("y", L.Affine(3), "i"),
        ),
        "two activations added and activated": _net(
            x,
            a,
            f,
            ("b", L.Affine(8), "x"),
            ("g", act, "b"),
            ("s", L.Sum((0.6, 0.8)), "f", "g"),
            ("i", act, "s"),
            ("y", L.Affine(3), "i"),
        ),
        "one layer added twice": _net(
            x,
            a,
            f,
            ("b", L.Affine(8), "f"),
            ("g", act, "b"),
            ("s", L.Sum((0.6, 0.8)), "b", "b"),
            ("i", act, "s"),
            ("y", L.Affine(3), "i"),
        ),
        "residual": A.rescaled_resnet(3, 1, 0.7, phi, features=8),
        "LayerNorm of activations": _net(
            x,
            a,
            f,
            ("n", L.LayerNorm(), "f"),
            ("b", L.Affine(8), "n"),
            ("g", act, "b"),
            ("y", L.Affine(3), "g"),
        ),
        "LayerNorm in front": _net(
            x,
            a,
            ("n", L.LayerNorm(), "a"),
            ("f", act, "n"),
            ("b", L.Affine(8), "f"),
            ("m", L.LayerNorm(), "b"),
            ("g", act, "m"),
            ("y", L.Affine(3), "g"),
        ),
        "LayerNorm then activation of activations": _net(
            x, a, f, ("n", L.LayerNorm(), "f"), ("g", act, "n"), ("y", L.Affine(3), "g")
        ),
        "residual with LayerNorm": A.layernorm_resnet(50, phi).normalised(),
        "BatchNorm": _net(
            x,
            a,
            ("n", L.BatchNorm(), "a"),
            ("f", act, "n"),
            ("b", L.Affine(8), "f"),
            ("m", L.BatchNorm(), "b"),
            ("s", L.Sum(), "a", "m"),
            ("g", act, "s"),
            ("y", L.Affine(3), "g"),
        ),
        "GroupNorm": _net(
            image,
            ("a", L.Affine(8, 3), "x"),
            ("n", L.GroupNorm(2), "a"),
            ("f", act, "n"),
            ("b", L.Affine(8, 3), "f"),
            ("m", L.GroupNorm(2), "b"),
            ("g", act, "m"),
            ("y", L.Affine(3), "g"),
        ),
        "GroupNorm of activations": _net(
            image,
            ("a", L.Affine(8, 3), "x"),
            f,
            ("n", L.GroupNorm(2), "f"),
            ("b", L.Affine(8, 3), "n"),
            ("g", act, "b"),
            ("y", L.Affine(3), "g"),
        ),
        "GroupNorm of joined maps": _net(
            x,
            a,
            f,
            ("c", L.Concat(), "f", "a", "a"),
            ("n", L.GroupNorm(2), "c"),
            ("b", L.Affine(8), "n"),
            ("g", act, "b"),
            ("y", L.Affine(3), "g"),
        ),
        "one channel normalised": _net(
            image,
            ("a", L.Affine(8, 3), "x"),
            ("n", L.GroupNorm(8), "a"),
            ("f", act, "n"),
            ("y", L.Affine(3), "f"),
        ),
        "groups of joined maps": _net(
            x,
            a,
            f,
            ("c", L.Concat(), "f", "a"),
            ("b", L.Affine(16, groups=4), "c"),
            ("g", act, "b"),
            ("y", L.Affine(3), "g"),
        ),
        "not read": _net(
            x,
            a,
            f,
            ("o", L.Opaque("attention", "not covered", 8), "f"),
            ("b", L.Affine(8), "o"),
            ("g", act, "b"),
            ("y", L.Affine(3), "g"),
        ),
        "tokens": _net(
            ("x", L.Input(8, (2,))),
            a,
            f,
            ("t", L.TokenMix([[0.8, 0.6], [0.3, 0.9]]), "f"),
            ("b", L.Affine(8), "t"),
            ("g", act, "b"),
            ("y", L.Affine(3), "g"),
        ),
        "tokens that change places": _net(
            ("x", L.Input(8, (2,))),
            a,
            f,
            ("t", L.TokenMix([[0.0, 1.0], [1.0, 0.0]]), "f"),
            ("b", L.Affine(8), "t"),
            ("g", act, "b"),
            ("y", L.Affine(3), "g"),
        ),
        "two inputs added": _net(
            ("x", L.Input(8)),
            ("z", L.Input(8)),
            ("s", L.Sum((0.6, 0.8)), "x", "z"),
            ("a", L.Affine(8), "s"),
            f,
            ("y", L.Affine(3), "f"),
        ),
        "two inputs and outputs": _net(
            ("x", L.Input(8)),
            ("z", L.Input(8)),
            a,
            ("b", L.Affine(8), "z"),
            ("s", L.Sum((0.6, 0.8)), "a", "b"),
            ("f", act, "s"),
            ("y", L.Affine(3), "f"),
            ("w", L.Affine(2), "f"),
        ),
        "max pools": _net(
            image,
            ("a", L.Affine(8, 3), "x"),
            f,
            ("m", L.Pool("max", 2), "f"),
            ("b", L.Affine(8, 3), "m"),
            ("g", act, "b"),
            ("n", L.Pool("mean"), "g"),
            ("y", L.Affine(3), "n"),
        ),
        "an activation at the end": _net(*two),
        "activations of the input": _net(
            x, ("f", act, "x"), ("b", L.Affine(8), "f"), ("g", act, "b"), ("y", L.Affine(3), "g")
        ),
        "no bias": kc.chain(
            L.Input(8), *[L.Affine(8, bias=False), act] * 3, L.Affine(3, bias=False)
        ),
        "linear": kc.chain(L.Input(8), L.Affine(8), L.Affine(3)),
        "unknown widths": kc.chain(L.Input(), *[L.Affine(), act] * 3, L.Affine()),
        "shared": _net(
            *two,
            ("p", L.Product(), "g", "b"),
            ("c", L.Affine(8), "p"),
            ("h", act, "c"),
            ("y", L.Affine(3), "h"),
        ),
        "highway": _net(
            x,
            a,
            ("t", L.Affine(8), "a"),
            ("i", L.Nonlinear("sigmoid"), "t"),
            ("j", L.Nonlinear(CARRY), "t"),
            ("h", L.Affine(8), "a"),
            ("f", act, "h"),
            ("p", L.Product(), "i", "f"),
            ("q", L.Product(), "j", "a"),
            ("s", L.Sum((0.6, 0.8)), "p", "q"),
            ("y", L.Affine(3), "s"),
        ),
    }
