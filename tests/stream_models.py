"""Models with several residual streams, in the forms in which public code writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, STREAMS, DEPTH = 32, 4, 4


class Branch(nn.Module):
    """An MLP after a norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up = nn.RMSNorm(width), nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)

    def forward(self, x: Any) -> Any:
        return self.down(F.relu(self.up(self.norm(x))))


class Attention(nn.Module):
    """Attention after a norm."""

    def __init__(self, width: int, heads: int = 4) -> None:
        super().__init__()
        self.norm, self.heads = nn.RMSNorm(width), heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: Any) -> Any:
        b, t, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(b, t, d))


class HyperConnection(nn.Module):
    """As in the appendix of Zhu et al.: one matrix reads and mixes; dynamic parts start at 0."""

    def __init__(self, width: int, streams: int, layer: int, dynamic: bool) -> None:
        super().__init__()
        home = F.one_hot(torch.tensor(layer % streams), streams).float()[:, None]
        self.static_alpha = nn.Parameter(torch.cat([home, torch.eye(streams)], dim=1))
        self.static_beta = nn.Parameter(torch.ones(streams))
        self.dynamic = dynamic
        if dynamic:
            self.norm = nn.LayerNorm(width)
            self.alpha_fn = nn.Parameter(torch.zeros(width, streams + 1))
            self.beta_fn = nn.Parameter(torch.zeros(width))
            self.alpha_scale = nn.Parameter(torch.ones(1) * 0.01)
            self.beta_scale = nn.Parameter(torch.ones(1) * 0.01)

    def forward(self, h: Any, branch: nn.Module) -> Any:
        alpha, beta = self.static_alpha[None, None, ...], self.static_beta[None, None, ...]
        if self.dynamic:
            normed = self.norm(h)
            alpha = torch.tanh(normed @ self.alpha_fn) * self.alpha_scale + alpha
            beta = torch.tanh(normed @ self.beta_fn) * self.beta_scale + beta
        else:
            beta = beta.expand(*h.shape[:2], -1)
        mixed = alpha.transpose(-1, -2) @ h
        out = branch(mixed[..., 0, :])
        return torch.einsum("blh,bln->blnh", out, beta) + mixed[..., 1:, :]


def sinkhorn(logits: Any, iterations: int = 20, eps: float = 1e-6) -> Any:
    """Rows and columns divided by their sums in turn."""
    m = torch.exp(logits)
    for _ in range(iterations):
        m = m / (m.sum(dim=-1, keepdim=True) + eps)
        m = m / (m.sum(dim=-2, keepdim=True) + eps)
    return m


def log_sinkhorn(logits: Any, iterations: int = 20) -> Any:
    """The same in logarithms."""
    u = torch.zeros(logits.shape[:-1])
    v = torch.zeros_like(u)
    for _ in range(iterations):
        u = -torch.logsumexp(logits + v.unsqueeze(-2), dim=-1)
        v = -torch.logsumexp(logits + u.unsqueeze(-1), dim=-2)
    return torch.exp(logits + u.unsqueeze(-1) + v.unsqueeze(-2))


def logits(streams: int, layer: int, home: float) -> tuple[Any, Any]:
    """The biases of what a branch reads and of the mixture, for a home stream; 0: zeros."""
    read = torch.full((streams,), -home)
    read[layer % streams] = home
    return read, 2 * home * torch.eye(streams) - home


class Manifold(nn.Module):
    """mHC of Xie et al.: gates from all streams together, and biases."""

    def __init__(
        self, width: int, streams: int, layer: int, alpha: float, home: float, std: float
    ) -> None:
        super().__init__()
        n = streams
        self.norm, self.phi = nn.RMSNorm(n * width), nn.Linear(n * width, n * n + 2 * n, bias=False)
        if std:
            nn.init.normal_(self.phi.weight, std=std)
        self.alpha_pre = nn.Parameter(torch.tensor(alpha))
        self.alpha_post = nn.Parameter(torch.tensor(alpha))
        self.alpha_res = nn.Parameter(torch.tensor(alpha))
        read, mixing = logits(n, layer, home)
        self.b_pre, self.b_res = nn.Parameter(read), nn.Parameter(mixing)
        self.b_post = nn.Parameter(torch.zeros(n))

    def forward(self, x: Any, branch: nn.Module) -> Any:
        b, t, n, _ = x.shape
        pre, post, res = self.phi(self.norm(x.flatten(2))).split([n, n, n * n], dim=-1)
        read = torch.sigmoid(self.alpha_pre * pre + self.b_pre)
        write = 2 * torch.sigmoid(self.alpha_post * post + self.b_post)
        mixing = sinkhorn(self.alpha_res * res.view(b, t, n, n) + self.b_res)
        y = branch(torch.einsum("btn,btnd->btd", read, x))
        return torch.einsum("btij,btjd->btid", mixing, x) + write.unsqueeze(-1) * y.unsqueeze(-2)


class Several(nn.Module):
    """Sub-layers around streams on axis 2, of tokens (ids if ``vocabulary``) or vectors."""

    def __init__(
        self,
        kind: str = "mHC",
        *,
        width: int = WIDTH,
        streams: int = STREAMS,
        depth: int = DEPTH,
        alpha: float = 0.01,
        home: float = 3.0,
        std: float = 0.0,
        dynamic: bool = True,
        vocabulary: int = 0,
        readout: str = "sum",
    ) -> None:
        super().__init__()
        self.streams, self.readout = streams, readout
        self.embed = nn.Embedding(vocabulary, width) if vocabulary else nn.Linear(width, width)
        self.connections = nn.ModuleList(
            HyperConnection(width, streams, i, dynamic)
            if kind == "HC"
            else Manifold(width, streams, i, alpha, home, std)
            for i in range(depth)
        )
        self.branches = nn.ModuleList(
            Attention(width) if vocabulary and i % 2 == 0 else Branch(width) for i in range(depth)
        )
        self.norm, self.head = nn.RMSNorm(width), nn.Linear(width, vocabulary or 10)

    def forward(self, x: Any) -> Any:
        h = self.embed(x).unsqueeze(2).repeat(1, 1, self.streams, 1)
        for connection, branch in zip(self.connections, self.branches, strict=True):
            h = connection(h, branch)
        h = h.sum(2) if self.readout == "sum" else h.mean(2)
        return self.head(self.norm(h))


class Static(nn.Module):
    """Gates that are only parameters; streams on axis 1, or (``folded``) with the examples."""

    def __init__(
        self,
        home: float = 0.0,
        *,
        width: int = WIDTH,
        depth: int = DEPTH,
        folded: bool = False,
        softmax: bool = False,
        noise: float = 0.0,
    ) -> None:
        super().__init__()
        n = STREAMS
        self.folded, self.softmax = folded, softmax
        self.embed = nn.Linear(width, width)
        biases = [logits(n, i, home) for i in range(depth)]
        self.h_pre = nn.ParameterList(nn.Parameter(read) for read, _ in biases)
        self.h_res = nn.ParameterList(
            nn.Parameter(mixing + noise * torch.randn(n, n)) for _, mixing in biases
        )
        self.h_post = nn.ParameterList(nn.Parameter(torch.zeros(n)) for _ in range(depth))
        self.branches = nn.ModuleList(Branch(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any) -> Any:
        (b, d), n = x.shape, STREAMS
        h = self.embed(x).unsqueeze(1).expand(b, n, d)
        if self.folded:
            h = h.reshape(b * n, d)
        for pre, res, post, branch in zip(
            self.h_pre, self.h_res, self.h_post, self.branches, strict=True
        ):
            read = pre.softmax(-1) if self.softmax else torch.sigmoid(pre)
            write = post.softmax(-1) if self.softmax else 2.0 * torch.sigmoid(post)
            mixing = log_sinkhorn(res) if self.softmax else sinkhorn(res)
            if self.folded:
                h = h.reshape(b, n, d)
            y = branch(torch.einsum("i,bid->bd", read, h))
            out = torch.einsum("bd,i->bid", y, write)
            h = torch.einsum("ij,bjd->bid", mixing, h)
            h = out.reshape(b * n, d) + h.reshape(b * n, d) if self.folded else out + h
        return self.head(h.reshape(b, n, d).sum(1))


class AttentionResiduals(nn.Module):
    """Every branch reads a softmax over the outputs before it, with a query that starts at 0."""

    def __init__(self, width: int = WIDTH, depth: int = DEPTH) -> None:
        super().__init__()
        self.embed = nn.Linear(width, width)
        self.queries = nn.ParameterList(nn.Parameter(torch.zeros(width)) for _ in range(depth + 1))
        self.norms = nn.ModuleList(nn.RMSNorm(width) for _ in range(depth + 1))
        self.branches = nn.ModuleList(Branch(width) for _ in range(depth))
        self.head = nn.Linear(width, 10)

    def mixed(self, values: list[Any], place: int) -> Any:
        v = torch.stack(values)
        scores = torch.einsum("d,nbtd->nbt", self.queries[place], self.norms[place](v))
        return torch.einsum("nbt,nbtd->btd", scores.softmax(0), v)

    def forward(self, x: Any) -> Any:
        values = [self.embed(x)]
        for i, branch in enumerate(self.branches):
            values.append(branch(self.mixed(values, i)))
        return self.head(self.mixed(values, len(self.branches)))
