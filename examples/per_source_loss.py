"""The loss of every source of a mixture by itself: `python examples/per_source_loss.py`.

A batch names the source of each of its document pieces (`source_ids`) and the piece of each token
(`document_ids`), so sums per source are one `index_add_`: no loop, and no copy to the host before
somebody looks at them. Over ranks and steps, add up the sums and the counts, then divide.

Runs on a CPU in seconds, with a model that knows nothing but the token before.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from streampack import PackedBatch, PackedDataset, PackedLoader, Topology, sources

VOCABULARY = 64


def per_source_loss(logits: Tensor, batch: PackedBatch, num_sources: int) -> tuple[Tensor, Tensor]:
    """Sums of the loss and numbers of its tokens by source, both (num_sources,).

    Args:
        logits: (rows, seq_len, vocabulary), those at t for the token at t + 1.
        batch: on the same device.
        num_sources: of the mixture.
    """
    labels = batch.labels[:, 1:]
    # Summed: the mean over the labels of a batch without a loss token would be NaN.
    losses = nn.functional.cross_entropy(
        logits[:, :-1].transpose(1, 2), labels, ignore_index=-100, reduction="none"
    )
    counted = labels != -100  # never on padding, where the document id is -1
    source = batch.per_token(batch.source_ids)[:, 1:][counted]
    sums = torch.zeros(num_sources, device=losses.device).index_add_(0, source, losses[counted])
    return sums, torch.bincount(source, minlength=num_sources)


def main() -> None:
    """Train on an easy and a hard source, and print the loss of each."""
    torch.manual_seed(0)
    numbers = torch.Generator().manual_seed(0)
    easy = [torch.arange(n).remainder(VOCABULARY).tolist() for n in range(20, 220)]
    hard = [torch.randint(VOCABULARY, (n,), generator=numbers).tolist() for n in range(20, 220)]
    mixture = sources.Mixture({"easy": easy, "hard": hard}, weights={"easy": 1, "hard": 1})
    loader = PackedLoader(
        PackedDataset(mixture, seq_len=1024, batch_size=1, lanes=1, topology=Topology())
    )
    model = nn.Sequential(nn.Embedding(VOCABULARY, 32), nn.Linear(32, VOCABULARY))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for step, batch in enumerate(loader):
        sums, counts = per_source_loss(model(batch.input_ids), batch, num_sources=2)
        (sums.sum() / counts.sum().clamp(min=1)).backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 10 == 0:
            means = (sums.detach() / counts.clamp(min=1)).tolist()
            print(f"step {step}: easy {means[0]:.2f}, hard {means[1]:.2f}")


if __name__ == "__main__":
    main()
