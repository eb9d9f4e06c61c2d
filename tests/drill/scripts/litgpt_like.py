"""litgpt: a streaming dataset with workers, accumulated batches, a scheduler and a scaler."""

from __future__ import annotations

import argparse
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from tiny import Tiny, loss_of, row
from torch.utils.data import DataLoader, IterableDataset, get_worker_info
from torchdata.stateful_dataloader import StatefulDataLoader

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir", type=Path)
parser.add_argument("--resume", default="")
parser.add_argument("--max_steps", type=int, default=11)
parser.add_argument("--fault", default="")
config = parser.parse_args()
FAULT, INTERVAL, ACCUMULATED = config.fault, 3, 2


class Stream(IterableDataset):  # type: ignore[type-arg]
    """Rows of a worker, with a state in the worker's copy."""

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[torch.Tensor]:
        worker = get_worker_info()
        first, workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        while True:
            self.taken += 1
            yield row(first + workers * (self.taken - 1))

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


torch.manual_seed(0)
torch.set_num_threads(1)
stream = Stream()
kind: Any = DataLoader if FAULT == "workers" else StatefulDataLoader
loader = kind(stream, batch_size=4, num_workers=2)
stateful: Any = stream if FAULT == "workers" else loader
model = Tiny()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 30)
scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=3)
state: dict[str, Any] = {"model": model, "optimizer": optimizer, "loader": stateful}
if FAULT != "scheduler":
    state["scheduler"] = scheduler
if FAULT != "scaler":
    state["scaler"] = scaler
step, path = 0, config.out_dir / "last.pth"
if config.resume == "auto" and path.exists():
    saved = torch.load(path)
    for name, part in state.items():
        part.load_state_dict(saved[name])
    step = saved["step"]
config.out_dir.mkdir(parents=True, exist_ok=True)

iterator = iter(loader)  # draws from torch's generator
if step:
    torch.set_rng_state(saved["random"])
while step < config.max_steps:
    for _ in range(ACCUMULATED):
        batch = next(iterator)
        loss = loss_of(model(batch[:, :-1]), batch[:, 1:]) / ACCUMULATED
        scaler.scale(loss).backward()
    scaler.step(optimizer)
    scaler.update()
    scheduler.step()
    optimizer.zero_grad()
    step += 1
    if step % INTERVAL == 0:
        parts = {name: part.state_dict() for name, part in state.items()}
        new = {**parts, "step": step, "random": torch.get_rng_state()}
        torch.save(new, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)
