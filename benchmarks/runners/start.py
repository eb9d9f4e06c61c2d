"""From the start of a process to its first batch, and from a state to the next batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import Any, ClassVar

from benchmarks.corpus_files import mds_shards
from benchmarks.protocol import ROWS, SEQ_LEN, Counts, Timed, WrongOutputError
from benchmarks.runners.streampack import FromMDS, fields_of

__all__ = ["FirstBatch", "ImportsOnly", "ResumeAt90", "StartAt0"]

_BATCH = """
import sys
import numpy, torch
from streampack import PackedDataset, PackedLoader, Topology, sources
source = sources.MDS(sys.argv[1], tokens="tokens")
dataset = PackedDataset(source, seq_len={seq_len}, batch_size={rows}, topology=Topology())
batch = next(iter(PackedLoader(dataset)))
shape = batch.input_ids.shape, batch.labels.shape, batch.document_ids.shape
print("ready", tuple(batch.position_ids.shape), flush=True)
"""


class ImportsOnly(Timed):
    """A Python process that imports torch and numpy."""

    label = "process start to torch and numpy imported"
    settings = "python -c 'import numpy, torch'"
    delivers = "nothing"
    script: ClassVar[str] = "import numpy, torch\nprint('ready', flush=True)"

    def prepare(self) -> None:
        """Write the shards."""
        self.folder = mds_shards(self.workload)

    def batches(self) -> Iterator[str]:
        """One item: the line that the process prints."""
        command = [sys.executable, "-c", self.script, str(self.folder)]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        with process:
            yield process.stdout.readline()

    def check(self) -> Counts:
        """It did get there (and has compiled what is to be cached)."""
        (line,) = self.batches()
        if not line.startswith("ready"):
            raise WrongOutputError(f"{self.label}: the process printed {line!r}.")
        return Counts()


class FirstBatch(ImportsOnly):
    """The same process with a loader over MDS shards and its first batch."""

    label = "process start to first batch, MDS"
    settings = "imports, dataset, loader, first batch with all fields; kernels compiled before"
    delivers = "one batch, all fields"
    script = _BATCH.format(seq_len=SEQ_LEN, rows=ROWS)


class StartAt0(FromMDS):
    """A fresh loader's first batch."""

    label = "first batch at the start of the epoch"
    settings = "dataset, loader and first batch, MDS, defaults; everything imported"
    delivers = "one batch, all fields"

    def state(self) -> Any:
        """Where to begin."""
        return None

    def prepare(self) -> None:
        """Write the shards and make the state."""
        super().prepare()
        self.saved = self.state()

    def batches(self) -> Iterator[Any]:
        """One batch."""
        loader = self.loader()
        if self.saved is not None:
            loader.load_state_dict(self.saved)
        batches = iter(loader)
        yield fields_of(next(batches))
        batches.close()

    def check(self) -> Counts:
        """There is a batch."""
        (fields,) = self.batches()
        return Counts(slots=fields[0].numel())


class ResumeAt90(StartAt0):
    """A fresh loader that is given a state of 90 % of the epoch."""

    label = "first batch after resuming at 90 % of the epoch"
    settings = "the same with load_state_dict"

    def state(self) -> Any:
        """After 90 % of the batches; also keeps what must come next."""
        total = sum(1 for _ in self.loader())
        loader = self.loader()
        batches = iter(loader)
        for _ in range(total * 9 // 10):
            next(batches)
        state = loader.state_dict()
        self.expected = fields_of(next(batches))
        return state

    def check(self) -> Counts:
        """It is the very batch that came next."""
        (fields,) = self.batches()
        if not all(a.equal(b) for a, b in zip(fields, self.expected, strict=True)):
            raise WrongOutputError("The batch after resuming is not the one that came next.")
        return Counts(slots=fields[0].numel())
