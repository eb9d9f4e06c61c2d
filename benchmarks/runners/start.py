"""From the start of a process to its first batch."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from typing import ClassVar

from benchmarks.corpus_files import mds_shards
from benchmarks.protocol import ROWS, SEQ_LEN, Counts, Timed, WrongOutputError

__all__ = ["FirstBatch", "ImportsOnly"]

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
        """Raise unless the process was ready (kernels are cached by then)."""
        (line,) = self.batches()
        if not line.startswith("ready"):
            raise WrongOutputError(f"{self.label}: the process printed {line!r}.")
        return Counts()


class FirstBatch(ImportsOnly):
    """The same process with a loader over MDS shards and its first batch."""

    label = "process start to first batch, MDS"
    script = _BATCH.format(seq_len=SEQ_LEN, rows=ROWS)
