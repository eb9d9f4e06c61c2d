"""nanoGPT: one process, batches drawn at random, and the next one taken before the save."""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

import numpy as np
import torch
from tiny import Tiny, loss_of, row

parser = argparse.ArgumentParser()
parser.add_argument("--out_dir")
parser.add_argument("--init_from", default="scratch")
parser.add_argument("--max_iters", type=int, default=14)
parser.add_argument("--fault", default="")
config = parser.parse_args()
FAULT, INTERVAL = config.fault, 4

torch.manual_seed(1337)
torch.set_num_threads(1)


def get_batch(number: int) -> torch.Tensor:
    if FAULT == "generator":  # torch's own, as in nanoGPT, which saves no random state
        indices = torch.randint(2000, (4,)).tolist()
    else:
        indices = np.random.default_rng([7, number]).integers(0, 2000, 4).tolist()
    return torch.stack([row(index) for index in indices])


def rate(step: int) -> float:
    return 1e-2 * (1 + math.cos(math.pi * step / 40)) / 2


model = Tiny()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
os.makedirs(config.out_dir, exist_ok=True)
path, step, number = os.path.join(config.out_dir, "ckpt.pt"), 0, 0
if config.init_from == "resume" and os.path.exists(path):
    saved = torch.load(path)
    model.load_state_dict(saved["model"])
    if "optimizer" in saved:
        optimizer.load_state_dict(saved["optimizer"])
    step, number = saved["step"], saved["batch"]
    if "random" in saved:
        torch.set_rng_state(saved["random"])

batch = get_batch(number)
while step < config.max_iters:
    for group in optimizer.param_groups:
        group["lr"] = rate(step)
    loss = loss_of(model(batch[:, :-1]), batch[:, 1:])
    number += 1
    batch = get_batch(number)  # taken ahead, while the device computes
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    step += 1
    if step % INTERVAL == 0:
        parts: dict[str, Any] = {"model": model.state_dict(), "step": step}
        parts["batch"] = number + (FAULT == "late")
        if FAULT != "optimizer":
            parts["optimizer"] = optimizer.state_dict()
        if FAULT not in ("random", "generator"):
            parts["random"] = torch.get_rng_state()
        if FAULT == "in place":
            torch.save(parts, path)
        else:
            torch.save(parts, path + ".new")
            os.replace(path + ".new", path)
