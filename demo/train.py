"""The demo's training job: `python -m demo.train job.json`.

A plain loop over `PackedLoader` that writes a line per step to `log.jsonl` and a checkpoint every
few steps. It is killed while it runs, so everything it leaves is whole: lines are written at
once, checkpoints are moved into place.
"""

from __future__ import annotations

import hashlib
import io
import json
import multiprocessing
import os
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from demo.gpt import GPT
from streampack import TokenRules
from streampack.batch import PackedBatch
from streampack.dataset import PackedDataset
from streampack.errors import WorkerError
from streampack.formats.mds.source import MDS
from streampack.loader import PackedLoader
from streampack.storage.storage import Storage

__all__ = ["Job", "digest_of", "open_loader"]


@dataclass(frozen=True, kw_only=True)
class Job:
    """The data and length of the training.

    Attributes:
        folder: where log and checkpoint go; cache: for downloaded shards.
        url: of the MDS shards; vocab_size: of their ids.
        seq_len, batch_tokens: of the batches; workers: processes that make them.
        steps: to take in all; checkpoint_every: steps between checkpoints.
        threads: for the model's arithmetic.
    """

    folder: str
    cache: str
    url: str
    vocab_size: int
    seq_len: int
    batch_tokens: int
    workers: int
    steps: int
    checkpoint_every: int
    threads: int


def open_loader(job: Job, workers: int) -> PackedLoader:
    """Return the job's endless stream, from its beginning."""
    source = MDS(job.url, tokens="tokens", storage=Storage(cache_dir=job.cache))
    dataset = PackedDataset(
        source,
        seq_len=job.seq_len,
        batch_size=job.batch_tokens // job.seq_len,
        token_rules=TokenRules(vocab_size=job.vocab_size),
        epochs=None,
        lanes=4,
    )
    return PackedLoader(dataset, num_workers=workers, prefetch_factor=2 if workers else None)


def digest_of(batch: PackedBatch) -> str:
    """Return a digest of every input id and document boundary."""
    digest = hashlib.blake2b(batch.input_ids.numpy().tobytes(), digest_size=8)
    digest.update(batch.cu_seqlens.numpy().tobytes())
    return digest.hexdigest()


class Training:
    """Model, optimiser and place in the stream, saved and restored together."""

    def __init__(self, job: Job) -> None:
        torch.manual_seed(0)
        self.job = job
        self.model = GPT(job.vocab_size)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=2e-3, fused=True)
        self.loader = open_loader(job, job.workers)
        self.step = 0
        self.file = Path(job.folder) / "checkpoint.npz"

    def learn(self, batch: PackedBatch) -> float:
        """One step; returns the loss."""
        self.step += 1
        warm = min(1.0, self.step / 5)
        for group in self.optimizer.param_groups:
            group["lr"] = 2e-3 * warm * (1.0 - 0.9 * self.step / self.job.steps)
        names = ("input_ids", "labels", "position_ids", "document_ids")
        loss = self.model({name: getattr(batch, name) for name in names})
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return float(loss.detach())

    def save(self) -> None:
        """Write a checkpoint, whole or not at all."""
        arrays = {f"model.{name}": t.numpy() for name, t in self.model.state_dict().items()}
        for index, state in self.optimizer.state_dict()["state"].items():
            arrays |= {f"optimizer.{index}.{name}": t.numpy() for name, t in state.items()}
        stream = {"step": self.step, "data": self.loader.state_dict()}
        arrays["stream"] = np.frombuffer(json.dumps(stream).encode(), dtype=np.uint8)
        part = self.file.with_suffix(".part")
        with part.open("wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
        os.replace(part, self.file)

    def restore(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if not self.file.exists():
            return
        with np.load(io.BytesIO(self.file.read_bytes()), allow_pickle=False) as arrays:
            stream = json.loads(arrays["stream"].tobytes())
            model: dict[str, Any] = {}
            states: dict[int, dict[str, Any]] = {}
            for key in arrays.files:
                kind, _, name = key.partition(".")
                if kind == "model":
                    model[name] = torch.from_numpy(arrays[key])
                elif kind == "optimizer":
                    index, _, field = name.partition(".")
                    states.setdefault(int(index), {})[field] = torch.from_numpy(arrays[key])
        self.model.load_state_dict(model)
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})
        self.step = stream["step"]
        self.loader.load_state_dict(stream["data"])

    def batches(self) -> Iterator[PackedBatch]:
        """Yield batches, and continue after a worker's death as a training script would."""
        while True:
            try:
                yield from self.loader
            except WorkerError as error:
                self.note(event=str(error), step=self.step)

    def note(self, **line: Any) -> None:
        """Append a line to the log, at once."""
        with (Path(self.job.folder) / "log.jsonl").open("a") as log:
            log.write(json.dumps(line) + "\n")

    def run(self) -> None:
        """Train from the checkpoint, or the beginning, to the last step."""
        self.restore()
        self.note(start=self.step)
        workers: list[int] = []
        for batch in self.batches():
            loss = self.learn(batch)
            running = sorted(process.pid or 0 for process in multiprocessing.active_children())
            if running != workers:
                workers = running
                self.note(workers=workers)
            self.note(
                step=self.step, loss=loss, digest=digest_of(batch), tokens=batch.num_loss_tokens
            )
            if self.step % self.job.checkpoint_every == 0:
                self.save()
            if self.step >= self.job.steps:
                break
        metrics = self.loader.metrics()
        self.note(finished=self.step, metrics=metrics.as_dict(), composition=asdict(
            metrics.composition
        ))  # fmt: skip


def main() -> None:
    """Run the job named on the command line."""
    job = Job(**json.loads(Path(sys.argv[1]).read_text()))
    torch.set_num_threads(job.threads)
    Training(job).run()


if __name__ == "__main__":
    main()
