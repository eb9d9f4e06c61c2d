"""Raw text to full batches, beside the tokenizer alone on the same texts and threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from benchmarks.corpus_files import jsonl_texts, parquet_texts
from benchmarks.protocol import ROWS, SEQ_LEN, Counts, Timed, WrongOutputError
from benchmarks.runners.streampack import fields_of
from benchmarks.workloads import Workload

__all__ = ["TEXT_RUNNERS"]

TEXT_BYTES = 6 << 20
CALL = 256  # documents per call of the tokenizer alone: faster than all in one call


class Text(Timed):
    """About 6 MiB of this machine's Python source, tokenized with a production vocabulary."""

    threads: ClassVar[int]

    def prepare(self) -> None:
        """Gather texts and find the tokenizer."""
        from demo.corpus import gather
        from demo.vocabulary import find_tokenizer
        from streampack.tokenization import Tokenizer

        def write(path: Path) -> None:
            texts = gather(max(int(TEXT_BYTES * self.workload.scale), 1 << 16))
            path.write_text("\0".join(texts), encoding="utf-8", newline="")

        file = self.workload.file("texts", write)
        with file.open(encoding="utf-8", newline="") as stream:
            self.texts = stream.read().split("\0")
        found, self.vocabulary = find_tokenizer(self.texts)
        self.tokenizer = Tokenizer(found._engine, eos_id=found.eos_id, engine="tokenizers")

    def expected(self) -> Counts:
        """Tokens with an end-of-document id each, from the tokenizer alone."""
        encodings = self.tokenizer._engine.encode_batch_fast(self.texts, add_special_tokens=False)
        eos = self.tokenizer.eos_id
        tokens = sum(len(e) + (not e.ids or e.ids[-1] != eos) for e in encodings)
        return Counts(tokens=tokens, documents=len(self.texts))


class EncodeBatchFast(Text):
    """The tokenizers library alone; its encodings are thrown away."""

    settings = f"calls of {CALL} texts in memory"
    delivers = "Encoding objects, ids not taken out"

    def batches(self) -> Iterator[Any]:
        """One call at a time."""
        engine = self.tokenizer._engine
        for first in range(0, len(self.texts), CALL):
            yield engine.encode_batch_fast(
                self.texts[first : first + CALL], add_special_tokens=False
            )

    def check(self) -> Counts:
        """Nothing to compare: it is what the others are compared with."""
        counts = self.expected()
        return Counts(counts.tokens, counts.tokens, counts.documents)


class StreampackText(Text):
    """A text source to full batches."""

    settings = f"defaults, batches of {ROWS} rows; reading, decoding and packing included"
    delivers = "all fields, 28 bytes per slot"
    write: ClassVar[Callable[[Workload, list[str]], Path]]
    kind: ClassVar[str]

    def source(self) -> Any:
        """The files."""
        from streampack import sources

        path = type(self).write(self.workload, self.texts)
        return (sources.JSONL if self.kind == "jsonl" else sources.Parquet)(path, text="text")

    def loader(self, **options: Any) -> Any:
        """A fresh loader."""
        from streampack import PackedDataset, PackedLoader, Topology

        dataset = PackedDataset(
            self.source(),
            seq_len=SEQ_LEN,
            batch_size=ROWS,
            tokenizer=self.tokenizer,
            topology=Topology(),
            **options,
        )
        return PackedLoader(dataset)

    def batches(self) -> Iterator[Any]:
        """Batches with all fields."""
        for batch in self.loader():
            yield fields_of(batch)

    def check(self) -> Counts:
        """As many tokens and documents as the tokenizer alone gives, and its ids in sum."""
        slots = tokens = documents = 0
        pieces: set[tuple[int, ...]] = set()
        cut: set[tuple[int, ...]] = set()
        for batch in self.loader(provenance=True):
            slots += batch.document_ids.numel()
            tokens += int(np.count_nonzero(batch.document_ids.numpy() >= 0))
            for origin in batch.provenance:
                key = (int(origin["shard"]), int(origin["index"]))
                (cut if key in pieces else pieces).add(key)
        documents = len(pieces)
        expected = self.expected()
        if (tokens, documents) != (expected.tokens, expected.documents):
            raise WrongOutputError(
                f"{self.label}: {tokens} tokens of {documents} documents, the tokenizer gives "
                f"{expected.tokens} of {expected.documents}."
            )
        return Counts(slots, tokens, documents, len(cut))


def _runner(base: type[Text], name: str, label: str, threads: int, **more: Any) -> type[Text]:
    switch = "true" if threads > 1 else "false"
    variables = {"TOKENIZERS_PARALLELISM": switch, "RAYON_NUM_THREADS": str(threads)}
    label = f"{label}, {threads} thread{'s' * (threads > 1)}"
    members = {"label": label, "threads": threads, "variables": variables, **more}
    return type(f"{name}{threads}", (base,), {"__doc__": base.__doc__, **members})


def _runners(threads: int) -> list[type[Text]]:
    formats = {"jsonl": jsonl_texts, "parquet": parquet_texts}
    alone = _runner(EncodeBatchFast, "EncodeBatchFast", "encode_batch_fast alone", threads)
    return [alone] + [
        _runner(
            StreampackText,
            f"Streampack{kind.title()}Text",
            f"streampack, text in {kind}",
            threads,
            kind=kind,
            write=staticmethod(write),
        )
        for kind, write in formats.items()
    ]


#: By threads: the tokenizer alone, then a runner per format.
TEXT_RUNNERS = {threads: _runners(threads) for threads in (1,)}
