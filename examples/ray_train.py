"""Ray Train with a `PackedLoader`: workers die, their number changes, every token comes once.

    python examples/ray_train.py

trains a tiny model on this machine. As long as the cluster has one core, there is one worker. With
two cores there are two, which continue from its checkpoint. Then one of them is killed, and Ray
Train restarts both. The losses equal the losses of an uninterrupted run, and every token of the
corpus was trained on once.

The reasons: the loader is used as it is (``prepare_data_loader`` would take a batch ahead).
All workers ask `DistributedState` for the state, rank 0 saves it beside the model, and any number
of workers loads it. The dataset takes its rank from the process group that Ray Train makes.
"""

from __future__ import annotations

import json
import os
import signal
import sysconfig
import tempfile
from collections.abc import Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_TRAIN_V2_ENABLED", "1")

import ray
import ray.train
import torch
import torch.distributed as dist
from ray.train.torch import TorchTrainer
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from streampack import DistributedState, PackedDataset, PackedLoader, TokenRules

BATCHES_PER_STEP, SAVED_EVERY = 4, 5
JOBS = ((1, 12), (2, 10**6))  # cores of the cluster, and the last step there
KILLED_AFTER = 22


def byte_documents() -> list[list[int]]:
    """Some of Python's own modules as UTF-8 bytes, each ended by id 256."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:30]
    return [[*file.read_bytes()[:1000], 256] for file in files]


def make_loader() -> PackedLoader:
    """The batches of this process's rank, of one epoch."""
    rules = TokenRules(eos_id=256)
    return PackedLoader(
        PackedDataset(byte_documents(), seq_len=128, batch_size=2, token_rules=rules, lanes=4)
    )


def make_model() -> tuple[nn.Module, torch.optim.Optimizer]:
    """The same weights every time."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Embedding(257, 16), nn.Linear(16, 257)).double()
    return model, torch.optim.AdamW(model.parameters(), lr=3e-3)


def steps(loader: PackedLoader, model: Any, optimizer: Any, ranks: int) -> Iterator[dict[str, Any]]:
    """Train to the end of the epoch; of each step, this rank's share of the loss, and batches."""
    for group in loader.accumulate(BATCHES_PER_STEP // ranks):
        optimizer.zero_grad()
        total = torch.zeros(1, dtype=torch.float64)
        for batch in group:
            loss = batch.loss(model(batch.input_ids))
            loss.backward()
            total += loss.detach() / ranks  # DDP averages, too
        optimizer.step()
        batches = [(batch.lane, batch.step, batch.num_tokens) for batch in group]
        yield {"total": total, "batches": batches}


def work(config: dict[str, Any]) -> None:
    """One worker's part: from the checkpoint, if there is one, to the last step of the job."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    model, optimizer = make_model()
    parallel, loader, step = DistributedDataParallel(model), make_loader(), 0
    if checkpoint := ray.train.get_checkpoint():
        with checkpoint.as_directory() as folder:
            saved = torch.load(Path(folder) / "checkpoint.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        DistributedState(loader).load_state_dict(saved["data"])
        step = saved["step"]
    log = Path(config["folder"]) / f"{config['job']}-{rank}.jsonl"
    for done in steps(loader, parallel, optimizer, ranks):
        step += 1
        dist.all_reduce(done["total"])
        line = {"step": step, "loss": done["total"].item(), "batches": done["batches"]}
        with log.open("a") as file:
            file.write(json.dumps(line) + "\n")
        marker = Path(config["folder"]) / "killed"
        if step == KILLED_AFTER and rank == ranks - 1 and not marker.exists():
            marker.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        if step % SAVED_EVERY == 0:
            data = DistributedState(loader).state_dict()  # on all ranks
            report(
                rank, step, model=model.state_dict(), optimizer=optimizer.state_dict(), data=data
            )
        if step == config["until"]:
            break


def report(rank: int, step: int, **parts: Any) -> None:
    """Give Ray Train a checkpoint, which rank 0 writes."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = None
        if rank == 0:
            torch.save({"step": step, **parts}, Path(folder) / "checkpoint.pt")
            checkpoint = ray.train.Checkpoint.from_directory(folder)
        ray.train.report({"step": step}, checkpoint=checkpoint)


def run(folder: Path) -> None:
    """The jobs of the run, each on a cluster of its own."""
    for job, (cores, until) in enumerate(JOBS):
        ray.init(
            address="local", num_cpus=cores, include_dashboard=False, log_to_driver=False,
            object_store_memory=100 << 20, _node_ip_address="127.0.0.1",
        )  # fmt: skip
        trainer = TorchTrainer(
            work,
            train_loop_config={"folder": str(folder), "job": job, "until": until},
            scaling_config=ray.train.ScalingConfig(num_workers=(1, 2)),
            run_config=ray.train.RunConfig(
                name="packed",
                storage_path=str(folder / "runs"),
                failure_config=ray.train.FailureConfig(max_failures=3),
            ),
        )
        trainer.fit()
        ray.shutdown()


def main() -> None:
    """Compare the losses with a run in this process, and count the tokens."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        run(folder)
        workers = [len(list(folder.glob(f"{job}-*.jsonl"))) for job in range(len(JOBS))]
        lines = [
            json.loads(line)
            for job in range(len(JOBS))
            for file in sorted(folder.glob(f"{job}-*.jsonl"))
            for line in file.read_text().splitlines()
        ]
        killed = (folder / "killed").exists()
    trained = {(lane, step): n for line in lines for lane, step, n in line["batches"]}
    straight = list(steps(make_loader(), *make_model(), 1))
    # At the end of the epoch lanes end one after the other, and ranks share the rest otherwise.
    whole = list(takewhile(lambda done: [b[0] for b in done["batches"]] == [0, 1, 2, 3], straight))
    losses = {step: done["total"].item() for step, done in enumerate(whole, start=1)}
    apart = max(abs(line["loss"] - losses.get(line["step"], line["loss"])) for line in lines)
    tokens = sum(map(len, byte_documents()))
    print(f"workers of the jobs: {workers}, one killed: {killed}; steps compared: {len(whole)}")
    print(f"{sum(trained.values()):,} of {tokens:,} tokens, largest difference: {apart:.1e}")


if __name__ == "__main__":
    main()
