"""torchtitan: ranks under torchrun, distributed checkpoints in a folder for each step."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from tiny import Tiny, loss_of, row
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.nn.parallel import DistributedDataParallel

parser = argparse.ArgumentParser()
parser.add_argument("--checkpoint.folder", dest="folder", type=Path)
parser.add_argument("--training.steps", dest="steps", type=int, default=11)
parser.add_argument("--fault", default="")
config = parser.parse_args()
FAULT, INTERVAL = config.fault, 3


class Loader:
    """Rows of one rank, in another order in each epoch of 24 rows."""

    def __init__(self, rank: int, ranks: int) -> None:
        self.rank, self.ranks, self.epoch, self.taken = rank, ranks, 0, 0

    def __next__(self) -> torch.Tensor:
        order = torch.randperm(24, generator=torch.Generator().manual_seed(self.epoch))
        rows = order[self.rank :: self.ranks][self.taken : self.taken + 2].tolist()
        self.taken += 2
        if self.taken * self.ranks >= 24:
            self.epoch, self.taken = self.epoch + 1, 0
        return torch.stack([row(index) for index in rows])

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken, "epoch": self.epoch, "ranks": self.ranks}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if state["ranks"] != self.ranks:
            raise ValueError(f"dp_degree is {self.ranks}, but was {state['ranks']}")
        self.taken, self.epoch = state["taken"], 0 if FAULT == "epoch" else state["epoch"]


def states() -> dict[str, Any]:
    """All states; a rank's own have its number."""
    weights, moments = get_state_dict(model, optimizer)
    own = {"loader": loader.state_dict(), "random": torch.get_rng_state()}
    common = {"step": step, "scheduler": scheduler.state_dict()}
    return {"model": weights, "optimizer": moments, f"rank {rank}": own, "common": common}


dist.init_process_group("gloo")
rank, ranks, step = dist.get_rank(), dist.get_world_size(), 0
torch.manual_seed(rank)
torch.set_num_threads(1)
loader = Loader(rank, ranks)
model = DistributedDataParallel(Tiny())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda done: 1 / (1 + done))

folders = sorted(config.folder.glob("step-*"), key=lambda folder: int(folder.name[5:]))
if FAULT != "uncommitted":  # a whole folder has .metadata, which is written last
    folders = [folder for folder in folders if (folder / ".metadata").exists()]
if folders:
    saved = states()
    dcp.load(saved, checkpoint_id=folders[-1])
    set_state_dict(
        model, optimizer, model_state_dict=saved["model"], optim_state_dict=saved["optimizer"]
    )
    step = saved["common"]["step"]
    scheduler.load_state_dict(saved["common"]["scheduler"])
    torch.set_rng_state(saved[f"rank {rank}"]["random"])
    if FAULT != "rank 0" or rank == 0:
        loader.load_state_dict(saved[f"rank {rank}"]["loader"])

while step < config.steps:
    batch = next(loader)
    loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    scheduler.step()
    step += 1
    if step % INTERVAL == 0:
        dcp.save(states(), checkpoint_id=config.folder / f"step-{step}")
# Threads of gloo, which these hold, may abort the process at its exit.
model = optimizer = scheduler = loss = None  # type: ignore[assignment]
dist.destroy_process_group()
