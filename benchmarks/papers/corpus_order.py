"""A whole corpus in order: planted topics and duplicates found, and real files end to end.

    python -m benchmarks.papers.corpus_order [--corpus planted|files] [--documents 200000]
        [--roots /usr] [--workers 2] [--search auto] [--embedder NAME] [--dimension 1024]
        [--ngrams 2] [--folder DIR]

"planted" makes short documents of topics with vocabularies of their own, and copies of some of them
with one token in fifty replaced; "files" takes text files of this machine (sources, manuals,
documentation), each cut to its first 6,000 characters, in random order. Both are written as Parquet
and put in order by `run_job`. Its summary is printed, with the most memory that all processes had
in a stage. The folder of --folder is kept, and a stopped run continues there.

Source: "In-Context Pretraining: Language Modeling Beyond Document Boundaries".
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import json
import os
import sys
import time
from collections.abc import Iterator
from itertools import compress, islice
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack import sources
from streampack.conversion.shards import Destination
from streampack.corpus_order import CorpusOrder, Summary, run_job
from streampack.documents.blocks import Documents
from streampack.ordering import HashedNgrams
from streampack.packing.rng import permutation

CHARACTERS = 6000
ENDINGS = {
    *(".py", ".pyi", ".h", ".hpp", ".c", ".cc", ".js", ".mjs", ".ts", ".md", ".rst", ".txt"),
    *(".html", ".pl", ".pm", ".sh", ".go", ".rs", ".java", ".tcl", ".xml", ".gz", ".json"),
}
COPIES = 0.05  # share of planted documents that are copies
EDITED = 0.02  # of a copy's tokens
TOPIC_DOCUMENTS = 50  # of a topic, about
ROWS = 10_000


def planted(count: int, seed: int) -> Iterator[tuple[NDArray[np.uint32], int, int]]:
    """Each document with its topic and the number of the one that it is a copy of, or -1.

    Copies are of the first 100,000 documents that are none; about 500 bytes of memory per topic.
    """
    rng = np.random.default_rng(seed)
    topics = max(count // TOPIC_DOCUMENTS, 1)
    vocabulary = rng.integers(1000, 1 << 20, (topics, 64))
    kept: list[tuple[NDArray[np.uint32], int, int]] = []
    for number in range(count):
        if kept and rng.random() < COPIES:
            ids, topic, original = kept[rng.integers(len(kept))]
            ids = ids.copy()
            ids[rng.random(len(ids)) < EDITED] = rng.integers(0, 1 << 20)
            yield ids, topic, original
            continue
        topic = int(rng.integers(topics))
        length = int(rng.integers(40, 120))
        own = rng.choice(vocabulary[topic], length)
        common = rng.zipf(1.3, length) % 1000
        ids = np.where(rng.random(length) < 0.6, own, common).astype(np.uint32)
        if len(kept) < 100_000:
            kept.append((ids, topic, number))
        yield ids, topic, -1


def text_files(roots: list[str]) -> list[str]:
    """Paths of text files, sorted."""
    found = []
    for root in roots:
        for folder, _, names in os.walk(root):
            found += [f"{folder}/{name}" for name in names if Path(name).suffix in ENDINGS]
    return sorted({path for path in found if not os.path.islink(path)})


def read_texts(roots: list[str], count: int, seed: int) -> Iterator[str]:
    """Beginnings of `count` files in random order."""
    files = text_files(roots)
    given = 0
    for i in permutation(len(files), seed).tolist():
        try:
            opened = gzip.open if files[i].endswith(".gz") else open
            with opened(files[i], "rb") as file:
                text = file.read(4 * CHARACTERS).decode()[:CHARACTERS]
        except (OSError, UnicodeDecodeError, EOFError):
            continue
        if len(text) >= 200:
            yield text
            given += 1
        if given == count:
            return


def write_corpus(options: argparse.Namespace, file: Path) -> None:
    """Write the corpus; of planted documents `truth.npy`, (N, 2) int64 topics and originals."""
    name = "text" if options.corpus == "files" else "tokens"
    kind = pa.string() if name == "text" else pa.list_(pa.uint32())
    truth = np.full((options.documents, 2), -1, dtype=np.int64)

    def rows() -> Iterator[object]:
        if name == "text":
            yield from read_texts(options.roots, options.documents, options.seed)
        else:
            for number, (ids, *about) in enumerate(planted(options.documents, options.seed)):
                truth[number] = about
                yield ids

    part, given = file.with_suffix(".part"), rows()
    with pq.ParquetWriter(part, pa.schema([(name, kind)])) as writer:
        while group := list(islice(given, ROWS)):
            writer.write_table(pa.table({name: pa.array(group, kind)}))
    if name == "tokens":
        np.save(file.with_name("truth.npy"), truth)
    part.rename(file)


class Watch(Thread):
    """Records each stage's time, files left, and peak of the private memory of all processes.

    The system's cache of files, which it may drop, does not count as memory.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(daemon=True)
        self.folder, self.stage, self.since = folder, "", time.monotonic()
        self.seconds, self.disk, self.peak = dict[str, float](), dict[str, int](), dict[str, int]()

    def report(self, stage: str, done: int, total: int) -> None:
        """Called by the job."""
        now = time.monotonic()
        before = self.seconds.get(self.stage, 0)
        self.seconds[self.stage] = before + now - self.since
        self.stage, self.since = stage, now
        if done == total:
            left = (self.folder / ".streampack" / "order" / stage).glob("*")
            self.disk[stage] = sum(file.stat().st_size for file in left)
            print(f"{time.strftime('%H:%M:%S')} {stage} {done}/{total}", flush=True)

    def run(self) -> None:
        """Look every two seconds."""
        while True:
            stage = self.stage
            self.peak[stage] = max(self.peak.get(stage, 0), private_bytes())
            time.sleep(2)


def private_bytes() -> int:
    """Return the memory of this process and its descendants; shared memory counts once."""
    parents = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parents[int(path.parent.name)] = int(path.read_text().rpartition(")")[2].split()[1])
    family = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    total = 0
    for pid in family:
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
                if line.startswith(("Pss_Anon:", "Pss_Shmem:")):
                    total += int(line.split()[1]) << 10
    return total


def report(summary: Summary, seconds: float, watch: Watch) -> None:
    """Print the results."""
    print(
        f"{summary.documents:,} documents, {summary.units:,} tokens or bytes; "
        f"{summary.duplicates:,} duplicates ({summary.duplicate_units:,}); {summary.runs:,} runs, "
        f"{summary.shards} shards; {seconds:.0f} s since the (last) start"
    )
    print(
        f"mean cosine: side by side {summary.neighbours:.3f}, within rows "
        f"{summary.within_rows:.3f}, random {summary.random_pairs:.3f}; "
        f"{summary.without_neighbours:,} documents without neighbours"
    )
    print("| stage | seconds | MB on disk | MB of memory at most |\n|---|---|---|---|")
    for stage, disk in watch.disk.items():
        took, peak = watch.seconds.get(stage, 0), watch.peak.get(stage, 0)
        print(f"| {stage} | {took:.0f} | {disk / 1e6:,.0f} | {peak / 1e6:,.0f} |")


def judge_planted(folder: Path, file: Path, embedder: HashedNgrams) -> None:
    """Print recall and precision of the duplicates, and how often neighbours share a topic."""
    topics, originals = np.load(file.with_name("truth.npy")).T
    dropped = set()
    for line in (folder / "_order" / "duplicates.jsonl").open():
        dropped.add(int(json.loads(line)["document"].split()[1]))
    copies = np.flatnonzero(originals >= 0)
    wanted = np.unique(np.append(copies, originals[copies]))
    arrays = compress(rows_of(file), np.isin(np.arange(len(topics)), wanted).tolist())
    documents = Documents.from_arrays(list(arrays))
    near = 0
    found = 0
    for some in np.array_split(copies, len(copies) // ROWS + 1):
        a, b = (
            embedder(documents.take(np.searchsorted(wanted, of))).astype(np.float64)
            for of in (some, originals[some])
        )
        cosines = (a * b).sum(axis=1) / np.sqrt((a * a).sum(axis=1) * (b * b).sum(axis=1))
        above = some[cosines > 0.95].tolist()
        near += len(above)
        found += len(dropped.intersection(above))
    print(
        f"planted copies above the threshold found: {found:,} of {near:,} "
        f"({100 * found / max(near, 1):.2f} %); dropped: {len(dropped):,}, no copies: "
        f"{len(dropped.difference(copies.tolist())):,}"
    )
    share = 1 / len(np.unique(topics))
    print(f"documents of one topic side by side by chance: {100 * share:.4f} %")
    keys = np.array([hash(ids.tobytes()) for ids in rows_of(file)], dtype=np.int64)
    order = np.argsort(keys)
    shards = sorted(folder.glob("*.parquet"))
    along = np.array([hash(ids.tobytes()) for shard in shards for ids in rows_of(shard)])
    along = topics[order[np.searchsorted(keys[order], along)]]
    print(f"documents of one topic side by side: {100 * (along[1:] == along[:-1]).mean():.1f} %")


def rows_of(file: Path) -> Iterator[NDArray[np.uint32]]:
    """The token ids of the documents of a Parquet file."""
    for batch in pq.ParquetFile(file).iter_batches(ROWS, columns=["tokens"]):
        column = batch["tokens"]
        values = column.values.to_numpy().astype(np.uint32)
        offsets = column.offsets.to_numpy()
        for i in range(len(column)):
            yield values[offsets[i] : offsets[i + 1]]


def run(options: argparse.Namespace, folder: Path) -> None:
    """Make the corpus, put it in order, and print the results."""
    file, out = folder / "corpus.parquet", folder / "ordered"
    if not file.exists():
        began = time.monotonic()
        write_corpus(options, file)
        print(f"corpus of {file.stat().st_size / 1e6:,.0f} MB, {time.monotonic() - began:.0f} s")
    hashed = HashedNgrams(dimension=options.dimension, ngrams=options.ngrams)
    job = CorpusOrder(
        source=sources.open(str(file)),
        destination=Destination(str(out)),
        embedder=options.embedder or hashed,
        search=options.search,
    )
    print(f"{job.num_parts} parts", flush=True)
    watch = Watch(out)
    watch.start()
    began = time.monotonic()
    summary = run_job(job, workers=options.workers, report=watch.report)
    report(summary, time.monotonic() - began, watch)
    if options.corpus == "planted":
        judge_planted(out, file, hashed)


def main() -> None:
    """Read the options."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", choices=("planted", "files"), default="planted")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--roots", nargs="+", default=["/usr", sys.prefix])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--search", default="auto")
    parser.add_argument("--embedder", help="a name, as for `streampack order`; default: n-grams")
    parser.add_argument("--dimension", type=int, default=1024)
    parser.add_argument("--ngrams", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    if options.folder is not None:
        options.folder.mkdir(parents=True, exist_ok=True)
        run(options, options.folder)
    else:
        with TemporaryDirectory() as made:
            run(options, Path(made))


if __name__ == "__main__":
    main()
