"""A degree of context parallelism per row length, with torch's processes: gradients of one process.

    python examples/cp_degrees.py [ranks]

starts 4 processes (or 2, or a multiple of 4) on this machine's processors. In a step of rows of 64
tokens each has a batch of its own, of rows of 128 tokens two share one, of 256 four (or both of
two). A rank holds the head and the tail of every document of its batch
(`batch.context_parallel("zigzag")`), gathers the keys and values of its group, and divides the sum
of its losses by `batch.num_items_in_batch`. DDP averages over all ranks. Rank 0 compares every step
with one process that computes the whole batches of it.

A kernel for GPUs takes the place of `attend`: ring attention over the same group, with
``part["cu_seqlens"]`` and ``part["max_seqlen"]`` as the boundaries. With Megatron-LM the part is
``batch.megatron()``, with ``batch.packed_seq_params()``; the latter has the step's `cp_group`. Its
own groups and slices take the place of `groups_of` and `part_of` in
``tests/frameworks/test_megatron_groups.py``.
"""

from __future__ import annotations

import os
import socket
import sys
import sysconfig
from collections import Counter
from itertools import islice
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from streampack import Buckets, PackedBatch, PackedDataset, PackedLoader, TokenRules, Topology

SEQ_LENS, STEPS, VOCABULARY = (64, 128, 256), 24, 257


class Gathered(torch.autograd.Function):
    """The parts of all ranks of a group, one after the other."""

    @staticmethod
    def forward(ctx: Any, part: Tensor, group: Any) -> Tensor:
        """(n, ...) of each rank to (size * n, ...) on all."""
        ctx.group = group
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group=group)
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the sum of all ranks' gradients for this rank's part."""
        total = gradients[0].clone()
        dist.all_reduce(total, group=ctx.group)
        return total.chunk(dist.get_world_size(ctx.group))[dist.get_rank(ctx.group)], None


def attend(query: Tensor, key: Tensor, value: Tensor, place: Tensor, group: Any) -> Tensor:
    """Causal attention inside documents; `place` has each token's document and its slot, (n, 2)."""
    seen = place
    if group is not None:
        key, value = Gathered.apply(torch.cat([key, value], dim=1), group).chunk(2, dim=1)
        seen = Gathered.apply(place, group)
    mask = (place[:, None, 0] == seen[None, :, 0]) & (place[:, None, 1] >= seen[None, :, 1])
    return scaled_dot_product_attention(query, key, value, mask)


class TinyModel(nn.Module):
    """One layer of attention over bytes."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(SEQ_LENS[-1], width)
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, VOCABULARY)

    def forward(self, batch: PackedBatch, part: dict[str, Any], group: Any) -> Tensor:
        """Summed losses of the part of the batch."""
        x = self.embedding(part["input_ids"][0]) + self.position(part["position_ids"][0])
        place = torch.stack([batch.seq_idx[0][part["slots"]], part["slots"]], dim=1)
        attended = attend(*self.into(x).chunk(3, dim=1), place, group)
        return cross_entropy(
            self.out(x + attended), part["shift_labels"][0], ignore_index=-100, reduction="sum"
        )


def dataset_of(topology: Topology, lanes: int) -> PackedDataset:
    """Paragraphs of some of Python's own modules as UTF-8 bytes."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:30]
    paragraphs = [text for file in files for text in file.read_bytes().split(b"\n\n") if text]
    return PackedDataset(
        [[*text] for text in paragraphs],
        packer=Buckets(seq_lens=SEQ_LENS, cp=(1, 2, min(lanes, 4)), shares=(0.4, 0.3, 0.3)),
        token_rules=TokenRules(eos_id=256),
        epochs=None,
        lanes=lanes,
        topology=topology,
    )


def groups_of(ranks: int) -> dict[int, Any]:
    """The groups of neighbouring ranks that this one is in, by their sizes."""
    sizes = [size for size in (2, 4) if size <= ranks]
    return {size: dist.new_subgroups(size)[0] for size in sizes} | {1: None}


def part_of(batch: PackedBatch, group: Any) -> dict[str, Any]:
    """Return this rank's part of a batch."""
    return batch.context_parallel("zigzag")


def gradients(model: nn.Module) -> Tensor:
    """All in one."""
    return torch.cat([p.grad.ravel() for p in model.parameters() if p.grad is not None])


def train(rank: int, ranks: int, port: str) -> None:
    """One rank's part; rank 0 also makes every step alone."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    torch.set_num_threads(1)
    dist.init_process_group("gloo", rank=rank, world_size=ranks)
    groups = groups_of(ranks)
    torch.manual_seed(0)
    model, alone = TinyModel().double(), TinyModel().double()
    alone.load_state_dict(model.state_dict())
    model = DistributedDataParallel(model)
    everything = iter(PackedLoader(dataset_of(Topology(), ranks)))
    degrees: Counter[int] = Counter()
    largest = 0.0
    for batch in islice(PackedLoader(dataset_of(Topology(rank, ranks), ranks)), STEPS):
        group = groups[batch.cp_size]
        model.zero_grad()
        loss = model(batch, part_of(batch, group), group) / batch.num_items_in_batch
        loss.backward()
        degrees[batch.cp_size] += 1
        if rank:
            continue
        whole = list(islice(everything, ranks // batch.cp_size))
        count = sum(one.num_loss_tokens for one in whole)
        alone.zero_grad()
        for one in whole:
            (alone(one, one.context_parallel("zigzag"), None) / count).backward()
        largest = max(largest, float((gradients(model) - gradients(alone)).abs().max()))
    if not rank:
        steps = ", ".join(f"{n} of degree {degree}" for degree, n in sorted(degrees.items()))
        print(f"{STEPS} steps on {ranks} ranks: {steps}")
        print(f"gradients differ from those of one process by {largest:.1e} at most")
    dist.barrier()
    dist.destroy_process_group()


def main() -> None:
    """Start the processes."""
    ranks = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    mp.spawn(train, args=(ranks, port), nprocs=ranks)


if __name__ == "__main__":
    main()
