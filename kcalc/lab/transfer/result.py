"""The result of a transfer: rules for parameters, multipliers for operations, edits to a model."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ...foundation.errors import KcalcError, unknown
from ...foundation.families import family
from ...foundation.keyed import Keyed
from ...foundation.plain_arguments import is_key
from ...foundation.printing import Shown, plain, shown
from ...maps import Assumption
from .optimizers import OPTIMIZERS
from .powers import DEPTH, Power, degrees, value

if TYPE_CHECKING:
    from fractions import Fraction

    import sympy as sp
    from optax import GradientTransformation

Node = Hashable
QUANTITIES = ("init_std", "learning_rate", "epsilon", "weight_decay")


@dataclass(frozen=True)
class ParameterRule(Shown):
    """The changes in the settings of one parameter from the base to the larger network.

    The four factors are floats if the ratios of all sizes are known. Otherwise they are SymPy
    products of powers of ``n`` (the ratio of widths) and ``L`` (the ratio of depths).

    Attributes
    ----------
    name
        The name of the parameter.
    role
        The role of the parameter, such as "hidden" or "readout".
    optimizer
        The optimiser that trains the parameter. Muon leaves everything except hidden matrices to
        AdamW.
    init_std
        The factor for the standard deviation of initial values.
    learning_rate
        The factor for the learning rate.
    weight_decay
        The factor for the weight decay.
    epsilon
        The factor for epsilon. For Adafactor, this is the second epsilon, the lower bound on the
        size of a parameter.
    exponents
        {name of a factor: the factor as a product of powers of the width and the depth}.
    base_std
        The standard deviation of the parameter in the base, or None if the base is not a model.
    base_entries
        The number of entries of the parameter in the base.
    shape
        The parameter's shape in the larger PyTorch model; empty for networks.
    guessed
        An operation without a rule on a path through the parameter, or "" if there is none.

    """

    name: str
    role: str
    optimizer: str
    init_std: Any
    learning_rate: Any
    epsilon: Any
    weight_decay: Any
    exponents: Mapping[str, Power] = field(repr=False)
    base_std: float | None = field(default=None, repr=False)
    base_entries: int = field(default=0, repr=False)
    shape: tuple[int, ...] = field(default=(), repr=False)
    guessed: str = field(default="", repr=False)

    def exponent(self, quantity: str, axis: str = "width") -> Fraction | sp.Expr:
        """Return the exact exponent of the width or the depth in one of the four factors.

        If several ratios n_1, n_2, ... describe the widths, the result is the sum of their
        exponents.

        Parameters
        ----------
        quantity
            "init_std", "learning_rate", "epsilon" or "weight_decay".
        axis
            "width" or "depth".

        Returns
        -------
        Fraction | sp.Expr
            The exponent, or 0 if the factor does not depend on the axis.

        Raises
        ------
        KcalcError
            If a name is unknown.

        """
        if not is_key(quantity, self.exponents):
            raise unknown("quantity", quantity, self.exponents)
        if not is_key(axis, AXES):
            raise unknown("axis", axis, AXES)
        return degrees(self.exponents[quantity])[AXES[axis]]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data, with exponents as text.

        Epsilon is None for optimisers without one.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        own = {name: getattr(self, name) for name in ("name", "role", "optimizer", *QUANTITIES)}
        powers: dict[str, str | None] = {k: str(v) for k, v in self.exponents.items()}
        if self.optimizer not in EPSILONS:
            own["epsilon"] = powers["epsilon"] = None
        told = {"guessed": self.guessed} if self.guessed else {}
        return plain(own) | {"exponents": powers} | told


AXES = {"width": 0, "depth": 1}
EPSILONS = {n: one.default for n, one in OPTIMIZERS.items() if one.default is not None}


@dataclass(frozen=True, repr=False)
class Transfer(Keyed[ParameterRule], Shown):
    """The changes in a network's settings with its width and depth, relative to a base.

    In the printed table, parameters share a row, such as ``blocks.*.up.weight``, if they have the
    same rule and their names differ only in the block number.

    Attributes
    ----------
    optimizer
        The optimiser given to :func:`kcalc.transfer`.
    gauge
        The gauge of the weights; see :func:`kcalc.transfer`.
    parameters
        {name: :class:`ParameterRule`}.
    multipliers
        {operation: its factor, a power of width and depth}.
    edits
        Descriptions of changes to the model that parameter groups cannot express.
    ratios
        {symbol: known ratio to the base}.

    """

    optimizer: str
    gauge: str
    parameters: Mapping[str, ParameterRule]
    multipliers: Mapping[str, Any]
    edits: tuple[str, ...]
    ratios: Mapping[str, float]
    assumptions: tuple[Assumption, ...] = ()
    _named = "parameter"

    @property
    def _entries(self) -> Mapping[str, ParameterRule]:
        return self.parameters

    def param_groups(
        self,
        model: Any,
        lr: float,
        weight_decay: float = 0.0,
        eps: float | None = None,
        optimizer: str | None = None,
    ) -> list[dict[str, Any]]:
        """Return parameter groups for an optimiser of ``torch.optim``.

        Parameters
        ----------
        model
            The larger model.
        lr
            The learning rate that was tuned on the base.
        weight_decay
            The weight decay that was tuned on the base.
        eps
            The epsilon that was tuned on the base: AdamW's epsilon (default 1e-8) or Adafactor's
            second epsilon (default 1e-3).
        optimizer
            The optimiser for which to return groups. It is required if parameters are divided
            between Muon and AdamW.

        Returns
        -------
        list[dict[str, Any]]
            Groups with ``params``, ``lr``, ``weight_decay`` and, for AdamW and Adafactor, ``eps``.
            Parameters with the same rule share a group.

        Raises
        ------
        KcalcError
            If the model's parameters do not match the rules, if ratios are unknown, or if a number
            is negative or not finite.

        """
        from .torch_groups import param_groups

        return param_groups(self, model, (lr, weight_decay, eps), optimizer)

    def rescale(self, model: Any) -> None:
        """Rescale the larger model's initial weights in place, as the rules require.

        Every parameter is multiplied so that its standard deviation becomes ``init_std`` times its
        value in the base. If its mean is not 0, as for gains near 1, only its deviations from the
        mean are multiplied. Constant parameters (gains of norms, zero biases) do not change.
        Parameters with fewer than 24 entries are simply multiplied by ``init_std``, because so few
        entries do not determine a standard deviation well.

        Parameters
        ----------
        model
            The larger model.

        Raises
        ------
        KcalcError
            If the model's parameters do not match the rules, or if the base was not a model.

        """
        from .torch_groups import rescale

        rescale(self, model)

    def optax(
        self, lr: float, weight_decay: float = 0.0, eps: float = 1e-8
    ) -> GradientTransformation:
        """Return an optax transformation for parameter trees.

        The name of a parameter consists of the keys on the path to its leaf, joined by dots, as in
        ``{node: {"weight": ..., "bias": ...}}`` from :meth:`kcalc.Model.unstack`. SGD, AdamW and
        Lion are supported.

        Parameters
        ----------
        lr
            The learning rate that was tuned on the base.
        weight_decay
            The weight decay that was tuned on the base.
        eps
            AdamW's epsilon on the base.

        Returns
        -------
        GradientTransformation
            A transformation that applies the rule of every parameter.

        Raises
        ------
        KcalcError
            If the optimiser is not supported, or if ratios are unknown.

        """
        from .optax_rules import transformation

        return transformation(self, lr, weight_decay, eps)

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain data.

        Returns
        -------
        dict[str, Any]
            Plain values, ready for JSON.

        """
        return {
            "optimizer": self.optimizer,
            "gauge": self.gauge,
            "ratios": dict(self.ratios),
            "parameters": [rule.to_dict() for rule in self.parameters.values()],
            "multipliers": {name: plain(factor) for name, factor in self.multipliers.items()},
            "edits": list(self.edits),
            "assumptions": plain(self.assumptions),
        }

    def _frame(self) -> list[dict[str, Any]]:
        return [
            {name: getattr(rule, name) for name in ("name", "role", "optimizer", *QUANTITIES)}
            | {f"{q}_power": str(rule.exponents[q]) for q in QUANTITIES}
            for rule in self.parameters.values()
        ]

    def _rows(self) -> list[tuple[str, ...]]:
        head = ("parameter", "role", "optimizer", "init std", "learning rate", "epsilon", "decay")
        alike: dict[tuple[str, ...], list[str]] = {}
        for name, rule in self.parameters.items():
            role = f"{rule.role} (heuristic)" if rule.guessed else rule.role
            cells = (role, rule.optimizer, *(self._cell(rule, q) for q in QUANTITIES))
            alike.setdefault((family(name), *cells), []).append(name)
        return [
            head,
            *((n[0] if len(n) == 1 else form, *cells) for (form, *cells), n in alike.items()),
        ]

    @staticmethod
    def _cell(rule: ParameterRule, quantity: str) -> str:
        number, power = getattr(rule, quantity), rule.exponents[quantity]
        if quantity == "epsilon" and rule.optimizer not in EPSILONS:
            return "-"
        text = str(power).replace("**", "^")
        return text if not isinstance(number, float) or power == 1 else f"{text} = {shown(number)}"

    def __str__(self) -> str:
        from ...foundation.printing import text_table

        lines = [repr(self), text_table(self._rows())]
        lines += [f"edit: {edit}" for edit in self.edits]
        return "\n".join(lines)

    def __repr__(self) -> str:
        known = ", ".join(f"{name} = {ratio:g}" for name, ratio in self.ratios.items())
        edits = (
            f", {len(self.edits)} edit{'s' if len(self.edits) > 1 else ''}" if self.edits else ""
        )
        return (
            f"Transfer({self.optimizer}, {len(self.parameters)} parameters"
            f"{', ' + known if known else ''}{edits})"
        )


def numbers(powers: Mapping[str, Power], ratios: Mapping[Any, float]) -> dict[str, Any]:
    """Return the powers with the ratios substituted."""
    return {name: value(power, ratios) for name, power in powers.items()}


def require_known(transfer: Transfer) -> None:
    """Check that all factors are numbers.

    Raises: KcalcError if one still contains symbols.
    """
    for rule in transfer.parameters.values():
        for quantity in QUANTITIES:
            if not isinstance(getattr(rule, quantity), float):
                raise KcalcError(
                    f"the {quantity} of {rule.name!r} is multiplied by {rule.exponents[quantity]}, "
                    "but the ratios of these sizes are unknown; pass base= and to="
                )


__all__ = ["DEPTH", "QUANTITIES", "ParameterRule", "Transfer", "numbers", "require_known"]
