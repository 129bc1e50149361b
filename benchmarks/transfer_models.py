"""Small PyTorch models of the families in :mod:`benchmarks.transfer_families`, built by width."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

HEAD = 16  # channels of a head
VOCABULARY = 50


class Perceptron(nn.Module):
    """Two hidden layers and an activation, which may have learned parameters."""

    def __init__(self, width: int, act: nn.Module | None = None) -> None:
        super().__init__()
        self.i, self.f, self.o = nn.Linear(16, width), nn.Linear(width, width), nn.Linear(width, 5)
        self.act = act or nn.ReLU()

    def forward(self, x: Any) -> Any:
        return self.o(self.act(self.f(self.act(self.i(x)))))


class Swish(nn.Module):
    """x sigmoid(beta x)."""

    def __init__(self) -> None:
        super().__init__()
        self.beta = nn.Parameter(torch.ones(1))

    def forward(self, x: Any) -> Any:
        return x * torch.sigmoid(self.beta * x)


class Block(nn.Module):
    """A pre-norm transformer block; ``norm`` builds its norms."""

    def __init__(self, width: int, causal: bool = True, norm: Any = nn.LayerNorm) -> None:
        super().__init__()
        self.causal, self.a, self.b = causal, norm(width), norm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def read(self, x: Any) -> Any:
        heads = [p.unflatten(2, (-1, HEAD)).transpose(1, 2) for p in self.qkv(x).chunk(3, 2)]
        read = F.scaled_dot_product_attention(*heads, is_causal=self.causal)
        return self.out(read.transpose(1, 2).flatten(2))

    def forward(self, x: Any) -> Any:
        x = x + self.read(self.a(x))
        return x + self.down(F.gelu(self.up(self.b(x))))


class DynamicTanh(nn.Module):
    """A replacement for a norm, gain tanh(alpha x) + bias."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.full((1,), 0.5))
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))

    def forward(self, x: Any) -> Any:
        return self.weight * torch.tanh(self.alpha * x) + self.bias


class GPT(nn.Module):
    """A GPT with learned positions. With ``loss``, forward also takes the targets and returns the
    loss.
    """

    def __init__(self, width: int, norm: Any = nn.LayerNorm, loss: bool = False) -> None:
        super().__init__()
        self.loss = loss
        self.emb, self.pos = nn.Embedding(VOCABULARY, width), nn.Embedding(8, width)
        self.blocks = nn.ModuleList(Block(width, norm=norm) for _ in range(2))
        self.norm, self.o = norm(width), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: Any, targets: Any = None) -> Any:
        x = self.emb(ids) + self.pos(torch.arange(ids.shape[1], device=ids.device))
        for block in self.blocks:
            x = block(x)
        logits = self.o(self.norm(x))
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()) if self.loss else logits


class Nanochat(GPT):
    """A learned number per block for the stream, and one for the embedding."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        del self.pos
        self.resid = nn.Parameter(torch.ones(2))
        self.first = nn.Parameter(torch.full((2,), 0.1))

    def forward(self, ids: Any, targets: Any = None) -> Any:
        start = x = self.emb(ids)
        for i, block in enumerate(self.blocks):
            x = block(self.resid[i] * x + self.first[i] * start)
        return self.o(self.norm(x))


class Llama(nn.Module):
    """A model with RMS norms, rotary positions, gated MLPs, and keys shared by several heads.

    ``fused``: one projection for queries, keys and values and one for both halves of the MLP, as in
    Phi-3. ``root``: embeddings multiplied by the square root of the width, and a tied head, as in
    Gemma.
    """

    def __init__(self, width: int, fused: bool = False, root: bool = False) -> None:
        super().__init__()
        self.fused, self.root, self.heads = fused, root, width // HEAD
        self.emb = nn.Embedding(VOCABULARY, width)
        self.a, self.b, self.c = (nn.RMSNorm(width) for _ in range(3))
        keys = width // 2
        if fused:
            self.qkv = nn.Linear(width, width + 2 * keys, bias=False)
            self.gate_up = nn.Linear(width, 4 * width, bias=False)
        else:
            self.q = nn.Linear(width, width, bias=False)
            self.k, self.v = (nn.Linear(width, keys, bias=False) for _ in range(2))
            self.gate, self.up = (nn.Linear(width, 2 * width, bias=False) for _ in range(2))
        self.out, self.down = (
            nn.Linear(width, width, bias=False),
            nn.Linear(2 * width, width, bias=False),
        )
        self.o = nn.Linear(width, VOCABULARY, bias=False)
        if root:
            self.o.weight = self.emb.weight
            nn.init.normal_(self.emb.weight, std=width**-0.5)

    def forward(self, ids: Any) -> Any:
        x = self.emb(ids)
        width = x.shape[-1]
        if self.root:
            x = x * width**0.5
        h = self.a(x)
        if self.fused:
            q, k, v = self.qkv(h).split([width, width // 2, width // 2], 2)
        else:
            q, k, v = self.q(h), self.k(h), self.v(h)
        q, k, v = (p.unflatten(2, (-1, HEAD)).transpose(1, 2) for p in (q, k, v))
        k, v = (p.repeat_interleave(2, 1) for p in (k, v))
        read = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(read.transpose(1, 2).flatten(2))
        h = self.b(x)
        gate, up = self.gate_up(h).chunk(2, 2) if self.fused else (self.gate(h), self.up(h))
        x = x + self.down(F.silu(gate) * up)
        return self.o(self.c(x))


class T5(nn.Module):
    """Attention with unscaled scores and a table of biases by distance for each head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.emb, self.a = nn.Embedding(VOCABULARY, width), nn.RMSNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.table, self.o = nn.Embedding(8, self.heads), nn.Linear(width, VOCABULARY, bias=False)

    def forward(self, ids: Any) -> Any:
        x = self.emb(ids)
        h = self.a(x)
        q, k, v = (m(h).unflatten(2, (-1, HEAD)).transpose(1, 2) for m in (self.q, self.k, self.v))
        place = torch.arange(ids.shape[1])
        apart = (place[:, None] - place[None, :]).clamp(-3, 4) + 3
        scores = q @ k.transpose(2, 3) + self.table(apart).permute(2, 0, 1)[None]
        read = scores.softmax(-1) @ v
        return self.o(x + self.out(read.transpose(1, 2).flatten(2)))


class Temperatures(nn.Module):
    """Attention with queries and keys of length 1 and a temperature per head."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.heads = width // HEAD
        self.i, self.qkv = nn.Linear(16, width), nn.Linear(width, 3 * width)
        self.tau = nn.Parameter(torch.full((self.heads, 1, 1), 2.0))
        self.out, self.o = nn.Linear(width, width), nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        x = self.i(x)
        q, k, v = (p.unflatten(2, (-1, HEAD)).transpose(1, 2) for p in self.qkv(x).chunk(3, 2))
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(2, 3) * self.tau
        read = scores.softmax(-1) @ v
        return self.o((x + self.out(read.transpose(1, 2).flatten(2))).mean(1))


class ViT(nn.Module):
    """A vision transformer with patches, a class token and learned positions."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.patch = nn.Conv2d(3, width, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, width) * 0.02)
        self.pos = nn.Parameter(torch.randn(1, 17, width) * 0.02)
        self.block, self.norm = Block(width, causal=False), nn.LayerNorm(width)
        self.o = nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        x = self.patch(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.pos
        return self.o(self.norm(self.block(x))[:, 0])


class Encoder(nn.Module):
    """A post-norm transformer, like BERT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.emb, self.a, self.b = (
            nn.Embedding(VOCABULARY, width),
            nn.LayerNorm(width),
            nn.LayerNorm(width),
        )
        self.block, self.o = Block(width, causal=False), nn.Linear(width, 5)
        del self.block.a, self.block.b

    def forward(self, ids: Any) -> Any:
        x = self.emb(ids)
        x = self.a(x + self.block.read(x))
        x = self.b(x + self.block.down(F.gelu(self.block.up(x))))
        return self.o(x)


class Mixture(nn.Module):
    """A mixture of experts weighted by a router: all experts, or the best ``top`` of them."""

    def __init__(self, width: int, top: int = 0) -> None:
        super().__init__()
        self.top = top
        self.i, self.norm = nn.Linear(16, width), nn.LayerNorm(width)
        self.router = nn.Linear(width, 4)
        self.up = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.down = nn.ModuleList(nn.Linear(width, width) for _ in range(4))
        self.o = nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        x = self.i(x)
        h = self.norm(x)
        gates = self.router(h).softmax(-1)
        if self.top:
            best, places = gates.topk(self.top, -1)
            gates = torch.zeros_like(gates).scatter(-1, places, best / best.sum(-1, keepdim=True))
        outs = torch.stack(
            [d(F.relu(u(h))) for u, d in zip(self.up, self.down, strict=True)], dim=-1
        )
        return self.o(x + (outs * gates.unsqueeze(-2)).sum(-1))


class UNet(nn.Module):
    """A U-Net with one concatenation; ``up`` selects how it returns to the large image."""

    def __init__(self, width: int, up: str = "nearest", time: bool = False) -> None:
        super().__init__()
        self.up = up
        self.a = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 3, stride=2, padding=1)
        if up == "turned":
            self.turned = nn.ConvTranspose2d(2 * width, width, 2, 2)
        else:
            self.back = nn.Conv2d(2 * width, width, 3, padding=1)
        self.both = nn.Conv2d(2 * width, width, 3, padding=1)
        self.o = nn.Conv2d(width, 3, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(8, width), nn.SiLU(), nn.Linear(width, 2 * width))
        self.timed = time
        if not time:
            del self.time

    def forward(self, x: Any, t: Any = None) -> Any:
        a = F.silu(self.a(x))
        h = self.down(a)
        if self.timed:
            h = h + self.time(t)[:, :, None, None]
        h = F.silu(h)
        if self.up == "turned":
            h = self.turned(h)
        else:
            h = self.back(F.interpolate(h, scale_factor=2, mode=self.up))
        return self.o(F.silu(self.both(torch.cat([a, h], 1))))


class Generator(nn.Module):
    """DCGAN's generator: a Linear that produces a small image, transposed convolutions and batch
    norms.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.a = nn.Linear(16, 2 * width * 16), nn.BatchNorm2d(2 * width)
        self.up, self.b = nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.BatchNorm2d(width)
        self.last = nn.ConvTranspose2d(width, 3, 4, 2, 1)

    def forward(self, z: Any) -> Any:
        h = F.relu(self.a(self.first(z).view(len(z), -1, 4, 4)))
        return torch.tanh(self.last(F.relu(self.b(self.up(h)))))


class SuperResolution(nn.Module):
    """Channels become locations."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = (
            nn.Conv2d(3, width, 3, padding=1),
            nn.Conv2d(width, 4 * width, 3, padding=1),
        )
        self.o = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, x: Any) -> Any:
        return self.o(F.relu(F.pixel_shuffle(self.b(F.relu(self.a(x))), 2)))


class Variational(nn.Module):
    """A VAE with a code of fixed size, which draws its own noise."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.mean, self.spread = (
            nn.Linear(16, width),
            nn.Linear(width, 4),
            nn.Linear(width, 4),
        )
        self.b, self.o = nn.Linear(4, width), nn.Linear(width, 16)

    def forward(self, x: Any) -> Any:
        h = F.relu(self.a(x))
        mean, spread = self.mean(h), self.spread(h)
        code = mean + torch.randn_like(mean) * (0.5 * spread).exp()
        return self.o(F.relu(self.b(code)))


class Quantised(nn.Module):
    """A VQ-VAE: selects the nearest code, with a straight-through gradient and two extra losses."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.c = nn.Linear(16, width), nn.Linear(width, 4)
        self.codes = nn.Embedding(12, 4)
        self.b, self.o = nn.Linear(4, width), nn.Linear(width, 16)

    def forward(self, x: Any) -> Any:
        code = self.c(F.relu(self.a(x)))
        near = self.codes(torch.cdist(code, self.codes.weight).argmin(-1))
        out = self.o(F.relu(self.b(code + (near - code).detach())))
        return out, (near - code.detach()).square(), (near.detach() - code).square()


class TwoHalves(nn.Module):
    """A language model that also reads the words that it selected."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.emb, self.f, self.o = (
            nn.Embedding(VOCABULARY, width),
            nn.Linear(width, width),
            nn.Linear(width, VOCABULARY),
        )
        self.emb2, self.f2 = nn.Embedding(VOCABULARY, width), nn.Linear(width, width)
        self.o2 = nn.Linear(width, 5)

    def forward(self, ids: Any) -> Any:
        logits = self.o(F.relu(self.f(self.emb(ids))))
        return logits, self.o2(F.relu(self.f2(self.emb2(logits.argmax(-1)))))


class Siamese(nn.Module):
    """A model with one encoder for both inputs."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.i, self.f, self.o = nn.Linear(16, width), nn.Linear(width, width), nn.Linear(width, 5)

    def encode(self, x: Any) -> Any:
        return F.relu(self.f(F.relu(self.i(x))))

    def forward(self, x: Any, y: Any) -> Any:
        return self.o((self.encode(x) - self.encode(y)).abs())


class TiedAutoencoder(nn.Module):
    """An autoencoder that decodes with the encoder's matrix."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, width), nn.Linear(width, width)

    def forward(self, x: Any) -> Any:
        h = F.relu(self.b(F.relu(self.a(x))))
        return h @ self.a.weight


class Field(nn.Module):
    """NeRF: one matrix reads both hidden channels and the coordinates."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b, self.o = (
            nn.Linear(16, width),
            nn.Linear(width + 16, width),
            nn.Linear(width, 4),
        )

    def forward(self, x: Any) -> Any:
        return self.o(F.relu(self.b(torch.cat([F.relu(self.a(x)), x], 1))))


class ConvNeXt(nn.Module):
    """ConvNeXt V2: a depthwise convolution, a norm, and a global response norm."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.stem, self.depth = (
            nn.Conv2d(3, width, 4, 4),
            nn.Conv2d(width, width, 3, 1, 1, groups=width),
        )
        self.norm, self.up, self.down = (
            nn.LayerNorm(width),
            nn.Linear(width, 4 * width),
            nn.Linear(4 * width, width),
        )
        self.gamma = nn.Parameter(torch.ones(1, 1, 1, 4 * width))
        self.beta = nn.Parameter(torch.zeros(1, 1, 1, 4 * width))
        self.o = nn.Linear(width, 5)

    def forward(self, x: Any) -> Any:
        x = self.stem(x)
        h = F.gelu(self.up(self.norm(self.depth(x).permute(0, 2, 3, 1))))
        length = torch.norm(h, p=2, dim=(1, 2), keepdim=True)
        scaled = length / (length.mean(dim=-1, keepdim=True) + 1e-6)
        h = self.gamma * (h * scaled) + self.beta + h
        return self.o((x + self.down(h).permute(0, 3, 1, 2)).mean((2, 3)))


class Maxout(nn.Module):
    """A layer that takes the largest of several channels."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.b, self.o = (
            nn.Linear(16, 3 * width),
            nn.Linear(width, 3 * width),
            nn.Linear(width, 5),
        )

    def forward(self, x: Any) -> Any:
        h = self.a(x).unflatten(1, (-1, 3)).amax(2)
        return self.o(self.b(h).unflatten(1, (-1, 3)).amax(2))


class WeightNorm(nn.Module):
    """A layer with weights g v / |v|."""

    def __init__(self, width: int) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.weight_norm
        self.i, self.f, self.o = (
            norm(nn.Linear(16, width)),
            norm(nn.Linear(width, width)),
            nn.Linear(width, 5),
        )

    def forward(self, x: Any) -> Any:
        return self.o(F.relu(self.f(F.relu(self.i(x)))))


class Gated(nn.Module):
    """A gate that multiplies all features of an example; with ``each``, a squeeze-and-excitation
    gate.
    """

    def __init__(self, width: int, each: bool = False) -> None:
        super().__init__()
        self.each, self.i, self.o = each, nn.Conv2d(3, width, 3, padding=1), nn.Linear(width, 5)
        self.f = nn.Conv2d(width, width, 3, padding=1)
        self.gate = nn.Linear(width, width if each else 1)

    def forward(self, x: Any) -> Any:
        x = F.relu(self.i(x))
        gate = torch.sigmoid(self.gate(x.mean((2, 3))))[:, :, None, None]
        return self.o((x + self.f(x) * gate).mean((2, 3)))


class Recurrent(nn.Module):
    """An LSTM over tokens."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.emb, self.lstm = (
            nn.Embedding(VOCABULARY, width),
            nn.LSTM(width, width, batch_first=True),
        )
        self.o = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Any) -> Any:
        return self.o(self.lstm(self.emb(ids))[0])


class TwoTowers(nn.Module):
    """CLIP: cosines between two codes of fixed size, multiplied by a learned temperature."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.a, self.f, self.p = nn.Linear(16, width), nn.Linear(width, width), nn.Linear(width, 8)
        self.b, self.g, self.q = nn.Linear(12, width), nn.Linear(width, width), nn.Linear(width, 8)
        self.tau = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Any, y: Any) -> Any:
        u = self.p(F.relu(self.f(F.relu(self.a(x)))))
        v = self.q(F.relu(self.g(F.relu(self.b(y)))))
        u, v = F.normalize(u, dim=-1), F.normalize(v, dim=-1)
        return self.tau.exp() * (u * v).sum(-1, keepdim=True)


class Fourier(nn.Module):
    """FNet: tokens are mixed by a Fourier transform."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.emb, self.norm = nn.Embedding(VOCABULARY, width), nn.LayerNorm(width)
        self.f, self.o = nn.Linear(width, width), nn.Linear(width, 5)

    def forward(self, ids: Any) -> Any:
        x = self.emb(ids)
        x = self.norm(x + torch.fft.fft(x, dim=1, norm="ortho").real)
        return self.o(F.gelu(self.f(x)).mean(1))
