"""Distillation from a teacher's stored top logits: `python examples/distillation.py`.

The teacher runs once over the documents. Of each token the 8 most likely next tokens and their
log-probabilities are kept beside the ids, as fixed-size lists in Parquet. The student's rows are
packed while they stream, and `token_fields` bring the values of every slot. The loss is the
Kullback-Leibler divergence from the teacher, with all other tokens as one class. For the first
batch it is compared with the documents one by one.

Runs on a CPU in seconds: a student of half the width learns the distribution of a random teacher.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor, nn

from streampack import PackedDataset, PackedLoader, Topology, sources

VOCABULARY, TOP, SEQ_LEN, DOCUMENTS = 64, 8, 48, 200


class Decoder(nn.Module):
    """A causal transformer of one block that keeps documents apart."""

    def __init__(self, width: int, scale: float = 1.0) -> None:
        super().__init__()
        self.embed, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(SEQ_LEN, width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )
        self.head, self.scale = nn.Linear(width, VOCABULARY), scale

    def forward(self, ids: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        """(rows, length, vocabulary) log-probabilities of the next tokens."""
        x = self.embed(ids) + self.places(positions)
        same = documents[:, None, :, None] == documents[:, None, None, :]
        q, k, v = self.qkv(x).unsqueeze(1).chunk(3, dim=-1)
        seen = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=same.tril())
        x = x + self.out(seen[:, 0])
        return (self.scale * self.head(x + self.mlp(x))).log_softmax(dim=-1)

    def alone(self, ids: Tensor) -> Tensor:
        """The same for one document, (length,)."""
        return self(ids[None], torch.arange(len(ids))[None], torch.zeros(1, len(ids)))[0]


@torch.no_grad()
def write(path: Path, teacher: Decoder) -> None:
    """Write documents with the teacher's top log-probabilities, in fixed-size lists."""
    rng = np.random.default_rng(0)
    rows: dict[str, list] = {"ids": [], "top_ids": [], "top_logprobs": []}
    for length in rng.integers(5, SEQ_LEN, DOCUMENTS):
        ids = rng.integers(0, VOCABULARY, length)
        top = teacher.alone(torch.from_numpy(ids)).topk(TOP)
        rows["ids"].append(ids)
        rows["top_ids"].append(list(top.indices.numpy()))
        rows["top_logprobs"].append(list(top.values.numpy().astype(np.float16)))
    types = {
        "ids": pa.list_(pa.uint16()),
        "top_ids": pa.list_(pa.list_(pa.int16(), TOP)),
        "top_logprobs": pa.list_(pa.list_(pa.float16(), TOP)),
    }
    pq.write_table(
        pa.table({name: pa.array(rows[name], kind) for name, kind in types.items()}), path
    )


def divergence(student: Tensor, top_ids: Tensor, top_logprobs: Tensor) -> Tensor:
    """Divergence of each slot from its stored distribution; arguments are (..., n)."""
    teacher, own = top_logprobs.to(student.dtype), student.gather(-1, top_ids.long())
    others = [1 - part.exp().sum(dim=-1, keepdim=True) for part in (teacher, own)]
    teacher, own = (
        torch.cat([part, rest.clamp(min=1e-9).log()], dim=-1)
        for part, rest in zip((teacher, own), others, strict=True)
    )
    return (teacher.exp() * (teacher - own)).sum(dim=-1)


def main() -> None:
    """Train, and print how far the student is from the teacher."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    teacher, student = Decoder(32, scale=4.0), Decoder(16)
    optimizer = torch.optim.Adam(student.parameters(), lr=2e-2)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "teacher.parquet"
        write(path, teacher)
        dataset = PackedDataset(
            sources.Parquet(path, tokens="ids"),
            seq_len=SEQ_LEN,
            batch_size=8,
            epochs=6,
            topology=Topology(),
            token_fields={"top_ids": ("int16", (TOP,)), "top_logprobs": ("float16", (TOP,))},
        )
        losses = []
        for batch in PackedLoader(dataset):
            real = ~batch.padding_mask
            fields = batch.fields["top_ids"], batch.fields["top_logprobs"]
            logprobs = student(batch.input_ids, batch.position_ids, batch.document_ids)
            each = divergence(logprobs, *fields)
            if not losses:
                alone = [
                    divergence(
                        student.alone(batch.input_ids[own]), *(values[own] for values in fields)
                    )
                    for own in (batch.document_ids == n for n in range(batch.num_documents))
                ]
                difference = (each[real] - torch.cat(alone)).abs().max()
                print(f"packed and one by one, losses differ by {difference:.1e} at most")
            loss = each[real].mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(loss.item())
    print(
        f"divergence from the teacher: {losses[0]:.2f}, after {len(losses)} steps {losses[-1]:.2f}"
    )


if __name__ == "__main__":
    main()
