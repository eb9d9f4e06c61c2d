"""Weights of a mixture by excess loss: `python examples/online_mixing.py`.

DoReMi (Xie et al. 2023, arXiv 2305.10429): a source with more loss than a reference model has
on it gets more weight, in proportion to exp(rate * excess). Losses are summed over the ranks, so
that all set the same weights, also with `torchrun --nproc-per-node 2 examples/online_mixing.py`.

The right weights follow from the corpus: "cycle" is learnt in a few steps, "noise" never, and
"table" has 192 pairs of tokens to learn. The losses of a perfect model are known and stand for the
reference.
"""

from __future__ import annotations

import math
import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from streampack import PackedBatch, PackedDataset, PackedLoader, sources

REFERENCE = {"cycle": 0.0, "noise": math.log(60), "table": 0.0}  # nats per token


class DoReMi:
    """Sets a loader's weights every few steps.

    Args:
        loader: of a mixture of the sources that `reference` names, in their order.
        reference: loss per token by source.
        every: steps between two changes; rate: of the exponent; even: share that is divided evenly.
    """

    def __init__(
        self,
        loader: PackedLoader,
        reference: dict[str, float],
        every: int = 10,
        rate: float = 0.3,
        even: float = 0.01,
    ) -> None:
        self.loader, self.every, self.rate, self.even = loader, every, rate, even
        self.reference = torch.tensor([*reference.values()], dtype=torch.float64)
        self.weights = {name: 1 / len(reference) for name in reference}
        self.steps, self.seen = 0, torch.zeros(2, len(reference), dtype=torch.float64)

    def after_step(self, batch: PackedBatch, losses: Tensor) -> None:
        """Count the losses (rows, seq_len - 1) of a batch, 0 where there is no label."""
        if batch.num_documents:  # not all padding, as a rank's last ones may be
            source = batch.per_token(batch.source_ids)[:, 1:].flatten()
            self.seen[0].index_add_(0, source, losses.detach().double().flatten())
            self.seen[1] += torch.as_tensor(batch.by_source)[:, 2]  # loss tokens
        self.steps += 1
        if self.steps % self.every == 0:
            if dist.is_initialized():
                dist.all_reduce(self.seen)
            self.update(*self.seen)
            self.seen.zero_()

    def update(self, sums: Tensor, counts: Tensor) -> None:
        """Weigh by losses of the last steps: of each source its sum and number of tokens, (S,)."""
        excess = (sums / counts.clamp(min=1) - self.reference).clamp(min=0) * (counts > 0)
        weights = torch.tensor([*self.weights.values()]) * (self.rate * excess).exp()
        weights = (1 - self.even) * weights / weights.sum() + self.even / len(weights)
        self.weights = dict(zip(self.weights, weights.tolist(), strict=True))
        self.loader.set_weights(self.weights)


def corpus() -> dict[str, list[list[int]]]:
    """Documents of 100 tokens, in ids of their own: 4 of "cycle", 60 of "noise", 192 of "table"."""
    made = torch.Generator().manual_seed(0)
    after = torch.randperm(192, generator=made)
    columns = [torch.randint(192, (400,), generator=made)]
    for _ in range(99):
        columns.append(after[columns[-1]])
    return {
        "cycle": [[t % 4 for t in range(n, n + 100)] for n in range(400)],
        "noise": (4 + torch.randint(60, (400, 100), generator=made)).tolist(),
        "table": (64 + torch.stack(columns, 1)).tolist(),
    }


def train() -> PackedLoader:
    """Train until a source ends, on as many ranks as there are, with weights that follow losses."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Embedding(256, 32), nn.Linear(32, 256))
    if dist.is_initialized():
        model = DistributedDataParallel(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    mixture = sources.Mixture(corpus(), weights=dict.fromkeys(REFERENCE, 1), at_end="stop")
    loader = PackedLoader(PackedDataset(mixture, seq_len=512, batch_size=2, epochs=3, lanes=2))
    mixing = DoReMi(loader, REFERENCE)
    for batch in loader:
        labels = batch.labels[:, 1:]
        logits = model(batch.input_ids)[:, :-1].transpose(1, 2)
        losses = nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="none")
        (losses.sum() / batch.num_items_in_batch).backward()
        optimizer.step()
        optimizer.zero_grad()
        mixing.after_step(batch, losses)
    return loader


def main() -> None:
    """Train, and print the weights in the end and the shares of the tokens so far."""
    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    loader = train()
    _, weights = loader.state_dict()["weights"][-1]
    print("weights:", ", ".join(f"{name} {weight:.2f}" for name, weight in weights.items()))
    print(loader.by_source())
    if dist.is_initialized():
        dist.barrier()
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
