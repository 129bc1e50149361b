"""Short training runs of PyTorch models, with or without the rules of a transfer."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ...foundation.errors import KcalcError, glimpse
from .entry import call_builder
from .optimizers import OPTIMIZERS
from .result import QUANTITIES, Transfer
from .rules import Options

READ = 3  # number of examples for reading models: small, and seldom equal to the number of heads


@dataclass(frozen=True)
class Family:
    """A function that builds models of several sizes, and the settings for training them.

    ``build`` is called with ``base`` or another size. ``x`` (a tensor or {argument: tensor}) and
    ``y`` contain the examples, and the loss is ``loss(output, y)``. ``standard`` means that all
    sizes keep their initial weights and the same learning rate. ``zero_readout`` means that
    readouts start at 0.
    """

    build: Callable[..., Any]
    base: Any
    x: Any
    y: Any
    chosen: Options
    loss: Callable[[Any, Any], Any]
    standard: bool
    zero_readout: bool

    def model(self, size: Any, seed: int) -> Any:
        """Return a model of the given size, with weights drawn from a seed."""
        import torch

        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found = call_builder(self.build, size, "a size")
        if not isinstance(found, torch.nn.Module):
            raise KcalcError(
                f"{glimpse(self.build)} must build a torch.nn.Module, got {type(found).__name__}"
            )
        return found.train()

    def rules(self, size: Any, other: Any) -> Transfer:
        """Return the rules for a size.

        All factors are 1 at the base size and if ``standard`` is set. ``other`` is a size that
        differs from the base size.
        """
        from .torch_model import torch_transfer

        small = other if size == self.base else self.base
        found = torch_transfer(
            self.model(small, 0), self.model(size, 0), (part(self.x, READ),), None, self.chosen
        )
        if size != self.base and not self.standard:
            return found
        plain = dict.fromkeys(QUANTITIES, 1.0)
        return replace(
            found, parameters={n: replace(r, **plain) for n, r in found.parameters.items()}
        )

    def started(self, rules: Transfer, size: Any, seed: int, lr: float) -> tuple[Any, list[Any]]:
        """Return a model with its initial weights, and its optimisers."""
        import torch

        model = self.model(size, seed)
        if size != self.base and not self.standard:
            rules.rescale(model)
        if self.zero_readout:
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if rules[name].role == "readout":
                        parameter.zero_()
        return model, optimizers(rules, model, lr)

    def step(self, model: Any, made: list[Any], x: Any, y: Any) -> float:
        """Take one step with all optimisers, and return the loss before it."""
        value = self.loss(result_of(model, x), y)
        if getattr(value, "grad_fn", None) is None or value.numel() != 1:
            raise KcalcError(
                "the loss must be a tensor with a single element that depends on the output of the "
                "model"
            )
        for one in made:
            one.zero_grad()
        value.backward()
        for one in made:
            one.step()
        return float(value.detach())


def part(x: Any, rows: Any) -> Any:
    """Return the examples in some rows, or the first ``rows`` examples."""
    chosen = slice(rows) if isinstance(rows, int) else rows
    return {n: t[chosen] for n, t in x.items()} if isinstance(x, Mapping) else x[chosen]


def result_of(model: Any, x: Any) -> Any:
    """Return the output of a model. A dictionary passes arguments by name."""
    from ...interchange import by_name

    args, kwargs = by_name(model.forward, (x,))
    return model(*args, **kwargs)


def optimizers(rules: Transfer, model: Any, lr: float) -> list[Any]:
    """Return optimisers from ``torch.optim`` with the parameter groups that the rules require."""
    made: list[Any] = []
    for name in dict.fromkeys(rule.optimizer for rule in rules.parameters.values()):
        with warnings.catch_warnings():  # guesses are checked by training
            warnings.simplefilter("ignore")
            groups = rules.param_groups(model, lr, optimizer=name)
        if not groups:
            continue
        made.append(_class_of(name)(groups, **OPTIMIZERS[name].arguments))
    return made


def _class_of(name: str) -> Any:
    """Return the class in ``torch.optim`` of an optimiser, given by name.

    Raises: KcalcError if ``torch.optim`` has no such class.
    """
    import torch

    one = OPTIMIZERS[name]
    if not one.torch:
        like = (
            f"optimizer={one.like!r}, which has the same powers"
            if one.like
            else "an optimiser in torch.optim"
        )
        raise KcalcError(
            f"torch.optim has no {one.title}, so this model cannot be trained with it; check "
            f"the rules with {like}"
        )
    if not hasattr(torch.optim, one.torch):
        raise KcalcError(
            f"torch {torch.__version__} has no {one.torch}; install torch 2.9 or newer"
        )
    return getattr(torch.optim, one.torch)


def default_loss(output: Any, y: Any) -> Any:
    """Return cross-entropy for integer targets, and mean squared error for others."""
    from torch.nn import functional

    if y.dtype.is_floating_point:
        return functional.mse_loss(output, y)
    return functional.cross_entropy(output.flatten(0, -2), y.flatten())
