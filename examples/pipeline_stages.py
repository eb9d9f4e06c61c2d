"""Two pipeline stages, each with the boundaries of the documents: gradients of one process.

    python examples/pipeline_stages.py

starts 2 processes on this machine's processors. Both load the same batches, because both pass the
same `Topology`: their place among the data-parallel ranks. Activations travel from stage to stage,
boundaries do not: every stage takes them from its own copy of the batch. A stage without them would
attend across documents without an error. So the last step is made once more with a second stage
that takes a row for one document, and its gradients are wrong.

A row is a micro-batch of `torch.distributed.pipelining`, which divides all arguments by rows; so
boundaries are passed as (rows, seq_len) `seq_idx`. With Megatron-LM every stage calls
``batch.packed_seq_params()`` for its own copy of a micro-batch.
"""

from __future__ import annotations

import os
import socket
from itertools import islice
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B
from torch.nn.functional import cross_entropy, scaled_dot_product_attention

from streampack import PackedBatch, PackedDataset, PackedLoader, Topology

ROWS, SEQ_LEN, VOCABULARY, WIDTH, STEPS = 4, 64, 50, 16, 3


class Stage(nn.Module):
    """A layer of attention inside documents, with the embedding before it or the head after it."""

    def __init__(self, number: int) -> None:
        super().__init__()
        torch.manual_seed(number)
        self.embedding = None if number else nn.Embedding(VOCABULARY, WIDTH)
        self.position = None if number else nn.Embedding(SEQ_LEN, WIDTH)
        self.into, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY) if number else None
        self.double()

    def forward(self, x: Tensor, positions: Tensor, documents: Tensor) -> Tensor:
        """All are (rows, seq_len); the second stage gets (rows, seq_len, WIDTH) for ids."""
        if self.embedding is not None and self.position is not None:
            x = self.embedding(x) + self.position(positions)
        mask = (documents[:, :, None] == documents[:, None, :]).tril()
        x = x + self.out(scaled_dot_product_attention(*self.into(x).chunk(3, dim=-1), mask))
        return x if self.head is None else self.head(x)


def loader() -> PackedLoader:
    """The same on both stages. With 8 data-parallel ranks: ``Topology(rank, 8)``, on all stages."""
    documents = [[1 + (7 * i + j) % 49 for j in range(1 + i * 13 % 50)] for i in range(200)]
    dataset = PackedDataset(documents, seq_len=SEQ_LEN, batch_size=ROWS, topology=Topology())
    return PackedLoader(dataset)


def boundaries(batch: PackedBatch) -> dict[str, Tensor]:
    """The arguments of every stage besides activations, to be divided by rows."""
    documents = batch.seq_idx.view(batch.rows, batch.seq_len)
    return {"positions": batch.position_ids, "documents": documents}


def loss_of(batch: PackedBatch) -> Any:
    """The part of a micro-batch in the mean over the batch's loss tokens."""

    def loss(logits: Tensor, targets: Tensor) -> Tensor:
        total = cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=-100, reduction="sum"
        )
        return total / batch.num_items_in_batch

    return loss


def gradients(stage: nn.Module) -> Tensor:
    """All in one; they are 0 afterwards."""
    found = torch.cat([p.grad.ravel() for p in stage.parameters() if p.grad is not None])
    stage.zero_grad()
    return found


def alone(batch: PackedBatch) -> Tensor:
    """The gradients of the second stage, of both in one process."""
    stages = Stage(0), Stage(1)
    logits = stages[1](stages[0](batch.input_ids, **boundaries(batch)), **boundaries(batch))
    loss_of(batch)(logits, batch.next_tokens()).backward()
    return torch.cat([gradients(stage) for stage in stages])


def run(batch: PackedBatch, stage: nn.Module, number: int, arguments: dict[str, Tensor]) -> Tensor:
    """One step of 1F1B; returns the gradients of both stages."""
    pipe = PipelineStage(stage, number, 2, torch.device("cpu"))
    schedule = Schedule1F1B(pipe, ROWS, loss_fn=loss_of(batch), scale_grads=False)
    if number:
        schedule.step(**arguments, target=batch.next_tokens())
    else:
        schedule.step(batch.input_ids, **arguments)
    parts: list[Any] = [None, None]
    dist.all_gather_object(parts, gradients(stage))
    return torch.cat(parts)


def train(number: int, port: str) -> None:
    """One stage's part; stage 0 also makes every step alone."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=number, world_size=2)
    stage = Stage(number)
    largest = 0.0
    for batch in islice(loader(), STEPS):
        expected = alone(batch)
        found = run(batch, stage, number, boundaries(batch))
        largest = max(largest, float((found - expected).abs().max()))
    whole = boundaries(batch)
    if number:
        whole["documents"] = torch.zeros_like(whole["documents"])
    wrong = float((run(batch, stage, number, whole) - expected).norm() / expected.norm())
    if not number:
        print(f"{STEPS} steps of {ROWS} micro-batches on 2 stages")
        print(f"gradients differ from those of one process by {largest:.1e} at most")
        print(f"with boundaries in the first stage alone they are off by {wrong:.0%}")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start the processes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    mp.spawn(train, args=(port,), nprocs=2)


if __name__ == "__main__":
    main()
