"""torchft's `train_ddp.py` with a loader that loses no batch and repeats none.

    pip install torchft
    python examples/elastic_torchft.py

torchft's own sampler gives each replica group a fixed part of the data: the part of a group that is
down is not trained on, and a step that failed is lost. Here a step that failed is repeated by
the replicas that live. The script starts a lighthouse and three replicas of one process, kills one
(SIGKILL), starts another, and compares the batches of all steps that were committed with a run on
one rank.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn, optim

from streampack import PackedBatch, PackedDataset
from streampack.batch import BatchGroup
from streampack.elastic import ElasticLoader, GroupMembers
from streampack.errors import RankError

STEP_BATCHES, LANES, REPLICAS = 6, 12, 3


def make_loader() -> ElasticLoader[PackedBatch]:
    """A loader of the same documents on every replica."""
    documents = [[(7 * n + k) % 64 for k in range(3 + n % 50)] for n in range(600)]
    dataset = PackedDataset(documents, seq_len=32, batch_size=2, lanes=LANES)
    return ElasticLoader(dataset, step_batches=STEP_BATCHES)


def steps(
    loader: ElasticLoader[PackedBatch], manager: Any, group: Any, optimizer: Any
) -> Iterator[BatchGroup[PackedBatch]]:
    """The steps of this replica; the quorum of each decides which replicas take it."""
    while True:
        begin_step(loader, manager, group, optimizer)
        try:
            for step in loader:
                yield step
                begin_step(loader, manager, group, optimizer)
            return
        except RankError as error:  # a replica died: let torchft form another quorum
            manager.report_error(error)
            manager.should_commit()


def begin_step(
    loader: ElasticLoader[PackedBatch], manager: Any, group: Any, optimizer: Any
) -> None:
    """Start a quorum, and tell the loader who takes part. A replica that heals takes no batch."""
    while True:
        optimizer.zero_grad()  # starts the quorum, so the loop does not
        rank, ranks = manager.participating_rank(), manager.num_participants()
        if not manager.errored():
            break
        manager.should_commit()  # no: they did not connect in time, so the next quorum is a new one
    loader.set_ranks(rank, ranks, GroupMembers(group), at_step=manager.current_step())


class Model(nn.Module):
    """Predicts each token from the one before it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Embedding(64, 8), nn.Linear(8, 64))

    def forward(self, ids: Tensor) -> Tensor:
        """Logits (rows, seq_len, vocabulary)."""
        logits: Tensor = self.layers(ids)
        return logits


def train() -> None:
    """One replica, in the manner of torchft's `train_ddp.py`."""
    from torchft import DistributedDataParallel, Manager, Optimizer, ProcessGroupGloo

    def load_state_dict(state_dict: dict[str, Any]) -> None:
        m.load_state_dict(state_dict["model"])
        optimizer.load_state_dict(state_dict["optim"])

    def state_dict() -> dict[str, Any]:
        return {"model": m.state_dict(), "optim": optimizer.state_dict()}

    loader = make_loader()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pg = ProcessGroupGloo(timeout=timedelta(seconds=20))
    manager = Manager(
        pg=pg,
        min_replica_size=1,
        load_state_dict=load_state_dict,
        state_dict=state_dict,
        replica_id=f"train_ddp_{os.environ['REPLICA_GROUP_ID']}",
        timeout=timedelta(seconds=60),
        quorum_timeout=timedelta(seconds=120),
        store_addr="127.0.0.1",
        store_port=store.port,
        rank=0,
        world_size=1,
        hostname="127.0.0.1",
        init_sync=False,  # all models begin alike
    )
    m = DistributedDataParallel(manager, Model())
    optimizer = Optimizer(manager, optim.AdamW(m.parameters()))
    for step in steps(loader, manager, pg, optimizer):
        number = manager.current_step()
        for batch in step:
            batch.loss(m(batch.input_ids)).backward()
        time.sleep(0.1)  # a real model takes longer, too
        optimizer.step()  # commits, or not
        if manager.current_step() > number:
            print(json.dumps({"step": number, "batches": digests(step)}), flush=True)
    manager.shutdown(wait=False)


def digests(step: BatchGroup[PackedBatch]) -> dict[int, str]:
    """Hashes of a step's batches with documents, by their index in the run."""
    hashes = {}
    for batch in step:
        if batch.num_documents:
            content = batch.input_ids.numpy().tobytes() + batch.cu_seqlens.numpy().tobytes()
            number = batch.step * LANES + batch.lane
            hashes[number] = hashlib.blake2b(content, digest_size=8).hexdigest()
    return hashes


def main() -> None:
    """Run three replicas, kill one, start another, and compare the batches."""
    from torchft._torchft import LighthouseServer

    alone = make_loader()
    alone.set_ranks(0, 1)
    expected = {n: value for step in alone for n, value in digests(step).items()}
    lighthouse = LighthouseServer(
        bind="127.0.0.1:0", min_replicas=1, join_timeout_ms=10_000, heartbeat_timeout_ms=5_000
    )

    def start(replica: int) -> subprocess.Popen[str]:
        settings = {"REPLICA_GROUP_ID": str(replica), "TORCHFT_LIGHTHOUSE": lighthouse.address()}
        return subprocess.Popen(
            [sys.executable, __file__, "replica"],
            env={**os.environ, **settings},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL if "-v" not in sys.argv else None,
            text=True,
        )

    replicas = [start(replica) for replica in range(REPLICAS)]
    lines: list[str] = []
    for line in replicas[1].stdout or ():
        lines.append(line)
        if len(lines) == 5:
            replicas[1].kill()
    replicas[1].wait()
    replicas[1] = start(1)
    for replica in replicas:
        lines += replica.communicate()[0].splitlines()
    lighthouse.shutdown()
    trained: dict[int, str] = {}
    numbers = set()
    for line in lines:
        told = json.loads(line)
        numbers.add(told["step"])
        for index, value in told["batches"].items():
            assert trained.setdefault(int(index), value) == value
    print(f"{len(numbers)} steps of {REPLICAS} replicas, one killed and restarted")
    print(f"{len(trained)} batches; the batches of a run on one rank: {trained == expected}")


if __name__ == "__main__":
    train() if "replica" in sys.argv else main()
