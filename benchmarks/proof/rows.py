"""The arms: every way to lay the same documents out, as steps of one shape.

All but ours and `noise` get ids that lie in memory, so their loaders cost them nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn import functional

from benchmarks.proof.model import SEGMENTS, Size, Step, step_of, upload
from benchmarks.proof.texts import Corpus
from streampack import PackedBatch, PackedDataset, PackedLoader, TokenRules, Topology

__all__ = ["ARMS", "Arm", "Count", "apart", "concatenated", "crop", "cropped_rows", "on", "row"]

Ids = NDArray[np.int64]


class Count:
    """Tokens and documents that an arm took from the corpus, and tokens that it dropped."""

    def __init__(self) -> None:
        self.tokens = self.lost = self.documents = 0


#: A layout: endless steps of a corpus, from a size, the length of a row, the corpus and counts.
Arm = Callable[[Size, int, Corpus, Count], Iterator[Step]]


def forever(documents: list[Ids], seed: int = 0) -> Iterator[Ids]:
    """Return the documents in orders drawn anew, without end."""
    rng = np.random.default_rng(seed)
    while True:
        for i in rng.permutation(len(documents)):
            yield documents[i]


def row(ids: Ids, length: int | None = None) -> tuple[Ids, Ids]:
    """Ids and next tokens of a row; padding up to `length` is computed, as collators' masks do."""
    length = len(ids) if length is None else length
    labels = np.full(length, -100)
    labels[: len(ids) - 1] = ids[1:]
    return np.pad(ids, (0, length - len(ids))), labels


def noise(size: Size, seq_len: int, corpus: Corpus, count: Count) -> Iterator[Step]:
    """Rows of random ids without a boundary: the model's highest rate."""
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, size.vocabulary - 48, seq_len) for _ in range(size.slots // seq_len)]
    step = step_of(size, [row(one) for one in ids], seq_len)
    while True:
        yield step


def padded(size: Size, seq_len: int, corpus: Corpus, count: Count) -> Iterator[Step]:
    """A document, or a piece of one, per row, padded to `seq_len` as collators of trainers do."""
    return per_row(size, seq_len, split_documents(corpus.ids, seq_len, count), in_batches=1)


def ordered(size: Size, seq_len: int, corpus: Corpus, count: Count) -> Iterator[Step]:
    """Sorted by length in 50 batches of `padded`, as many rows as fit."""
    return per_row(size, seq_len, split_documents(corpus.ids, seq_len, count), in_batches=50)


def split_documents(documents: list[Ids], seq_len: int, count: Count) -> Iterator[Ids]:
    """Return documents in pieces of a row, so that no way loses a token."""
    for document in forever(documents):
        count.tokens += len(document)
        yield from np.split(document, range(seq_len, len(document), seq_len))


def per_row(size: Size, seq_len: int, found: Iterator[Ids], in_batches: int) -> Iterator[Step]:
    """Rows padded to `seq_len`, or sorted and padded to the longest of as many as fit."""
    rows = size.slots // seq_len
    rng = np.random.default_rng(0)
    while True:
        pool = [next(found) for _ in range(in_batches * rows)]
        batches: list[list[Ids]] = [pool]
        if in_batches > 1:
            batches = [[]]
            for piece in sorted(pool, key=len):
                many = len(batches[-1]) + 1
                if many * len(piece) > size.slots or many > SEGMENTS - rows:
                    batches.append([])
                batches[-1].append(piece)
        for i in rng.permutation(len(batches)):
            length = seq_len if in_batches == 1 else max(map(len, batches[i]))
            yield step_of(size, [row(piece, length) for piece in batches[i]], seq_len)


def concatenated(size: Size, seq_len: int, corpus: Corpus, count: Count) -> Iterator[Step]:
    """All documents in one stream, cut into rows; tokens see the documents before theirs."""
    stream, rest = forever(corpus.ids), np.zeros(0, dtype=np.int64)
    while True:
        parts, have = [rest], len(rest)
        while have <= size.slots:
            parts.append(next(stream))
            have += len(parts[-1])
            count.tokens += len(parts[-1])
        joined = np.concatenate(parts)
        now, rest = joined[: size.slots], joined[size.slots :]
        yield step_of(size, [row(one) for one in now.reshape(-1, seq_len)], seq_len)


def crop(size: Size, seq_len: int, corpus: Corpus, count: Count) -> Iterator[Step]:
    """Full rows by best fit, closed by cropped documents; tokens see the documents before theirs.

    It begins where its buffer has settled: documents longer than a row gather there, because a
    row takes shorter ones, until one of them is the shortest.
    """
    before = Count()
    rows = cropped_rows(seq_len, forever(corpus.ids), before)
    while before.documents < 20_000:
        next(rows)
    skipped, dropped = before.tokens, before.lost
    while True:
        made = [next(rows) for _ in range(size.slots // seq_len)]
        count.tokens, count.lost = before.tokens - skipped, before.lost - dropped
        yield step_of(size, [(one[:-1], one[1:]) for one in made], seq_len)


def cropped_rows(
    seq_len: int, stream: Iterator[Ids], count: Count, buffer: int = 1000
) -> Iterator[Ids]:
    """Rows of `seq_len` + 1 ids.

    As nanochat's `tokenizing_distributed_data_loader_bos_bestfit` makes them: the longest document
    of the buffer that fits goes next; where none fits, the shortest is cropped and its rest lost.
    """
    waiting = [next(stream) for _ in range(buffer)]
    lengths = np.array([len(one) for one in waiting])
    while True:
        parts: list[Ids] = []
        room = seq_len + 1
        while room:
            chosen = int(np.where(lengths <= room, lengths, -lengths).argmax())
            document, waiting[chosen] = waiting[chosen], next(stream)
            lengths[chosen] = len(waiting[chosen])
            parts.append(document[:room])
            count.tokens, count.documents = count.tokens + len(document), count.documents + 1
            count.lost += len(document) - len(parts[-1])
            room -= len(parts[-1])
        yield np.concatenate(parts)


def trl_bfd(size: Size, seq_len: int, corpus: Corpus, count: Count) -> Iterator[Step]:
    """TRL's `pack_dataset(strategy="bfd")` as it ships: documents apart, overflow lost."""
    from datasets import Dataset
    from trl.data_utils import pack_dataset

    table = Dataset.from_dict({"input_ids": corpus.ids})
    packed = pack_dataset(table, seq_len, "bfd").with_format("numpy")
    count.tokens = sum(map(len, corpus.ids))
    count.lost = count.tokens - sum(map(len, packed["input_ids"]))
    while True:
        for i in range(0, len(packed) - size.slots // seq_len, size.slots // seq_len):
            some = packed[i : i + size.slots // seq_len]
            rows = []
            for ids, lengths in zip(some["input_ids"], some["seq_lengths"], strict=True):
                rows += [row(one) for one in np.split(ids, np.cumsum(lengths)[:-1])]
            yield step_of(size, rows, seq_len)


def ours(size: Size, seq_len: int, corpus: Corpus, count: Count) -> Iterator[Step]:
    """From the file of raw text, by two workers, packed while the model learns."""
    dataset = PackedDataset(
        str(corpus.path),
        seq_len=seq_len,
        batch_size=size.slots // seq_len,
        tokenizer=str(corpus.words.path),
        token_rules=TokenRules(pad_id=0, eos_id=corpus.words.end, vocab_size=size.vocabulary),
        epochs=None,
        lanes=2,
        topology=Topology(),
    )
    return loaded(size, dataset, count, num_workers=2)


def apart(size: Size, seq_len: int, corpus: Corpus, count: Count) -> Iterator[Step]:
    """Best fit with documents apart, from ids; a document longer than a row in pieces."""
    dataset = PackedDataset(
        corpus.ids,
        seq_len=seq_len,
        batch_size=size.slots // seq_len,
        token_rules=TokenRules(pad_id=0, eos="as-is"),
        epochs=None,
        topology=Topology(),
    )
    return loaded(size, dataset, count, num_workers=0)


def loaded(size: Size, dataset: PackedDataset, count: Count, *, num_workers: int) -> Iterator[Step]:
    """Steps of our loader's batches, where the device is the model's."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    loader = PackedLoader(dataset, num_workers=num_workers, device=device)
    batches = iter(loader)
    try:
        for batch in batches:
            yield of_batch(size, batch)
            count.tokens += batch.num_tokens
    finally:
        batches.close()  # type: ignore[attr-defined]


def of_batch(size: Size, batch: PackedBatch) -> Step:
    """A batch of ours as a step."""
    labels = functional.pad(batch.labels.flatten()[1:], (0, 1), value=-100)
    lengths = batch.varlen("torch", segments=SEGMENTS)
    operations = size.operations(batch.num_tokens, batch.sum_squared_lengths)
    return Step(
        batch.input_ids.flatten(), labels, batch.position_ids.flatten(), lengths["cu_seq_q"],
        lengths["max_q"], batch.num_loss_tokens, operations,
    )  # fmt: skip


def on(device: str, steps: Iterator[Step]) -> Iterator[Step]:
    """The steps on a device; those of our loader lie there."""
    return (step if step.input_ids.is_cuda else upload(step, device) for step in steps)


ARMS: dict[str, Arm] = {
    "rows of noise, no boundaries, no loader": noise,
    "streampack: best fit, documents apart, from raw text by 2 workers": ours,
    "a document per row, padded": padded,
    "sorted by length in 50 batches, padded, as many rows as fit": ordered,
    "concatenated and cut, documents see each other": concatenated,
    "best-fit crop (nanochat), documents see each other": crop,
    "TRL 1.16 bfd, documents apart": trl_bfd,
}
