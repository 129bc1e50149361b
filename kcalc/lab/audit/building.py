"""Build a model and check that it can be audited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...foundation.errors import KcalcError
from .held import held


def built(builder: Callable[[], Any]) -> Any:
    """Call a builder and return its model.

    Raises: KcalcError if it fails or returns no module.
    """
    import torch

    try:
        model = builder()
    except KcalcError:
        raise
    except (Exception, SystemExit) as error:
        from ...interchange.torch_model import place

        text = " ".join(str(error).split())[:200] or "without a message"
        advice = "" if place(error) else "; pass a function that takes no arguments"
        raise KcalcError(
            f"the builder raised {type(error).__name__}{place(error)}: {text}{advice}"
        ) from error
    if not isinstance(model, torch.nn.Module):
        raise KcalcError(
            f"the builder returned a {type(model).__name__}; pass a function that returns a "
            "torch.nn.Module"
        )
    return usable(model)


def usable(model: Any) -> Any:
    """Return the model after checking that it can be audited.

    Raises: a KcalcError that names the obstacle and the remedy.
    """
    import torch

    from ...interchange.torch_model import check_shapes

    if isinstance(model, torch.jit.ScriptModule):
        raise KcalcError(
            "a ScriptModule hides its operations; audit the original torch.nn.Module instead"
        )
    for name, module in model.named_modules():
        if ".quantized." in f"{type(module).__module__}.":
            raise KcalcError(
                f"{name or 'the model'} contains quantised weights "
                f"({type(module).__name__}); audit the model before quantising it"
            )
    check_shapes(model)
    tensors = dict(model.named_parameters())
    if not tensors:
        others = [path for path, tensor in held(model).items() if tensor.requires_grad]
        hint = "; register {} with nn.ModuleList or nn.Parameter".format(", ".join(others[:3]))
        raise KcalcError(
            f"a {type(model).__name__} has no parameters to audit{hint if others else ''}"
        )
    for name, tensor in tensors.items():
        if tensor.device.type == "meta":
            raise KcalcError(
                f"{name} is a meta tensor without values; build the model on the CPU, "
                "without torch.device('meta')"
            )
        if tensor.layout != torch.strided or tensor.is_nested:
            raise KcalcError(
                f"{name} is not a dense tensor, but the audit examines only dense parameters; "
                "store it densely, or as a buffer if it is not trained"
            )
        if tensor.is_quantized or not (tensor.is_floating_point() or tensor.is_complex()):
            raise KcalcError(
                f"{name} contains quantised weights ({tensor.dtype}); audit the model before "
                "quantising it"
            )
    devices = {str(t.device) for t in tensors.values()}
    if len(devices) > 1:
        raise KcalcError(
            f"the parameters are on {', '.join(sorted(devices))}; move them to one device, "
            "for example with model.to('cpu')"
        )
    return model
