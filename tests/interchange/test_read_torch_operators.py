"""PyTorch operators in the forms that models seldom use.

The trace computes what the module computes, or it says why not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from trace_values import values_of

from kcalc.interchange.read import read

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402

FLAT, ROWS, IMAGE = (2, 6), (2, 4, 6), (2, 3, 6, 8)


class Fn(nn.Module):
    """A function of the module's own arrays and the input."""

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(2)
        shapes = {"w": (5, 6), "u": (6, 6), "b": (6,), "k": (4, 3, 3, 3), "n": (2, 2)}
        for name, shape in shapes.items():
            drawn = torch.randn(shape, generator=generator, dtype=torch.float64)
            setattr(self, name, nn.Parameter(drawn))
        self.register_buffer("mask", torch.tensor([True, False] * 3))
        self.register_buffer("c", torch.randn(5, 6, generator=generator, dtype=torch.float64))
        self.function = function

    def forward(self, x: Any) -> Any:
        return self.function(self, x)


def _inside(context: Any, function: Callable[..., Any], *given: Any) -> Any:
    with context:
        return function(*given)


def _without_gradient(function: Callable[..., Any], *given: Any) -> Any:
    return _inside(torch.no_grad(), function, *given)


def drawn(shape: tuple[int, ...]) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


READ: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...]]] = {
    name: (function, shape)
    for shape, functions in {
        IMAGE: {
            "moved nothing": lambda m, x: x.movedim(1, 1).tanh(),
            "padded twice": lambda m, x: F.conv2d(
                F.pad(F.pad(x, (1,) * 4), (2,) * 4), m.k, padding="valid"
            ),
            "all the best": lambda m, x: F.adaptive_max_pool2d(x, 1),
            "adaptive, nothing": lambda m, x: F.adaptive_avg_pool2d(x, (6, 8)).tanh(),
            "adaptive, halves": lambda m, x: F.adaptive_avg_pool2d(x, (3, 4)),
            "upsampled": lambda m, x: F.interpolate(x, scale_factor=2),
            "einsum that moves": lambda m, x: torch.einsum("nahw,dh->nwad", x, m.w),
            "padding without a gradient": lambda m, x: F.conv2d(
                _without_gradient(F.pad, x, (1,) * 4).detach(), m.k
            ),
            "even convolution": lambda m, x: F.conv2d(x, m.k[..., :2], padding="same"),
            "strides and groups": lambda m, x: F.conv2d(
                x, m.k[:3, :1], None, (2, 1), (1, 0), (1, 2), 3
            ),
        },
        ROWS: {
            "the last": lambda m, x: (x @ m.u)[..., -1],
            "largest of an axis": lambda m, x: (x @ m.u).max(1)[0],
            "sum of an axis": lambda m, x: (x @ m.u).sum(1),
            "complete softmax": lambda m, x: 2 * (x @ m.u).softmax(-1),
            "a bias of one row": lambda m, x: F.linear(x, m.u, m.b[None]),
            "one bias": lambda m, x: F.linear(x, m.u, m.b[0]),
            "einsum of activations": lambda m, x: torch.einsum("ntc,nsc->nts", x, x @ m.u),
        },
        FLAT: {
            "padded by nothing": lambda m, x: F.pad(x, (0, 0)).tanh(),
            "everything picked": lambda m, x: 2 * (x @ m.u)[:, [0, 1, 2, 3, 4, 5]],
            "where below": lambda m, x: torch.where(x <= 0.5, 2 * x, x.tanh()),
            "no bounds": lambda m, x: torch.clamp(x, -float("inf"), float("inf")).tanh(),
            "nonzero": lambda m, x: x.relu().bool().to(x.dtype) + x,
            "masked everywhere": lambda m, x: x.masked_fill(m.mask | ~m.mask, -5.0) + x,
            "constants without a gradient": lambda m, x: (
                x @ _without_gradient(torch.add, m.u, 1.0)
                + _without_gradient(torch.gt, x, 0.0).detach()
            ),
            "narrowed from the end": lambda m, x: (x @ m.u).narrow(1, -2, 2),
            "floor quotient": lambda m, x: torch.div(5 * x, 2.0, rounding_mode="floor"),
            "cut quotient": lambda m, x: torch.div(5 * x, 2.0, rounding_mode="trunc"),
            "masked": lambda m, x: 2 * x.masked_fill(m.mask, -5.0),
            "addmm": lambda m, x: torch.addmm(m.b, x, m.u),
            "einsum": lambda m, x: torch.einsum("nc, dc -> nd", x, m.w),
            "a number": lambda m, x: (x @ m.u) * m.b.max().item(),
            "autocast": lambda m, x: _inside(torch.autocast("cpu"), torch.tanh, x @ m.u),
            "one of one matrix": lambda m, x: x @ m.u.expand(1, 6, 6)[0],
            "alpha dropout": lambda m, x: F.alpha_dropout(x, 0.1, False) * 2,
            "narrowed by nothing": lambda m, x: x.narrow(1, 0, 6).tanh(),
        },
    }.items()
    for name, function in functions.items()
}


@pytest.mark.parametrize("name", READ)
def test_the_trace_computes_what_the_module_computes(name: str) -> None:
    function, shape = READ[name]
    module = Fn(function).double().eval()
    x = drawn(shape)
    with torch.no_grad():
        truth = module(x).numpy()
    (got,) = values_of(read(module, x, sigmas=False).trace, x.numpy())
    assert got.shape == truth.shape
    assert got == pytest.approx(truth, rel=1e-10, abs=1e-10)


UNREAD: dict[str, tuple[Callable[[Any, Any], Any], tuple[int, ...], str]] = {
    name: (function, shape, words)
    for shape, functions in {
        IMAGE: {
            "windows with holes": (lambda m, x: F.max_pool2d(x, 2, dilation=2), "dilated windows"),
            "a divisor": (lambda m, x: F.avg_pool2d(x, 2, divisor_override=3), "divisor_override"),
            "a padded pool": (
                lambda m, x: F.max_pool2d(F.pad(x, (1, 1)), 2),
                "use the padding of the pooling",
            ),
            "bicubic": (
                lambda m, x: F.interpolate(x, scale_factor=2, mode="bicubic"),
                "nearest and linear",
            ),
            "cropped": (lambda m, x: F.conv2d(F.pad(x, (-1, 0)), m.k), ""),
            "cropped, then padded": (
                lambda m, x: F.conv2d(F.pad(F.pad(x, (-1,) * 4), (2,) * 4), m.k),
                "",
            ),
            "zeros around a reflected image": (
                lambda m, x: F.conv2d(F.pad(x, (1,) * 4, "reflect"), m.k, padding=1),
                "use only one kind of padding",
            ),
            "turned convolution of a padded one": (
                lambda m, x: F.conv_transpose2d(F.pad(x, (1,) * 4), m.k[:3]),
                "pad inside the layer",
            ),
            "a turned kernel from the input": (
                lambda m, x: F.conv_transpose2d(x, x[:1].transpose(0, 1)),
                "computed from the input",
            ),
            "a kernel from the input": (
                lambda m, x: F.conv2d(x, x[:, :, :3, :3]),
                "computed from the input",
            ),
            "turned convolution": (
                lambda m, x: torch.ops.aten.convolution(
                    x, m.k.mT[:3], None, [1, 1], [4, 4], [1, 1], True, [0, 0], 1
                ),
                "crops the image",
            ),
            "mirrored": (
                lambda m, x: torch.ops.aten.reflection_pad2d(x, [1, 1, 1, 1]).tanh(),
                "no convolution reads",
            ),
        },
        (3, 6, 8): {
            "one example": (lambda m, x: F.max_pool2d(x, 2), "batch axis first"),
            "one example convolved": (lambda m, x: F.conv2d(x, m.k), "batch axis first"),
        },
        FLAT: {
            "batches joined": (lambda m, x: torch.cat([x, x]), "along the batch axis"),
            "a constant joined": (lambda m, x: torch.cat([x, m.n], 1), "depends on no input"),
            "two maps and a constant joined": (
                lambda m, x: torch.cat([x, m.n, x.tanh()], 1),
                "depends on no input",
            ),
            "constants around": (lambda m, x: torch.cat([m.n, x, m.n], 1), "depends on no input"),
            "a table from the input": (
                lambda m, x: x + F.embedding(torch.tensor([0, 1]), x),
                "looks up rows",
            ),
            "a constant written": (lambda m, x: (x @ m.u).copy_(m.b), "overwrites activations"),
            "a vector times": (lambda m, x: (x @ m.u) @ x.sum(0), ""),
            "slopes from the input": (
                lambda m, x: F.prelu(x, x.mean().reshape(1)),
                "depend on the input",
            ),
            "whole numbers": (lambda m, x: x.long() * 1.0, "integers"),
            "bits": (lambda m, x: (((x > 0).long() * 2) & 3) * x, "bits of integers"),
            "maxout": (
                lambda m, x: (x @ m.u).view(-1, 3, 2).amax(-1) @ m.u[:3],
                "torch.maximum",
            ),
            "softmax": (lambda m, x: F.softmax(x @ m.u, -1) * 2, "softmax"),
            "a norm of another power": (
                lambda m, x: x / x.norm(p=1, dim=1, keepdim=True),
                "a norm",
            ),
            "flipped": (lambda m, x: (x @ m.u).flip(-1), "moves channels,"),
            "rolled": (lambda m, x: (x @ m.u).roll(1), "moves entries"),
            "infinities": (lambda m, x: x.masked_fill(x < 0, -float("inf")), "infinit"),
            "everything dropped": (lambda m, x: F.dropout(x, 1.0, True), "rate below 1"),
            "gains from the input": (lambda m, x: F.layer_norm(x, (6,), x.mean(0)), "conditional"),
            "written over a constant": (
                lambda m, x: _written_over(x, x @ m.u),
                "writes activations into its memory",
            ),
            "a bias from the input": (lambda m, x: F.linear(x, m.u, x.mean(0)), ""),
            "a scaled sum": (
                lambda m, x: torch.addmm(m.b, x, m.u, alpha=2.0),
                "scaled matrix product",
            ),
            "vmap": (
                lambda m, x: torch.vmap(lambda w: F.linear(x, w))(m.w[:, None]),
                "linear: torch.vmap hides an axis",
            ),
            "a mean over a stack": (
                lambda m, x: torch.stack([x, x.tanh()]).mean(0),
                "mean over axis 0: it reads an array that was not read",
            ),
            "einsum of three": (
                lambda m, x: torch.einsum("nc,dc,d->nd", x, m.w, m.b[:5]),
                "an arrow and no ellipsis",
            ),
            "parts of a padded one": (
                lambda m, x: F.pad(x, (1, 1)).split(4, -1)[0],
                "splits the channels",
            ),
            "a place in a padded one": (lambda m, x: F.pad(x, (1, 1))[:, 0], "splits the channels"),
            "a stretch of a padded one": (
                lambda m, x: F.pad(x, (1, 1))[:, 1:5],
                "a part of the channels",
            ),
        },
        ROWS: {
            "a bias by location": (lambda m, x: F.linear(x, m.u, m.u[:4]), ""),
            "a frame of ones": (lambda m, x: F.pad(x, (1, 1), value=1.0), "use zeros"),
            "attention of other axes": (
                lambda m, x: F.scaled_dot_product_attention(x, x[:, None], x[:, None]),
                "computed from the input",
            ),
            "a product plus an activation": (
                lambda m, x: torch.baddbmm(x @ m.u[:, :4], x, x.mT),
                "a product of two activations",
            ),
            "heads repeated": (
                lambda m, x: x.unsqueeze(1) @ x.unsqueeze(1).expand(2, 3, 4, 6).mT,
                "",
            ),
            "softmax of a padded one": (lambda m, x: 2 * F.pad(x, (1, 1)).softmax(-1), ""),
            "attention to a constant": (
                lambda m, x: F.scaled_dot_product_attention(x, x, m.u.expand(2, 6, 6)[:, :4]),
                "",
            ),
        },
        (4, 6): {
            "gated examples": (lambda m, x: F.glu(x, 0), ""),
        },
    }.items()
    for name, (function, words) in functions.items()
}


def _written_over(x: Any, h: Any) -> Any:
    whole = x.new_zeros(2, 6)
    half = whole[:, :3]
    whole.copy_(h)
    return half.tanh()


@pytest.mark.parametrize("name", UNREAD)
def test_what_has_no_rule_is_said(name: str) -> None:
    function, shape, words = UNREAD[name]
    reading = read(Fn(function).double(), drawn(shape), sigmas=False)
    assert reading.fidelity.level == "not read"
    texts = [note.text for note in reading.notes]
    assert any(words in text for text in texts), texts
    assert not any("does not understand its arguments" in text for text in texts)


@pytest.mark.slow
def test_control_flow_of_pytorch() -> None:
    def tanh_if(test: Callable[[Any, Any], Any]) -> nn.Module:
        run = lambda m, x: torch.cond(test(m, x), torch.tanh, torch.sin, (x,))  # noqa: E731
        return Fn(run).double()

    x = drawn(FLAT)
    (got,) = values_of(read(tanh_if(lambda m, x: m.mask.any()), x).trace, x.numpy())
    assert got == pytest.approx(x.tanh().numpy())
    loop = torch._higher_order_ops.while_loop
    more = lambda i, x: (i + 1, x.tanh())  # noqa: E731
    looped = Fn(lambda m, x: loop(lambda i, x: i < 3, more, (torch.tensor(0), x))[1])
    for model, words in (
        (tanh_if(lambda m, x: x.sum() > 0), "read one model per branch"),
        (looped.double(), "write a Python loop"),
    ):
        assert any(words in note.text for note in read(model, x, sigmas=False).notes)
