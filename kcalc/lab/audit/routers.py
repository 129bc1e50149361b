"""Routers of mixtures of experts: the tokens they read in a run, and the load of each expert."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Router:
    """The router of one mixture in a run.

    ``path`` is the path of the mixture's module, and ``names`` are the router's parameters.
    ``mixture`` contains the number of experts, the number of selected experts, the score and the
    scale. ``cosine`` is the mean uncentred cosine between two tokens of one example, as the router
    reads them. ``variance`` is the variance of the logits, ``tokens`` the number of tokens, and
    ``loads`` the number of tokens for each expert.
    """

    path: str
    names: tuple[str, ...]
    mixture: Any
    cosine: float
    variance: float
    tokens: int
    loads: tuple[int, ...]


def routers_of(model: Any, call: tuple[tuple[Any, ...], Mapping[str, Any]]) -> tuple[Router, ...]:
    """Return the routers of a model that run for the arguments of a call."""
    import torch

    from ...interchange.torch_model import mixtures
    from .measuring import evaluating

    found = mixtures(model)
    seen: dict[str, Any] = {}

    def watched(path: str) -> Callable[[Any, Any, Any], None]:
        def hook(module: Any, args: Any, kwargs: Any) -> None:
            given = next(
                (x for x in (*args, *kwargs.values()) if isinstance(x, torch.Tensor)), None
            )
            if given is not None:
                seen.setdefault(path, given.detach().clone())

        return hook

    modules = [(model.get_submodule(path), watched(path)) for path in found]
    hooks = [module.register_forward_pre_hook(hook, with_kwargs=True) for module, hook in modules]
    try:
        with evaluating(model), torch.no_grad():
            if found:
                model(*call[0], **call[1])
    finally:
        for hook in hooks:
            hook.remove()
    return tuple(_router(model, path, found[path], x) for path, x in seen.items())


def _router(model: Any, path: str, mixture: Any, x: Any) -> Router:
    import torch

    rows = x.double().reshape(-1, x.shape[-1])
    examples = x.double() if x.ndim == 3 else rows[None]
    unit = torch.nn.functional.normalize(examples, dim=-1)
    count = examples.shape[1]
    products = (unit @ unit.transpose(-1, -2)).sum((-1, -2)).mean() - count
    with torch.no_grad():
        logits = mixture.logits(x.reshape(rows.shape)).double()
    chosen = torch.topk(logits, mixture.k, dim=-1).indices
    loads = torch.bincount(chosen.ravel(), minlength=mixture.count)
    own = {id(p) for p in mixture.router.parameters()}
    names = tuple(name for name, p in model.named_parameters() if id(p) in own)
    return Router(
        path,
        names,
        mixture,
        float(products) / max(count * (count - 1), 1),
        float(logits.square().mean()),
        len(rows),
        tuple(loads.tolist()),
    )
