"""The demo, phase by phase."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.box import SIMPLE
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.table import Table

from demo.corpus import gather, write_parquet
from demo.object_store import ObjectStore
from demo.pretraining import Story, train_with_accidents
from demo.shards import write_mds, write_tars
from demo.train import Job, digest_of, open_loader
from demo.vocabulary import find_tokenizer
from streampack.conversion.convert import convert_source
from streampack.conversion.settings import Conversion
from streampack.conversion.shards import Destination
from streampack.cores import usable_cores
from streampack.dataset import PackedDataset
from streampack.documents import Documents
from streampack.errors import StateError
from streampack.formats.mds.source import MDS
from streampack.formats.parquet.source import Parquet
from streampack.formats.tar.source import WebDataset
from streampack.loader import PackedLoader
from streampack.packing import BestFitDecreasing, Concat, Pad
from streampack.sources.base import Source
from streampack.sources.error_policy import ErrorPolicy
from streampack.sources.reading import ReadOptions
from streampack.storage.storage import Storage
from streampack.tokenization import Tokenizer

__all__ = ["Tour"]

_SEQ_LEN = 1024
_TRAINING_SEQ_LEN = 512  # attention takes most of a step on a processor
_BATCH_TOKENS = 1024
_WORKERS = 2


class Tour:
    """The phases, each of which prints its results and its time.

    Args:
        console: to print on.
        folder: for everything that is written.
        steps: of training.
        corpus_bytes: size of the corpus.
    """

    def __init__(self, console: Console, folder: Path, *, steps: int, corpus_bytes: int) -> None:
        self.console = console
        self.folder = folder
        self.steps = steps
        self.corpus_bytes = corpus_bytes
        self.storage = Storage(cache_dir=folder / "cache")

    def run(self, store: ObjectStore) -> list[str]:
        """All phases in order; the lines to be remembered."""
        with self.phase("Corpus") as say:
            texts = gather(self.corpus_bytes)
            sizes = np.array([len(text) for text in texts])
            say(
                f"{len(texts):,} Python files of this machine, {sizes.sum() / 1e6:.0f} MB; "
                f"half are below {np.median(sizes):,.0f} characters, one has {sizes.max():,}"
            )
        with self.phase("Tokenizer") as say:
            tokenizer, name = find_tokenizer(texts)
            say(f"{name}, {tokenizer.vocab_size:,} ids")
        sources, lengths = self._shards(store, texts, tokenizer)
        tokens = int(lengths.sum())
        job = self._job(f"{store.url}/mds", tokenizer.vocab_size)
        story = self._train(job, {**os.environ, **store.environment})
        self._compare(job, story)
        self._formats(sources, tokenizer, tokens)
        self.console.print(_composition(lengths))
        long = 8 * _SEQ_LEN
        packed, padded = (
            packer.plan(lengths, final=True, seed=0).metrics(lengths).utilisation
            for packer in (BestFitDecreasing(seq_len=long), Pad(seq_len=long))
        )
        return [
            f"Packed, rows of {long:,} are {packed:.2%} tokens; padded, {padded:.0%}.",
            f"Each of {tokens:,} tokens came exactly once, from MDS, tar and Parquet alike.",
            f"A worker and the whole job were killed; all {self.steps} batches are those of an "
            "unbroken run, to the bit.",
        ]

    @contextmanager
    def phase(self, title: str) -> Iterator[Callable[[str], None]]:
        """Print a line while a step runs, and its result afterwards."""
        parts: list[str] = []
        began = time.monotonic()
        with self.console.status(f"{title} ..."):
            yield parts.append
        took = time.monotonic() - began
        text = "; ".join(parts)
        self.console.print(f"[green]+[/] [bold]{title}[/] [dim]{took:.1f} s[/]  {text}")

    def _shards(
        self, store: ObjectStore, texts: list[str], tokenizer: Tokenizer
    ) -> tuple[dict[str, Source], NDArray[np.int64]]:
        """Upload the corpus in three forms; the sources of them, and the documents' lengths."""
        with self.phase("Parquet shards") as say:
            write_parquet(texts, self.folder / "parquet", files=4)
            files = self._upload(store, "parquet")
            say(f"{files} files of text, uploaded")
        parquet = Parquet(
            f"{store.url}/parquet",
            text="text",
            storage=self.storage,
            reading=ReadOptions(open_shards=1),
        )
        with self.phase("Token ids") as say:
            conversion = Conversion(
                source=parquet,
                destination=Destination(str(self.folder / "ids")),
                tokenizer=tokenizer,
            )
            began = time.monotonic()
            done = convert_source(conversion)
            speed = done.tokens / (time.monotonic() - began)
            say(
                f"{done.tokens:,} tokens ({tokenizer.dtype}), read from the store and tokenized at "
                f"{speed / 1e6:.1f} M tokens/s"
            )
        documents = self._documents(Parquet(self.folder / "ids", tokens="tokens"))
        with self.phase("MDS and tar shards") as say:
            write_mds(documents, self.folder / "mds", self.corpus_bytes // 24)
            write_tars(documents, self.folder / "tar", files=6)
            names = ("mds", "tar")
            say(f"{sum(self._upload(store, name) for name in names)} files, uploaded")
        mds = MDS(f"{store.url}/mds", storage=self.storage, reading=ReadOptions(open_shards=1))
        tar = WebDataset(f"{store.url}/tar", tokens="npy", storage=self.storage)
        lengths = np.array([len(ids) for ids in documents], dtype=np.int64)
        return {"MDS": mds, "tar": tar, "Parquet": parquet}, lengths

    def _upload(self, store: ObjectStore, name: str) -> int:
        destination = Destination(f"{store.url}/{name}")
        files = sorted((self.folder / name).iterdir())
        for file in files:
            destination.put(file, file.name)
        return len(files)

    def _documents(self, source: Source) -> list[NDArray[np.generic]]:
        (reader,) = source.lanes(1, seed=0, epoch=0, shuffle=False)
        blocks = [block for block, _ in reader.read(None, ErrorPolicy())]
        return [
            block.document(i)
            for block in blocks
            if isinstance(block, Documents)
            for i in range(len(block))
        ]

    def _job(self, url: str, vocab_size: int) -> Job:
        folder = self.folder / "training"
        folder.mkdir()
        return Job(
            folder=str(folder),
            cache=str(self.folder / "cache"),
            url=url,
            vocab_size=vocab_size,
            seq_len=_TRAINING_SEQ_LEN,
            batch_tokens=_BATCH_TOKENS,
            workers=_WORKERS,
            steps=self.steps,
            checkpoint_every=max(2, self.steps // 8),
            threads=min(4, usable_cores()),
        )

    def _train(self, job: Job, environment: dict[str, str]) -> Story:
        bar = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeElapsedColumn(),
            console=self.console,
            transient=True,
        )
        began = time.monotonic()
        task = bar.add_task("starting", total=self.steps, figures="")

        def report(story: Story, what: str) -> None:
            loss = _loss(story, story.step)
            figures = f"loss {loss:.2f}" if story.step else ""
            bar.update(task, completed=story.step, description=what, figures=figures)

        with bar:
            story = train_with_accidents(job, report, environment)
        took = time.monotonic() - began
        tokens = sum(story.tokens.values())
        marks = [max(1, self.steps * k // 6) for k in range(7)]
        falling = " -> ".join(f"{_loss(story, step):.2f}" for step in marks)
        self.console.print(
            f"[green]+[/] [bold]Training[/] [dim]{took:.1f} s[/]  {self.steps} steps, "
            f"{tokens:,} tokens with loss; {falling}"
        )
        self.console.print(f"  a worker was killed, and the loop raised: {story.worker_error}")
        self.console.print(
            f"  the whole job was killed (SIGKILL) at step {story.killed_at} and went on from its "
            f"checkpoint of step {story.resumed_at}"
        )
        return story

    def _compare(self, job: Job, story: Story) -> None:
        """Hold every batch of the broken run against one uninterrupted pass."""
        with self.phase("The same batches") as say:
            clean = {}
            for step, batch in zip(range(1, job.steps + 1), open_loader(job, 1), strict=False):
                clean[step] = digest_of(batch)
            wrong = [
                step
                for step in range(1, job.steps + 1)
                if set(story.digests.get(step, [])) != {clean[step]}
            ]
            if wrong:
                raise StateError(
                    f"Batches of {len(wrong)} steps differ from an uninterrupted run, the first "
                    f"at step {wrong[0]}.",
                    "Please report this as a bug of streampack, with the output above.",
                )
            twice = [losses for losses in story.losses.values() if len(losses) > 1]
            same = sum(len(set(losses)) == 1 for losses in twice)
            say(
                f"all {job.steps} are equal to the bit to an uninterrupted pass with another "
                f"number of workers; {len(twice)} steps were taken twice, {same} of them with the "
                "same loss to the bit"
            )

    def _formats(self, sources: dict[str, Source], tokenizer: Tokenizer, tokens: int) -> None:
        """One epoch from each format: the same tokens, each once."""
        table = Table(title="One epoch from the object store, one worker", title_justify="left")
        headings = ("shards", "tokens", "seconds", "tokens/s", "utilisation", "empty batches")
        for heading in headings:
            table.add_column(heading, justify="left" if heading == "shards" else "right")
        counts = {}
        with self.phase("Each format") as say:
            for name, source in sources.items():
                dataset = PackedDataset(
                    source,
                    seq_len=_SEQ_LEN,
                    batch_size=16,
                    tokenizer=None if source.tokenized else tokenizer,
                )
                loader = PackedLoader(dataset, num_workers=1)
                began = time.monotonic()
                counts[name] = np.zeros(tokenizer.vocab_size, dtype=np.int64)
                for batch in loader:
                    ids = batch.input_ids[batch.document_ids >= 0]
                    counts[name] += np.bincount(ids.numpy(), minlength=tokenizer.vocab_size)
                took = time.monotonic() - began
                got = int(counts[name].sum())
                metrics = loader.metrics()
                table.add_row(
                    name,
                    f"{got:,}",
                    f"{took:.1f}",
                    f"{got / took:,.0f}",
                    f"{metrics.utilisation:.2%}",
                    f"{metrics.empty_batches} of {metrics.batches}",
                )
            for name, count in counts.items():
                if int(count.sum()) != tokens or not np.array_equal(count, counts["MDS"]):
                    raise StateError(
                        f"One epoch of {name} shards gave {int(count.sum())} tokens instead of "
                        f"{tokens}, or others.",
                        "Please report this as a bug of streampack, with the output above.",
                    )
            say(f"every one of {tokens:,} tokens came exactly once from all three")
        self.console.print(table)


def _loss(story: Story, step: int) -> float:
    """Mean over the last ten steps."""
    last = [story.losses[k][-1] for k in range(max(1, step - 9), step + 1) if k in story.losses]
    return sum(last) / len(last) if last else float("nan")


def _composition(lengths: NDArray[np.int64]) -> Table:
    """Compare three packers on the corpus, for short rows and for long ones."""
    table = Table(
        box=SIMPLE,
        padding=(0, 0, 0, 1),
        title=f"What rows are made of ({len(lengths):,} documents)",
        title_justify="left",
        caption="cut: documents in more than one piece; dropped: tokens;\n"
        "context: tokens of the same document before a token, on average",
        caption_justify="left",
    )
    columns = (
        "packer", "row", "rows", "used", "padding", "cut", "dropped", "context",
    )  # fmt: skip
    for heading in columns:
        name = heading == "packer"
        table.add_column(
            heading, justify="left" if name else "right", min_width=17 if name else None
        )
    for seq_len in (_SEQ_LEN, 8 * _SEQ_LEN):
        packers = (
            BestFitDecreasing(seq_len=seq_len), Concat(seq_len=seq_len), Pad(seq_len=seq_len),
        )  # fmt: skip
        for packer in packers:
            made = packer.plan(lengths, final=True, seed=0).metrics(lengths)
            table.add_row(
                type(packer).__name__,
                f"{seq_len:,}",
                f"{made.rows:,}",
                f"{made.utilisation:.2%}",
                f"{made.padding_ratio:.2%}",
                f"{made.truncation_ratio:.1%}",
                f"{made.dropped:,}",
                f"{made.mean_context:,.0f}",
                end_section=isinstance(packer, Pad),
            )
    return table
