"""nanochat: two optimizers, files of a checkpoint by rank and step, a loader with a prefetcher."""

from __future__ import annotations

import argparse
import json
import os
import queue
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from tiny import DATA, Tiny, loss_of, row
from torch.nn.parallel import DistributedDataParallel

from streampack import DistributedState, PackedDataset, PackedLoader

parser = argparse.ArgumentParser()
parser.add_argument("--num-iterations", type=int, default=11)
parser.add_argument("--fault", default="")
config = parser.parse_args()
FAULT, INTERVAL, BATCHES = config.fault, 3, 4
FOLDER = Path(os.environ["NANOCHAT_BASE_DIR"]) / "base_checkpoints"


def documents() -> list[list[int]]:
    ends = np.random.default_rng(1).integers(3, 30, 2000).cumsum()
    return [part.tolist() for part in np.split(DATA, ends[ends < len(DATA)])]


class Prefetched:
    """Rows of a rank that a thread takes ahead of the loop; the state is the thread's position."""

    def __init__(self) -> None:
        self.position = 0

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]

    def fill(self, waiting: queue.Queue[torch.Tensor]) -> None:
        while True:
            waiting.put(torch.stack([row(2 * self.position + rank)]))
            self.position += 1

    def __iter__(self) -> Iterator[torch.Tensor]:
        waiting: queue.Queue[torch.Tensor] = queue.Queue(3)
        threading.Thread(target=self.fill, args=[waiting], daemon=True).start()
        while True:
            yield waiting.get()


dist.init_process_group("gloo")
rank, ranks, step = dist.get_rank(), dist.get_world_size(), 0
torch.manual_seed(0)
torch.set_num_threads(1)
dataset = PackedDataset(documents(), seq_len=16, batch_size=2, lanes=BATCHES, epochs=None)
loader = PackedLoader(dataset)
data: Any = Prefetched() if FAULT == "prefetcher" else DistributedState(loader)
model = DistributedDataParallel(Tiny(dropout=0.0))
optimizers = [
    torch.optim.AdamW([model.module.embed.weight], lr=3e-3),
    torch.optim.SGD(model.module.head.parameters(), lr=1e-2, momentum=0.9),
]
done = sorted(FOLDER.glob("meta_*.json"))
if done:
    meta = json.loads(done[-1].read_text())
    step = meta["step"]
    model.module.load_state_dict(torch.load(FOLDER / f"model_{step:06d}.pt"))
    states = torch.load(FOLDER / f"optim_{step:06d}.pt")
    for optimizer, state in zip(optimizers, states, strict=True):
        optimizer.load_state_dict(state)
    data.load_state_dict(meta["data"])
FOLDER.mkdir(parents=True, exist_ok=True)

batches: Iterator[Any] = iter(data if FAULT == "prefetcher" else loader)
while step < config.num_iterations:
    for _ in range(BATCHES // ranks):
        batch = next(batches)
        ids = getattr(batch, "input_ids", batch)
        loss = loss_of(model(ids)[:, :-1], ids[:, 1:])
        (loss * ranks / BATCHES).backward()
    for optimizer in optimizers:
        optimizer.step()
    model.zero_grad(set_to_none=True)
    step += 1
    if step % INTERVAL == 0:
        position = data.state_dict()
        if rank == 0:
            torch.save(model.module.state_dict(), FOLDER / f"model_{step:06d}.pt")
            states = [optimizer.state_dict() for optimizer in optimizers]
            torch.save(states, FOLDER / f"optim_{step:06d}.pt")
            new = FOLDER / "meta.new"
            new.write_text(json.dumps({"step": step, "data": position}))
            new.rename(FOLDER / f"meta_{step:06d}.json")  # last, so that the others are whole
dist.barrier()
# Threads of gloo, which these hold, may abort the process at its exit.
model = optimizers = loss = None  # type: ignore[assignment]
dist.destroy_process_group()
