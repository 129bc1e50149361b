"""Write PyTorch modules: functions, ``nn.Module`` classes and in-place initialisers.

Channels are on axis 1.
"""

from __future__ import annotations

from .content import Content
from .python_module import Framework, module_text
from .python_text import Dialect

DIALECT = Dialect.of_module(
    "torch", "torch.where({}, {}, {})", "torch.clamp({}, max={})",
    erf="torch.erf({})", erfc="torch.erfc({})", relu="torch.relu({})", logistic="torch.sigmoid({})",
    softplus="F.softplus({}, threshold=40.0)",
)  # fmt: skip

EXTRA = '''


class {title}(nn.Module):
    """A module that applies :func:`{name}`."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return {name}(x)'''

CENTRE = '''
def _centre(weight: torch.Tensor) -> torch.Tensor:
    """Return a view of the centre tap of a weight (out, in / groups, *window); for dense layers, the whole weight.

    In windows of even size, it is the tap after the centre.
    """
    return weight[(slice(None), slice(None), *(extent // 2 for extent in weight.shape[2:]))]
'''
NORMAL = '''
def _normal(weight: torch.Tensor, *shape: int, generator: torch.Generator | None) -> torch.Tensor:
    """Draw standard normal numbers on the weight's device, with at least float32 precision."""
    dtype = torch.promote_types(weight.dtype, torch.float32)
    return torch.randn(shape, dtype=dtype, device=weight.device, generator=generator)
'''
CHECK = '''
def _outputs(weight: torch.Tensor, groups: int) -> int:
    """Return the number of output channels per group."""
    if groups < 1 or weight.shape[0] % groups:
        raise ValueError(f"{weight.shape[0]} output channels cannot be divided into {groups} groups")
    return weight.shape[0] // groups
'''
DELTA = '''
@torch.no_grad()
def delta_orthogonal_(
    weight: torch.Tensor, groups: int = 1, sigma_w: float = 1.0, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Fill the weight of a Linear or Conv layer, (out, in / groups, *window), and return it.

    Only the centre tap of a convolution is nonzero. In every group of k inputs and m outputs, it is a uniformly
    random matrix with orthonormal rows (m <= k) or columns, multiplied by sigma_w max(sqrt(m / k), 1). Its entries
    have variance sigma_w^2 / k.
    """
    outputs, inputs = _outputs(weight, groups), weight.shape[1]
    centre = _centre(weight.zero_())
    for group in range(groups):
        noise = _normal(weight, max(inputs, outputs), min(inputs, outputs), generator=generator)
        q, r = torch.linalg.qr(noise)
        q = q * torch.where(torch.diagonal(r) < 0, -1.0, 1.0).to(q.dtype)
        q = sigma_w * math.sqrt(max(inputs, outputs) / inputs) * (q if outputs >= inputs else q.T)
        centre[group * outputs : (group + 1) * outputs] = q.to(weight.dtype)
    return weight


@torch.no_grad()
def delta_gaussian_(
    weight: torch.Tensor, groups: int = 1, sigma_w: float = 1.0, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Fill a weight as :func:`delta_orthogonal_`, but with independent Gaussian entries of variance sigma_w^2 / k."""
    _outputs(weight, groups)
    centre = _centre(weight.zero_())
    noise = _normal(weight, *centre.shape, generator=generator)
    centre.copy_(sigma_w / math.sqrt(weight.shape[1]) * noise)
    return weight
'''
GAUSSIAN = '''
@torch.no_grad()
def gaussian_(
    weight: torch.Tensor, groups: int = 1, sigma_w: float = 1.0, generator: torch.Generator | None = None
) -> torch.Tensor:
    """Fill the weight of a Linear or Conv layer, (out, in / groups, *window), with Gaussian entries in all taps.

    Their variance is sigma_w^2 / fan-in, where the fan-in includes the taps. SIGMAS has sigma_w for each layer.
    """
    _outputs(weight, groups)
    weight.copy_(sigma_w / math.sqrt(weight[0].numel()) * _normal(weight, *weight.shape, generator=generator))
    return weight
'''
INITIALISE = '''

TRANSPOSED = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)


@torch.no_grad()
def initialise(
    model: nn.Module,
    fill=LAW,
    sigmas: dict[str, tuple[float, float]] | None = None,
    generator: torch.Generator | None = None,
) -> nn.Module:
    """Fill all Linear, Conv and ConvTranspose layers of a model in place, and return it.

    Biases become 0 unless sigma_b is given. A warning names weights of other layers, which stay as they are.
    ``sigmas``: {module name: (sigma_w, sigma_b)} for layers with other values than (1, 0).
    """
    filled = set()
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d, *TRANSPOSED)):
            sigma_w, sigma_b = (sigmas or {}).get(name, (1.0, 0.0))
            if isinstance(module, TRANSPOSED):
                _fill_transposed(module, fill, sigma_w, generator)
            else:
                fill(module.weight, getattr(module, "groups", 1), sigma_w, generator)
            filled.add(module.weight)
            if module.bias is not None:
                module.bias.copy_(sigma_b * _normal(module.bias, *module.bias.shape, generator=generator))
    others = [name for name, weight in model.named_parameters() if weight.dim() > 1 and weight not in filled]
    if others:
        warnings.warn(f"initialise leaves these weights unchanged: {', '.join(others)}", stacklevel=2)
    return model
'''
SPREAD = '''

def _fill_transposed(module, fill, sigma_w: float, generator: torch.Generator | None) -> None:
    """Fill the weight (in, out / groups, *window) so that every output location reads one input location."""
    window, stride, groups = module.kernel_size, module.stride, module.groups
    shape = (module.out_channels, module.in_channels // groups, *(1 for _ in window))
    matrix = fill(module.weight.new_empty(shape), groups, sigma_w, generator)
    blocks = matrix.reshape(groups, -1, *shape[1:]).transpose(1, 2)
    first = [extent // 2 if step == 1 else max((extent - step) // 2, 0) for extent, step in zip(window, stride)]
    taps = [
        slice(max(extent - start - step, 0), extent - start) for extent, start, step in zip(window, first, stride)
    ]
    module.weight.zero_()[(..., *taps)] = blocks.reshape(module.in_channels, -1, *shape[2:])
'''
SPREAD_GAUSSIAN = '''

def _fill_transposed(module, fill, sigma_w: float, generator: torch.Generator | None) -> None:
    """Fill the weight (in, out / groups, *window), where an output location reads 1 / stride of the taps."""
    window, groups = module.kernel_size, module.groups
    read = math.prod(min(extent, step) for extent, step in zip(window, module.stride))
    shape = (module.out_channels, module.in_channels // groups, *window)
    weight = fill(module.weight.new_empty(shape), groups, sigma_w * math.sqrt(read), generator)
    blocks = weight.reshape(groups, -1, *shape[1:]).transpose(1, 2)
    module.weight.copy_(blocks.reshape(module.weight.shape))
'''
STANDARDISE = '''
def standardise(weight: torch.Tensor, sigma_w: float = 1.0) -> torch.Tensor:
    """Return a weight (out, in / groups, *window) with mean 0 and norm sigma_w over the fan-in, for every step.

    Parametrise a layer by ``torch.nn.utils.parametrize.register_parametrization(layer, "weight", Standardise())``.
    """
    axes = tuple(range(1, weight.dim()))
    centred = weight - weight.mean(dim=axes, keepdim=True)
    return sigma_w * centred / torch.linalg.vector_norm(centred, dim=axes, keepdim=True)


class Standardise(nn.Module):
    """A parametrisation that applies :func:`standardise`."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return standardise(weight)
'''
LOCATIONS = '''
def normalise_locations(x: torch.Tensor, extra: str = "mean_norm", value: float = 1.0) -> torch.Tensor:
    """Normalise inputs (batch, channels, *locations) so that every location has mean square 1.

    A new last channel keeps information about the norm: ``extra`` "mean_norm" adds the root mean square of the
    example, "constant" adds ``value``, and "none" adds no channel. Locations where all channels are 0 become nan.
    """
    if extra not in ("mean_norm", "constant", "none"):
        raise ValueError(f'extra must be "mean_norm", "constant" or "none", got {extra!r}')
    channels, locations = x.shape[1], tuple(range(2, x.dim()))
    unit = x.abs().amax(dim=(1, *locations) if extra == "mean_norm" else 1, keepdim=True)
    if extra == "constant":
        unit = unit.clamp(min=value)
    x = x / unit
    squares = (x * x).sum(dim=1, keepdim=True)
    if extra == "none":
        return x * (math.sqrt(channels) / squares.sqrt())
    if extra == "constant":
        added = value / unit
    else:
        mean = squares.mean(dim=locations, keepdim=True) if locations else squares
        added = (mean / channels).sqrt().expand_as(squares)
    return torch.cat([x, added], dim=1) * (math.sqrt(channels + 1) / (squares + added * added).sqrt())


class NormaliseLocations(nn.Module):
    """A module that applies :func:`normalise_locations`."""

    def __init__(self, extra: str = "mean_norm", value: float = 1.0) -> None:
        super().__init__()
        self.extra, self.value = extra, value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return normalise_locations(x, self.extra, self.value)
'''

FRAMEWORK = Framework(
    "PyTorch",
    {
        "math": "import math",
        "warnings": "import warnings",
        "torch": "import torch",
        "F": "import torch.nn.functional as F",
        "nn": "from torch import nn",
    },
    "torch.Tensor",
    DIALECT,
    LOCATIONS,
    DELTA + SPREAD + INITIALISE.replace("LAW", "delta_orthogonal_"),
    GAUSSIAN + SPREAD_GAUSSIAN + INITIALISE.replace("LAW", "gaussian_"),
    STANDARDISE,
    helpers=(("_outputs", CHECK), ("_normal", NORMAL), ("_centre", CENTRE)),
    extra=EXTRA,
)


def write_torch(content: Content) -> str:
    """Return the text of the PyTorch module."""
    return module_text(content, FRAMEWORK)
