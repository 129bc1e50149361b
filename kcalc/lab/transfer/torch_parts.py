"""The contribution of each part of a concatenation to the layer that reads it."""

from __future__ import annotations

from typing import Any

JOINS = ("cat", "concat", "concatenate", "hstack", "column_stack")
LAYERS = ("linear", "conv1d", "conv2d", "conv3d")


def watched_parts(model: Any) -> Any:
    """Return a context that watches the calls of a model.

    ``.found`` is {"layer [k]": the contribution of the channels in part k to the layer's output},
    for layers of the kinds in ``LAYERS`` whose weights are parameters. Functions that keep the
    shape of an array also keep its parts. Contributions exclude the bias; their sum is the output
    without bias.
    """
    import torch
    from torch.overrides import TorchFunctionMode

    class Watch(TorchFunctionMode):
        def __init__(self) -> None:
            super().__init__()
            self.found: dict[str, Any] = {}
            names = {id(p): name for name, p in model.named_parameters()}
            self.layers = {key: name.rpartition(".")[0] or name for key, name in names.items()}
            self.parts: dict[int, tuple[Any, int, tuple[int, ...]]] = {}

        def __torch_function__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = func(*args, **(kwargs or {}))
            name = getattr(func, "__name__", "")
            if isinstance(out, torch.Tensor) and out.ndim > 1:
                if name in JOINS:
                    self.join(out, args, kwargs or {})
                elif name in LAYERS:
                    self.read(func, args, kwargs or {}, -1 if name == "linear" else 1)
                else:
                    self.follow(out, args)
            return out

        def join(self, out: Any, args: Any, kwargs: Any) -> None:
            """Record the parts of a concatenation, along the axis on which they were joined."""
            arrays = args[0] if args else kwargs["tensors"]
            for axis in range(1, out.ndim):
                extents = tuple(one.shape[axis] for one in arrays if one.ndim == out.ndim)
                if len(extents) == len(arrays) and extents[0] != out.shape[axis]:
                    self.parts[id(out)] = (out, axis, extents)

        def follow(self, out: Any, args: Any) -> None:
            """Keep the parts of an array through functions that keep its shape."""
            for one in args:
                if id(one) in self.parts and one.shape == out.shape:
                    self.parts[id(out)] = (out, *self.parts[id(one)][1:])

        def read(self, func: Any, args: Any, kwargs: Any, channels: int) -> None:
            """Record the contribution of every part to a layer that reads the parts."""
            x, weight, *rest = args
            place = self.layers.get(id(weight))
            if place is None or id(x) not in self.parts:
                return
            _, axis, extents = self.parts[id(x)]
            if (
                axis != channels % x.ndim
                or kwargs.get("groups", 1) != 1
                or rest[4:5] not in ([], [1])
            ):
                return
            start = 0
            for k, extent in enumerate(extents):
                alone = torch.zeros_like(x)
                columns = alone.narrow(axis, start, extent)
                columns.copy_(x.narrow(axis, start, extent))
                settings = {name: v for name, v in kwargs.items() if name != "bias"}
                made = func(alone, weight, None, *rest[1:], **settings)
                self.found[f"{place} [{k}]"] = made.detach().double().clone()
                start += extent

    return Watch()
