"""A whole corpus in order: planted topics and duplicates found, and real files end to end.

    python -m benchmarks.papers.corpus_order [--corpus planted|files] [--documents 200000]
        [--roots /usr] [--workers 2] [--search auto] [--compare] [--folder DIR]

"planted" makes short documents of topics with vocabularies of their own, and copies of some of them
with one token in fifty replaced; "files" takes text files of this machine (sources, manuals,
documentation), each cut to its first 6,000 characters, in random order. Both are written as Parquet
and put in order by `run_job`, whose summary is printed. With --compare the same documents are
ordered in windows (`SimilarityOrder`) of several sizes and by exact search too, and the mean cosine
of documents side by side is printed for each.

Source: "In-Context Pretraining: Language Modeling Beyond Document Boundaries".
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from streampack import SimilarityOrder, sources
from streampack.conversion.destination import Destination
from streampack.corpus_order import CorpusOrder, Summary, run_job
from streampack.documents import Documents
from streampack.ordering import HashedNgrams
from streampack.ordering.embedding import heads
from streampack.packing.rng import permutation
from streampack.reading.skips import Skips

CHARACTERS = 6000
ENDINGS = {
    *(".py", ".pyi", ".h", ".hpp", ".c", ".cc", ".js", ".mjs", ".ts", ".md", ".rst", ".txt"),
    *(".html", ".pl", ".pm", ".sh", ".go", ".rs", ".java", ".tcl", ".xml", ".gz", ".json"),
}
COPIES = 0.05  # share of planted documents that are copies
EDITED = 0.02  # of a copy's tokens
TOPIC_DOCUMENTS = 50  # of a topic, about
WINDOWS = (1024, 4096, 16384)
ROWS = 10_000


def planted(count: int, seed: int) -> Iterator[tuple[NDArray[np.uint32], int, int]]:
    """Each document with its topic and the number of the one that it is a copy of, or -1."""
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


def write_corpus(options: argparse.Namespace, file: Path) -> tuple[NDArray[np.int64], ...]:
    """Write the corpus; topics (N,) and originals (N,) of planted documents."""
    rows: list[object] = []
    topics, originals = [], []
    name = "text" if options.corpus == "files" else "tokens"
    kind = pa.string() if name == "text" else pa.list_(pa.uint32())
    with pq.ParquetWriter(file, pa.schema([(name, kind)])) as writer:

        def flush() -> None:
            writer.write_table(pa.table({name: pa.array(rows, kind)}))
            rows.clear()

        if name == "text":
            for text in read_texts(options.roots, options.documents, options.seed):
                rows.append(text)
                if len(rows) == ROWS:
                    flush()
        else:
            for ids, topic, original in planted(options.documents, options.seed):
                rows.append(ids)
                topics.append(topic)
                originals.append(original)
                if len(rows) == ROWS:
                    flush()
        flush()
    return np.array(topics, dtype=np.int64), np.array(originals, dtype=np.int64)


def report(summary: Summary, seconds: float) -> None:
    """Print what came of it."""
    print(
        f"{summary.documents:,} documents, {summary.units:,} tokens or bytes; "
        f"{summary.duplicates:,} duplicates ({summary.duplicate_units:,}); {summary.runs:,} runs, "
        f"{summary.shards} shards; {seconds:.0f} s in all"
    )
    print(
        f"mean cosine: side by side {summary.neighbours:.3f}, within rows "
        f"{summary.within_rows:.3f}, random {summary.random_pairs:.3f}"
    )
    print("| stage | seconds | MB |\n|---|---|---|")
    for stage, took in summary.seconds.items():
        print(f"| {stage} | {took:.0f} | {summary.num_bytes.get(stage, 0) / 1e6:,.0f} |")


def judge_planted(
    folder: Path, documents: Documents, topics: NDArray[np.int64], originals: NDArray[np.int64]
) -> None:
    """Print recall and precision of the duplicates, and how often neighbours share a topic."""
    dropped = set()
    for line in (folder / "_order" / "duplicates.jsonl").open():
        dropped.add(int(json.loads(line)["document"].split()[1]))
    copies = np.flatnonzero(originals >= 0)
    vectors = [
        HashedNgrams()(documents.take(of)).astype(np.float64) for of in (copies, originals[copies])
    ]
    products = [(a * b).sum(axis=1) for a, b in (vectors, vectors[:1] * 2, vectors[1:] * 2)]
    near = copies[products[0] / np.sqrt(products[1] * products[2]) > 0.95]
    found = len(dropped.intersection(near.tolist()))
    print(
        f"planted copies above the threshold found: {found:,} of {len(near):,} "
        f"({100 * found / max(len(near), 1):.2f} %); dropped: {len(dropped):,}, no copies: "
        f"{len(dropped.difference(copies.tolist())):,}"
    )
    share = 1 / len(np.unique(topics))
    print(f"documents of one topic side by side by chance: {100 * share:.3f} %")


def topic_share(folder: Path, file: Path, topics: NDArray[np.int64]) -> None:
    """Print how often documents side by side in the shards have the same topic."""
    column = pq.read_table(file)["tokens"]
    known = {
        hash(np.asarray(ids).tobytes()): t for ids, t in zip(_rows(column), topics, strict=True)
    }
    found = []
    for shard in sorted(folder.glob("*.parquet")):
        rows = _rows(pq.read_table(shard)["tokens"])
        found += [known[hash(np.asarray(ids).tobytes())] for ids in rows]
    values = np.array(found)
    print(f"documents of one topic side by side: {100 * (values[1:] == values[:-1]).mean():.1f} %")


def _rows(column: pa.ChunkedArray) -> Iterator[NDArray[np.uint32]]:
    for chunk in column.chunks:
        values = chunk.values.to_numpy().astype(np.uint32)
        offsets = chunk.offsets.to_numpy()
        for i in range(len(chunk)):
            yield values[offsets[i] : offsets[i + 1]]


def compare(file: Path) -> None:
    """Print the mean cosine of documents side by side in windowed orders."""
    documents = in_memory(file)
    vectors = HashedNgrams()(heads(documents, 512))
    vectors /= np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-9)
    print("| order | documents side by side |\n|---|---|")
    for size in [size for size in WINDOWS if size < len(documents)] + [len(documents)]:
        order = SimilarityOrder(order_window_documents=size, search="exact")
        total = pairs = 0.0
        for start in range(0, len(documents), size):
            path = start + order.order(documents[start : start + size]).order
            for low in range(0, len(path) - 1, 4096):
                left, right = path[low : low + 4096], path[low + 1 : low + 4097]
                total += float((vectors[left[: len(right)]] * vectors[right]).sum())
                pairs += len(right)
        name = "exact search of all" if size == len(documents) else f"windows of {size:,}"
        print(f"| {name} | {total / pairs:.3f} |", flush=True)


def in_memory(file: Path) -> Documents:
    """The corpus as token ids; of texts, their words."""
    from streampack.documents import Texts, offsets_of
    from streampack.ordering.words import hash_words

    (reader,) = sources.open(str(file)).lanes(1, seed=0, epoch=0, shuffle=False)
    blocks = [block for block, _ in reader.read(None, Skips())]
    if isinstance(blocks[0], Texts):
        data = [text.encode() for block in blocks for text in block.texts]  # type: ignore[union-attr]
        offsets = offsets_of(np.array([len(d) for d in data]))
        return hash_words(np.frombuffer(b"".join(data), np.uint8), offsets)[0]
    arrays = [block.document(i) for block in blocks for i in range(len(block))]  # type: ignore[union-attr]
    return Documents.from_arrays(arrays)


def main() -> None:
    """Make the corpus, put it in order, and print what came of it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--corpus", choices=("planted", "files"), default="planted")
    parser.add_argument("--documents", type=int, default=200_000)
    parser.add_argument("--roots", nargs="+", default=["/usr", sys.prefix])
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--search", default="auto")
    parser.add_argument("--dimension", type=int, default=1024)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with TemporaryDirectory(dir=options.folder) as made:
        folder = Path(made)
        file = folder / "corpus.parquet"
        topics, originals = write_corpus(options, file)
        out = folder / "ordered"
        job = CorpusOrder(
            source=sources.open(str(file)),
            destination=Destination(str(out)),
            to="parquet",
            embedder=HashedNgrams(dimension=options.dimension),
            search=options.search,
        )
        print(f"corpus of {file.stat().st_size / 1e6:,.0f} MB, {job.num_parts} parts", flush=True)
        began = time.monotonic()
        summary = run_job(job, workers=options.workers)
        report(summary, time.monotonic() - began)
        if options.corpus == "planted":
            judge_planted(out, in_memory(file), topics, originals)
            topic_share(out, file, topics)
        sys.stdout.flush()
        if options.compare:
            compare(file)


if __name__ == "__main__":
    main()
