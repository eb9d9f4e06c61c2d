"""Kill a job on 4 ranks, continue with 3, then with 8: losses equal a run without interruption.

    python examples/elastic_torchrun.py

trains a tiny model twice on this machine's processors: on 4 ranks without a stop; and on 4 ranks
one of which is killed (SIGKILL) between two checkpoints, which ends the job, on 3 that go on from
the last checkpoint and end in the same way, and on 8 to the end. torchrun starts all of them. Then
it compares the losses of every step.

The reasons: batch g of the run does not depend on the number of ranks, so 4 ranks x 6 batches, 3 x
8 and 8 x 3 are the same 24 batches per step; losses are summed over tokens and divided by the
step's loss tokens on all ranks; and the state covers exactly the batches trained on.
`DistributedState` has one state for all ranks, and any number of ranks can load it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention
from torch.nn.parallel import DistributedDataParallel

from streampack import DistributedState, PackedBatch, PackedDataset, PackedLoader, TokenRules

SEQ_LEN = 128
STEPS, SAVED_EVERY = 60, 8
BATCHES_PER_STEP = 24
LEGS = {4: 21, 3: 43, 8: STEPS}  # ranks, and the step after which they are killed


class TinyModel(nn.Module):
    """One layer of causal attention that stays inside documents, over bytes."""

    def __init__(self, width: int = 32, vocab_size: int = 257) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, width)
        self.position = nn.Embedding(SEQ_LEN, width)
        self.into = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, vocab_size)

    def forward(self, batch: PackedBatch) -> Tensor:
        """Logits (rows, seq_len, vocabulary)."""
        x = self.embedding(batch.input_ids) + self.position(batch.position_ids)
        query, key, value = self.into(x).chunk(3, dim=-1)
        documents = batch.document_ids
        mask = (documents[:, :, None] == documents[:, None, :]).tril()
        logits: Tensor = self.out(x + scaled_dot_product_attention(query, key, value, mask))
        return logits


def byte_documents() -> list[list[int]]:
    """Some of Python's own modules as UTF-8 bytes, each ended by id 256."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))[:120]
    return [[*file.read_bytes()[:4000], 256] for file in files]


def train(folder: Path) -> None:
    """One rank's part: from the checkpoint in `folder`, if there is one, to the last step."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    documents = byte_documents()
    dataset = PackedDataset(
        lambda lane, lanes: documents[lane::lanes],
        seq_len=SEQ_LEN,
        batch_size=1,
        token_rules=TokenRules(eos_id=256),
        lanes=BATCHES_PER_STEP,
        epochs=None,
    )
    loader = PackedLoader(dataset)
    model = DistributedDataParallel(TinyModel().double())
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    step, checkpoint = 0, folder / "checkpoint.pt"
    if checkpoint.exists():
        saved = torch.load(checkpoint)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        DistributedState(loader).load_state_dict(saved["data"])
        step = saved["step"]
    for group in loader.accumulate(BATCHES_PER_STEP // ranks):
        optimizer.zero_grad()
        total = torch.zeros(1, dtype=torch.float64)
        for batch in group:
            loss = batch.loss(model(batch))  # its share of the mean over the group on all ranks
            loss.backward()
            total += loss.detach() / ranks  # DDP averages, too
        optimizer.step()
        step += 1
        dist.all_reduce(total)
        if step % SAVED_EVERY == 0:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            parts["data"] = DistributedState(loader).state_dict()  # on all ranks
            if rank == 0:
                torch.save(parts, folder / "new.pt")
                (folder / "new.pt").replace(checkpoint)
        if rank == 0:
            numbers = {"step": step, "loss": total.item(), "pid": os.getpid()}
            print(json.dumps(numbers), flush=True)
        if step == STEPS:
            break
    dist.destroy_process_group()


def job(folder: Path, ranks: int, until: int) -> dict[int, float]:
    """Run torchrun with `ranks` processes, one of which dies after step `until`; losses by step.

    torchrun ends the others. With ``--max-restarts`` it would restart as many, and they would
    continue from the checkpoint.
    """
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node", str(ranks), __file__, str(folder)]
    losses: dict[int, float] = {}
    with (folder / "errors.txt").open("w+") as errors:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        started = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, stderr=errors)
        assert started.stdout is not None
        for line in started.stdout:
            found = json.loads(line)
            losses[found["step"]] = found["loss"]
            if found["step"] == until < STEPS:
                os.kill(found["pid"], signal.SIGKILL)
        started.wait()
        if max(losses, default=0) < until:
            errors.seek(0)
            raise SystemExit(f"The job on {ranks} ranks failed: {errors.read()}")
    return losses


def runs() -> tuple[dict[int, float], dict[int, dict[int, float]]]:
    """Return the losses of an uninterrupted run, and of the run in legs, by ranks."""
    with tempfile.TemporaryDirectory() as whole, tempfile.TemporaryDirectory() as parts:
        straight = job(Path(whole), 4, STEPS)
        return straight, {ranks: job(Path(parts), ranks, until) for ranks, until in LEGS.items()}


def main() -> None:
    """Compare, or be one of the processes of a job."""
    if len(sys.argv) > 1:
        torch.set_num_threads(1)
        train(Path(sys.argv[1]))
        return
    straight, legs = runs()
    print("step  never stopped  in legs")
    apart = 0.0
    for ranks, losses in legs.items():
        for step, loss in losses.items():
            print(f"{step:4}  {straight[step]:.10f}   {loss:.10f} on {ranks} ranks")
            apart = max(apart, abs(loss - straight[step]))
    print(f"largest difference: {apart:.1e}")
    if apart > 1e-9:
        raise SystemExit("The losses differ.")


if __name__ == "__main__":
    main()
