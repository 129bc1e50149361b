"""Audit the effects and the faults of a model's initialisation in one call."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from ...foundation.extras import imported
from ...foundation.plain_arguments import truth
from . import (  # noqa: F401  (importing these modules registers their criteria)
    depth,
    escaped,
    hidden,
    initialisation,
    optimising,
    routing,
    sizes,
    training,
)
from .building import built
from .findings import findings_of, known_codes, named
from .laws import Law
from .measuring import measure
from .predicted import Prediction
from .predicted import predict as predicted
from .reaching import reached
from .recipes import checked
from .recorder import SEED, drawn
from .result import Audit
from .streams import stream_remarks
from .subject import Subject
from .tables import block_rows, parameter_rows, totals

PATCH = 0.02  # the sigma of uninitialised parameters during the run


def audit(
    builder_or_model: Any,
    example_inputs: Any = None,
    recipe: Any = None,
    optimizer: Any = None,
    also: tuple[str, ...] = (),
    predict: bool = True,
) -> Audit:
    """Report the effects and the faults of a PyTorch model's initialisation.

    Parameters
    ----------
    builder_or_model
        A ``torch.nn.Module``, or a function without arguments that returns one. The run of such a
        builder is recorded: the law (distribution) of every parameter, the line that drew it, and
        the values that were overwritten. For a module, the laws are estimated, with standard
        errors.
    example_inputs
        A shape (of token ids if the model has an ``nn.Embedding``), a tensor, a tuple of shapes and
        tensors, or a dictionary with argument names as keys. None is enough for transformers
        models, because their configuration determines the inputs.
    recipe
        "gpt2", "megatron", "olmo", "deepnorm", "fixup", "t-fixup", "nf-net", or ("mup", the builder
        or the model at a base width). Alternatively, a dictionary {pattern of parameter names: a
        sigma, or "zeros", "lecun", "he", "xavier" or "torch"}. For a constant gain or gate
        (LayerScale, ReZero), the number is the constant, not a sigma.
    optimizer
        An optimizer of the model, a list of optimizers, or a function that takes the model and
        returns one of these.
    also
        Codes of criteria that are off by default, such as "INIT-TRUNC".
    predict
        Whether to also read the model with :func:`kcalc.read` and predict the sizes of the residual
        stream and the logits. This needs rules of the kernel calculus for every layer.

    Returns
    -------
    Audit
        The result, with ``.findings``, ``.parameters`` and ``.blocks``. The model does not change.

    Raises
    ------
    KcalcError
        If the builder raises an error, if the model does not run on the examples, if it contains
        meta tensors or quantised weights, or if its parameters are on several devices.

    Examples
    --------
    >>> import torch
    >>> import kcalc as kc
    >>> model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 2))
    >>> found = kc.audit(model, (4, 8))
    >>> [finding.code for finding in found.findings]
    []

    """
    _import_needed()
    from ...interchange.torch_model import undisturbed

    also = known_codes(also, "also")
    checked(recipe)
    truth(predict, "predict")
    with undisturbed():
        subject = _subject(builder_or_model, example_inputs)
        subject.recipe, subject.optimizer = recipe, optimizer
        findings = findings_of(subject, also)
        calculus = predicted(subject) if predict else Prediction()
        remarks = (calculus.remark,) if calculus.remark else ()
        return Audit(
            type(subject.original).__name__,
            "model" if subject.again is None else "builder",
            findings,
            parameter_rows(subject),
            block_rows(subject, calculus.streams),
            **totals(subject),
            predicted_logits=calculus.logits,
            laws=subject.laws,
            remarks=(*_remarks(subject), *remarks),
            assumptions=calculus.assumptions,
        )


def _import_needed() -> None:
    """Import the modules that every audit needs.

    Raises: KcalcError if one is missing.
    """
    from ... import interchange  # noqa: F401

    imported("torch")


def _subject(given: Any, example_inputs: Any) -> Subject:
    import torch

    from ...interchange.torch_model import copied

    original, laws, places = drawn(given)
    again = None if isinstance(given, torch.nn.Module) else partial(_again, given)
    model = copied(original)
    _patched(model, laws)
    values = {name: p.detach().clone() for name, p in model.named_parameters() if _gaps(laws[name])}

    def fresh() -> Any:
        other = copied(original)
        with torch.no_grad():
            for name, value in values.items():
                other.get_parameter(name).copy_(value)
        return other

    measured = measure(model, example_inputs, fresh, original)
    return Subject(model, laws, measured, original, again, places=places)


def _again(builder: Callable[[], Any]) -> Any:
    """Return a second model from a builder, drawn with a seed that the builder cannot set."""
    import torch

    torch.manual_seed(SEED + 1)
    seed, torch.manual_seed = torch.manual_seed, lambda _: torch.default_generator
    try:
        return built(builder)
    finally:
        torch.manual_seed = seed


def _patched(model: Any, laws: dict[str, Law]) -> None:
    """Draw values for the uninitialised parameters, so that the model can run."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if _gaps(laws[name]):
                parameter.normal_(0, PATCH)


def _gaps(law: Law) -> bool:
    return law.name == "uninitialised" or law.partly_written


def _remarks(subject: Subject) -> tuple[str, ...]:
    """Return remarks on what was not examined, and on residual streams and routers."""
    measured = subject.measured
    program = measured.structure.program
    cut = {name for one in measured.cuts for name in one.names}
    without = [n for n, g in measured.gradients.items() if g is None and n not in cut]
    unread = [n for n in without if not reached(program, n)]
    texts = {
        "do not affect the result on these inputs": unread,
        "do not enter the loss of this audit": [n for n in without if n not in unread],
        "are detached copies of other parameters (teachers, target networks)": [
            name for one in measured.cuts if one.kind == "taught" for name in one.names
        ],
        "receive no examples, because of a choice among experts or attention to a single "
        "key": measured.unreached,
    }
    remarks = [f"parameters that {text}: {named(tuple(n))}" for text, n in texts.items() if n]
    remarks += stream_remarks(subject)
    remarks += routing.remarks(subject)
    if measured.objective.kind == "linear":
        remarks.append("LOSS-START is not applied, because the result is not interpreted as logits")
    return tuple(remarks)
