"""Code that a model runs in place of the edited one, as in training, is told or refused."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
nn, F = torch.nn, torch.nn.functional

import kcalc as kc  # noqa: E402

N = 8


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.a, self.b, self.c = (nn.Linear(N, N) for _ in range(3))


class Chosen(Net):
    """Calls an activation by a name that depends on the mode."""

    def forward(self, x: Any) -> Any:
        act = torch.tanh if self.training else F.relu
        return self.c(act(self.b(act(self.a(x)))))


class Listed(Net):
    def forward(self, x: Any) -> Any:
        for act, layer in zip((torch.tanh, F.gelu), (self.a, self.b), strict=True):
            x = act(layer(x))
        return self.c(x)


def shaped(net: Any, **options: Any) -> tuple[Any, Any]:
    x = torch.randn(4, N)
    s = kc.shape(kc.read(net.eval(), x), **options)
    return s, s.apply_to(net, x)


def test_another_function_under_the_same_name_is_refused():
    _, made = shaped(Chosen())
    x = torch.randn(4, N)
    assert made(x).shape == (4, N)
    with pytest.raises(kc.KcalcError, match="tanh.*relu"):
        made.train()(x)


@pytest.mark.parametrize("options", [{}, {"activation": "tanh", "method": "dks", "zeta": 1.5}])
def test_several_functions_at_one_call_stay(options):
    _, made = shaped(Listed(), **options)
    assert made(torch.randn(2, N)).shape == (2, N)
