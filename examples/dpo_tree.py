"""DPO with the prompt of each pair computed once: `python examples/dpo_tree.py`.

A record holds a chosen and a rejected document. With ``layout="tree"`` they share a row, and the
slots of their common prefix. `batch.pairs()` gives the sequences of each pair, and the
log-probability of a sequence is a sum over its tokens. The loss of every step is compared with the
loss of the same pairs without sharing.

Runs on a CPU in seconds: a model learns to prefer even tokens.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from streampack import PackedDataset, PackedLoader, Topology, sources
from streampack.batch.tree_batch import TreeBatch

VOCABULARY, BETA = 16, 0.5
Chances = Callable[[nn.Module, TreeBatch], Tensor]


class Decoder(nn.Module):
    """A causal transformer of one block, which takes its mask."""

    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(64, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, ids: Tensor, positions: Tensor, mask: Tensor) -> Tensor:
        """(rows, length, vocabulary) logits; `mask` is (rows, 1, length, length)."""
        x = self.embed(ids) + self.places(positions)
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
        x = x + self.out(nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)[:, 0])
        return self.head(x + self.mlp(x))


def preference(model: Decoder, reference: Decoder, batch: TreeBatch, chances: Chances) -> Tensor:
    """(pairs,) how much more than the reference the model prefers the chosen sequences."""
    with torch.no_grad():
        base = chances(reference, batch)
    gained = (chances(model, batch) - base) * batch.loss_mask
    of_sequence = torch.zeros(batch.num_documents).index_add(0, batch.sequence_ids, gained)
    chosen, rejected = batch.pairs()
    return of_sequence[chosen] - of_sequence[rejected]


def shared(model: Decoder, batch: TreeBatch) -> Tensor:
    """(N,) log-probabilities of the tokens of all sequences, from the trees."""
    return batch.log_probs(model(batch.input_ids, batch.position_ids, batch.mask()))


def alone(model: Decoder, batch: TreeBatch) -> Tensor:
    """(N,) the same from every sequence by itself."""
    found = torch.zeros(len(batch.slot))
    for number in range(batch.num_documents):
        own = batch.sequence_ids == number
        ids = batch.input_ids.view(-1)[batch.slot[own]][None]
        mask = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool).tril()
        logits = model(ids, torch.arange(ids.shape[1]), mask)[0, :-1].log_softmax(dim=-1)
        found[own] = nn.functional.pad(logits.gather(-1, ids[0, 1:, None])[:, 0], (1, 0))
    return found


def main() -> None:
    """Train, and print accuracies, the tokens that were computed, and how far losses differ."""
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    records = []
    for _ in range(400):
        prompt = torch.randint(VOCABULARY, (24,)).tolist()
        answers = [(torch.randint(VOCABULARY // 2, (6,)) * 2 + odd).tolist() for odd in (0, 1)]
        records.append(
            {
                "tokens": [prompt + answer for answer in answers],
                "mask": [[0] * len(prompt) + [1] * len(answer) for answer in answers],
                "chosen": [True, False],
            }
        )
    source = sources.Items(records, tokens="tokens", loss_mask="mask")
    dataset = PackedDataset(
        source, seq_len=256, batch_size=1, layout="tree", document_fields={"chosen": "bool"},
        lanes=1, topology=Topology(),
    )  # fmt: skip
    loader = PackedLoader(dataset)
    model = Decoder()
    reference = copy.deepcopy(model)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    largest = 0.0
    for step, batch in enumerate(loader):
        margin = preference(model, reference, batch, shared)
        loss = -nn.functional.logsigmoid(BETA * margin).mean()
        with torch.no_grad():
            other = preference(model, reference, batch, alone)
            other = -nn.functional.logsigmoid(BETA * other).mean()
        largest = max(largest, abs(loss.item() - other.item()))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        if step % 20 == 0:
            print(f"step {step}: loss {loss:.2f}, {(margin > 0).double().mean():.0%} right")
    metrics = loader.metrics()
    ratio = 1 + metrics.shared_tokens / metrics.tokens
    print(f"{ratio:.1f} times fewer tokens, losses differ by {largest:.1e} at most")


if __name__ == "__main__":
    main()
