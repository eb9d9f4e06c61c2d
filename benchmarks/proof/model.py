"""A Llama-like model over flat batches, in compiled pieces around variable-length attention.

Every arm gives steps of the same shapes: so many slots, boundaries padded to `SEGMENTS` of them.
So each piece of the model is compiled once, and arms differ in their batches alone.
"""

from __future__ import annotations

from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["PEAKS", "SEGMENTS", "Llama", "Size", "Step", "Trainer", "step_of", "upload"]

SEGMENTS = 1024
#: Dense bfloat16 operations per second, by the vendor's data sheets.
PEAKS = {"H100": 989e12, "H200": 989e12, "A100": 312e12}


class Size(NamedTuple):
    """A model, and the slots of a batch."""

    name: str
    width: int
    layers: int
    heads: int
    inner: int
    slots: int
    vocabulary: int = 50_304

    def operations(self, tokens: int, squares: int) -> float:
        """Operations of a training step: tokens, and squared lengths of their causal segments."""
        linear = self.layers * (4 * self.width**2 + 3 * self.width * self.inner)
        linear += self.vocabulary * self.width
        return 6.0 * (linear * tokens + self.layers * self.width * squares)


class Step(NamedTuple):
    """A batch, flat, on the device.

    Attributes:
        input_ids, labels, position_ids: (slots,) int64; a label is the next token, or -100.
        cu_seqlens: (SEGMENTS + 1,) int32, padded with its last value; longest: a segment's bound.
        learnt: labels that count; operations: of its real tokens, see `Size.operations`.
    """

    input_ids: Tensor
    labels: Tensor
    position_ids: Tensor
    cu_seqlens: Tensor
    longest: int
    learnt: int
    operations: float


def step_of(
    size: Size, rows: list[tuple[NDArray[np.int64], NDArray[np.int64]]], longest: int
) -> Step:
    """The step of some segments, on the host: pairs of ids and labels; the rest is padding."""
    rest = size.slots - sum(len(ids) for ids, _ in rows)
    if rest:
        empty = np.zeros(rest, dtype=np.int64)
        rows = [*rows, *((empty[i : i + longest], empty[i : i + longest] - 100)
                         for i in range(0, rest, longest))]  # fmt: skip
    cu_seqlens = np.zeros(SEGMENTS + 1, dtype=np.int32)
    ends = np.cumsum([len(ids) for ids, _ in rows])
    cu_seqlens[1 : len(ends) + 1], cu_seqlens[len(ends) + 1 :] = ends, ends[-1]
    real = np.array([int((labels != -100).sum()) for _, labels in rows])
    flat = [np.concatenate([row[k] for row in rows]) for k in range(2)]
    positions = np.concatenate([np.arange(len(ids)) for ids, _ in rows])
    tensors = [torch.from_numpy(x) for x in (*flat, positions, cu_seqlens)]
    operations = size.operations(int(real.sum()), int((real**2).sum()))
    return Step(*tensors, longest, int(real.sum()), operations)


def upload(step: Step, device: str) -> Step:
    """The step on the device."""
    if device == "cpu":
        return step
    tensors = (step.input_ids, step.labels, step.position_ids, step.cu_seqlens)
    ids, labels, positions, ends = (x.pin_memory().to(device, non_blocking=True) for x in tensors)
    return Step(ids, labels, positions, ends, *step[4:])


class Entry(nn.Module):
    """The first piece of a block: normalised queries, keys and values, rotated."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm = nn.RMSNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width, bias=False)

    def forward(self, x: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(slots, width) to three of (slots, heads, head's width)."""
        q, k, v = self.qkv(self.norm(x)).view(len(x), 3, self.heads, -1).unbind(1)

        def turned(y: Tensor) -> Tensor:
            low, high = y.chunk(2, -1)
            turn = torch.cat([low * cosine - high * sine, high * cosine + low * sine], -1)
            return turn.to(v.dtype)

        return turned(q), turned(k), v


class Exit(nn.Module):
    """The second piece: adds attention's output, and the gated network's."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size.width)
        self.out = nn.Linear(size.width, size.width, bias=False)
        self.gate = nn.Linear(size.width, 2 * size.inner, bias=False)
        self.down = nn.Linear(size.inner, size.width, bias=False)

    def forward(self, x: Tensor, mixed: Tensor) -> Tensor:
        """(slots, width) to the same."""
        x = x + self.out(mixed.reshape(len(x), -1))
        gate, up = self.gate(self.norm(x)).chunk(2, -1)
        added: Tensor = self.down(functional.silu(gate) * up)
        return x + added


class Head(nn.Module):
    """The last norm and the losses of all slots, by the embedding's weights."""

    def __init__(self, size: Size) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(size.width)

    def forward(self, x: Tensor, weight: Tensor, labels: Tensor) -> Tensor:
        """(slots,) float32; zero where nothing is learnt."""
        logits = functional.linear(self.norm(x), weight).float()
        return functional.cross_entropy(logits, labels, reduction="none")


class Llama(nn.Module):
    """RMSNorm, rotary positions, gated networks, tied embeddings."""

    def __init__(self, size: Size, *, compiled: bool) -> None:
        super().__init__()
        self.size = size
        self.ids = nn.Embedding(size.vocabulary, size.width)
        self.entries = nn.ModuleList(Entry(size) for _ in range(size.layers))
        self.exits = nn.ModuleList(Exit(size) for _ in range(size.layers))
        self.head = Head(size)
        if compiled:
            for piece in (*self.entries, *self.exits, self.head):
                piece.compile(dynamic=False)

    def start(self, seed: int) -> None:
        """Draw all weights anew."""
        torch.manual_seed(seed)
        deep = 0.02 / (2 * self.size.layers) ** 0.5
        with torch.no_grad():
            for name, weight in self.named_parameters():
                if weight.dim() == 1:
                    weight.fill_(1.0)
                else:
                    weight.normal_(
                        std=deep if name.endswith(("out.weight", "down.weight")) else 0.02
                    )

    def forward(self, step: Step) -> Tensor:
        """The loss of each slot, (slots,) float32."""
        width = self.size.width // self.size.heads
        half = torch.arange(0, width, 2, device=step.position_ids.device) / width
        angles = step.position_ids[:, None] * 10_000.0**-half
        cosine, sine = (
            angles.cos()[:, None].to(torch.bfloat16),
            angles.sin()[:, None].to(torch.bfloat16),
        )
        x = self.ids(step.input_ids)
        for entry, leave in zip(self.entries, self.exits, strict=True):
            x = leave(x, attend(*entry(x, cosine, sine), step))
        losses: Tensor = self.head(x, self.ids.weight, step.labels)
        return losses


def attend(q: Tensor, k: Tensor, v: Tensor, step: Step) -> Tensor:
    """Causal attention in each segment, (slots, heads, head's width)."""
    if q.is_cuda:
        from torch.nn.attention.varlen import varlen_attn

        ends, longest = step.cu_seqlens, step.longest
        mixed: Tensor = varlen_attn(q, k, v, ends, ends, longest, longest, window_size=(-1, 0))
        return mixed
    number = torch.searchsorted(step.cu_seqlens[1:], torch.arange(len(q)), right=True)
    mask = (number[:, None] == number[None]).tril()
    heads_first = (x.transpose(0, 1)[None] for x in (q, k, v))
    return functional.scaled_dot_product_attention(*heads_first, attn_mask=mask)[0].transpose(0, 1)


class Trainer:
    """A model and its optimizer; the host is at most two steps ahead of the device."""

    def __init__(self, size: Size, device: str) -> None:
        self.size, self.device = size, device
        self.model = Llama(size, compiled=device == "cuda").to(device)
        self.restart(0)

    def restart(self, seed: int) -> None:
        """New weights and a new optimizer."""
        self.model.start(seed)
        self.optimizer = torch.optim.AdamW(
            self.model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1,
            fused=self.device == "cuda",
        )  # fmt: skip
        self.running: deque[Any] = deque()

    def learn(self, step: Step, rate: float = 1e-4) -> None:
        """One step of the optimizer."""
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device, torch.bfloat16):
            losses = self.model(step)
        (losses.sum() / max(step.learnt, 1)).backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        if self.device == "cuda":
            event = torch.cuda.Event()
            event.record()
            self.running.append(event)
            if len(self.running) > 2:
                self.running.popleft().synchronize()

    def losses(self, step: Step) -> Tensor:
        """The losses of a step's slots, without learning."""
        with torch.no_grad(), torch.autocast(self.device, torch.bfloat16):
            return self.model(step)

    def wait(self) -> None:
        """Return when the device has done everything."""
        if self.device == "cuda":
            torch.cuda.synchronize()
