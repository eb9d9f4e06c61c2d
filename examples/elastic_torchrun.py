"""Stop on 4 ranks, go on with 2: the losses by global step are those of a run never stopped.

    python examples/elastic_torchrun.py

trains a tiny model three times under torchrun, on this machine's processors: on 4 ranks without a
stop; on 4 ranks again, stopped half way; and from there on 2 ranks with twice the accumulation and
another number of workers. Then it compares the losses.

What makes it so: batch g of the run does not depend on the number of ranks, so 4 ranks x 2 batches
and 2 ranks x 4 batches are the same 8 batches per step; losses are summed over tokens and divided
by the step's loss tokens on all ranks; and the state is that of the batches that were trained on.
Each rank writes one file of state, and `merge_states` makes them one that any number of ranks that
divides the lanes can load.
"""

from __future__ import annotations

import argparse
import json
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

from streampack import (
    PackedBatch,
    PackedDataset,
    PackedLoader,
    TokenRules,
    merge_states,
)

SEQ_LEN = 256
STEPS = 12
STOP = 6
BATCHES_PER_STEP = 8


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


def train(folder: Path, *, accumulate: int, workers: int, stop: int, save: bool) -> None:
    """One rank's part: from the checkpoint in `folder`, if there is one, to step `stop`."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(0)
    documents = byte_documents()
    dataset = PackedDataset(
        lambda lane, lanes: documents[lane::lanes],
        seq_len=SEQ_LEN,
        batch_size=1,
        token_rules=TokenRules(eos_id=256),
        lanes=8,
        epochs=None,
    )
    loader = PackedLoader(dataset, num_workers=workers)
    model = DistributedDataParallel(TinyModel().double())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    step = 0
    if (folder / "model.pt").exists():
        saved = torch.load(folder / "model.pt")
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        step = saved["step"]
        states = [json.loads(file.read_text()) for file in folder.glob("data-*.json")]
        loader.load_state_dict(merge_states(states))
    for group in loader.accumulate(accumulate):
        optimizer.zero_grad()
        total = torch.zeros(1, dtype=torch.float64)
        for batch in group:
            loss = batch.loss(model(batch))  # its share of the mean over the group on all ranks
            loss.backward()
            total += loss.detach() / ranks  # DDP averages, too
        optimizer.step()
        step += 1
        dist.all_reduce(total)
        if rank == 0:
            print(json.dumps({"step": step, "loss": total.item()}), flush=True)
        if step == stop:
            break
    if save:
        (folder / f"data-{rank}.json").write_text(json.dumps(loader.state_dict()))
        if rank == 0:
            parts = {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}
            torch.save(parts, folder / "model.pt")
    dist.destroy_process_group()


def torchrun(folder: Path, ranks: int, **options: int) -> dict[int, float]:
    """Run this file on `ranks` processes; the losses by step."""
    arguments = [f"--{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={ranks}", __file__, f"--folder={folder}", *arguments]
    run = subprocess.run(command, capture_output=True, text=True)
    if run.returncode:
        raise SystemExit(f"torchrun failed:\n{run.stderr}")
    lines = [json.loads(line) for line in run.stdout.splitlines() if line.startswith("{")]
    return {line["step"]: line["loss"] for line in lines}


def compare() -> None:
    """The three runs, and what they have lost."""
    with tempfile.TemporaryDirectory() as scratch:
        whole, parts = Path(scratch, "whole"), Path(scratch, "parts")
        whole.mkdir()
        parts.mkdir()
        accumulate = BATCHES_PER_STEP // 4
        straight = torchrun(whole, 4, accumulate=accumulate, workers=2, stop=STEPS)
        first = torchrun(parts, 4, accumulate=accumulate, workers=2, stop=STOP, save=1)
        rest = torchrun(parts, 2, accumulate=2 * accumulate, workers=3, stop=STEPS)
    print("step  4 ranks   4, then 2 ranks")
    for step, loss in straight.items():
        print(f"{step:4}  {loss:.6f}  {(first | rest)[step]:.6f}")
    apart = max(abs(loss - (first | rest)[step]) for step, loss in straight.items())
    print(f"largest difference: {apart:.1e}")
    if apart > 1e-9:
        raise SystemExit("The losses differ.")


def main() -> None:
    """Compare, or be one of the processes that torchrun starts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--accumulate", type=int, default=1)
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--stop", type=int, default=STEPS)
    parser.add_argument("--save", type=int, default=0)
    options = parser.parse_args()
    if options.folder is None:
        compare()
        return
    torch.set_num_threads(1)
    train(
        options.folder,
        accumulate=options.accumulate,
        workers=options.workers,
        stop=options.stop,
        save=bool(options.save),
    )


if __name__ == "__main__":
    main()
