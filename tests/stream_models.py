"""Models with several residual streams, in the forms in which public code writes them."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

WIDTH, STREAMS, DEPTH = 32, 4, 4


class Branch(nn.Module):
    """An MLP after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x: Any) -> Any:
        return self.down(F.relu(self.up(self.norm(x))))


class Attention(nn.Module):
    """Attention in four heads after a norm."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.out = nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).view(*x.shape[:2], 3, 4, -1).permute(2, 0, 3, 1, 4)
        return self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class HyperConnection(nn.Module):
    """As in the appendix of Zhu et al.: one matrix reads and mixes; dynamic parts start at 0."""

    def __init__(self, layer: int, dynamic: bool) -> None:
        super().__init__()
        home = F.one_hot(torch.tensor(layer % STREAMS), STREAMS).float()[:, None]
        self.static_alpha = nn.Parameter(torch.cat([home, torch.eye(STREAMS)], dim=1))
        self.static_beta = nn.Parameter(torch.ones(STREAMS))
        self.dynamic = dynamic
        if dynamic:
            self.norm = nn.LayerNorm(WIDTH)
            self.alpha_fn = nn.Parameter(torch.zeros(WIDTH, STREAMS + 1))
            self.beta_fn = nn.Parameter(torch.zeros(WIDTH))
            self.alpha_scale, self.beta_scale = (
                nn.Parameter(0.01 * torch.ones(1)) for _ in range(2)
            )

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


def sinkhorn(logits: Any) -> Any:
    """Rows and columns divided by their sums in turn."""
    m = torch.exp(logits)
    for _ in range(20):
        m = m / (m.sum(dim=-1, keepdim=True) + 1e-6)
        m = m / (m.sum(dim=-2, keepdim=True) + 1e-6)
    return m


def log_sinkhorn(logits: Any) -> Any:
    """The same in logarithms."""
    v = torch.zeros(logits.shape[:-1])
    for _ in range(20):
        u = -torch.logsumexp(logits + v.unsqueeze(-2), dim=-1)
        v = -torch.logsumexp(logits + u.unsqueeze(-1), dim=-2)
    return torch.exp(logits + u.unsqueeze(-1) + v.unsqueeze(-2))


def logits(layer: int, home: float) -> tuple[Any, Any]:
    """The biases of what a branch reads and of the mixture, for a home stream; 0: zeros."""
    read = torch.full((STREAMS,), -home)
    read[layer % STREAMS] = home
    return read, 2 * home * torch.eye(STREAMS) - home


class Manifold(nn.Module):
    """mHC of Xie et al.: gates from all streams together, and biases."""

    def __init__(self, layer: int, alpha: float, home: float, std: float) -> None:
        super().__init__()
        n = STREAMS
        self.norm, self.phi = nn.RMSNorm(n * WIDTH), nn.Linear(n * WIDTH, n * n + 2 * n, bias=False)
        if std:
            nn.init.normal_(self.phi.weight, std=std)
        self.alpha_pre, self.alpha_post, self.alpha_res = (
            nn.Parameter(torch.tensor(alpha)) for _ in range(3)
        )
        self.b_pre, self.b_res = map(nn.Parameter, logits(layer, home))
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
        alpha: float = 0.01,
        home: float = 3.0,
        std: float = 0.0,
        dynamic: bool = True,
        vocabulary: int = 0,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, WIDTH) if vocabulary else nn.Linear(WIDTH, WIDTH)
        self.connections = nn.ModuleList(
            HyperConnection(i, dynamic) if kind == "HC" else Manifold(i, alpha, home, std)
            for i in range(DEPTH)
        )
        self.branches = nn.ModuleList(
            Attention() if vocabulary and i % 2 == 0 else Branch() for i in range(DEPTH)
        )
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, vocabulary or 10)

    def forward(self, x: Any) -> Any:
        h = self.embed(x).unsqueeze(2).repeat(1, 1, STREAMS, 1)
        for connection, branch in zip(self.connections, self.branches, strict=True):
            h = connection(h, branch)
        return self.head(self.norm(h.sum(2)))


class Static(nn.Module):
    """Gates that are only parameters; streams on axis 1, or (``folded``) with the examples."""

    def __init__(
        self,
        home: float = 0.0,
        *,
        folded: bool = False,
        softmax: bool = False,
        noise: float = 0.0,
    ) -> None:
        super().__init__()
        self.folded, self.softmax = folded, softmax
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        self.h_pre, self.h_res = map(
            nn.ParameterList, zip(*(logits(i, home) for i in range(DEPTH)), strict=True)
        )
        with torch.no_grad():
            for res in self.h_res:
                res += noise * torch.randn(STREAMS, STREAMS)
        self.h_post = nn.ParameterList(torch.zeros(STREAMS) for _ in range(DEPTH))
        self.branches = nn.ModuleList(Branch() for _ in range(DEPTH))

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

    def __init__(self, depth: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 10)
        self.queries = nn.ParameterList(torch.zeros(WIDTH) for _ in range(depth + 1))
        self.norms = nn.ModuleList(nn.RMSNorm(WIDTH) for _ in range(depth + 1))
        self.branches = nn.ModuleList(Branch() for _ in range(depth))

    def mixed(self, values: list[Any], place: int) -> Any:
        v = torch.stack(values)
        scores = torch.einsum("d,nbtd->nbt", self.queries[place], self.norms[place](v))
        return torch.einsum("nbt,nbtd->btd", scores.softmax(0), v)

    def forward(self, x: Any) -> Any:
        values = [self.embed(x)]
        for i, branch in enumerate(self.branches):
            values.append(branch(self.mixed(values, i)))
        return self.head(self.mixed(values, len(self.branches)))
