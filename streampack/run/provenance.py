"""Provenance of the tokens in batches: shards and documents, and sources of a mixture."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from streampack.batch.text import decoder
from streampack.documents.blocks import Texts
from streampack.documents.conversations import Conversations
from streampack.errors import ConfigError
from streampack.metrics import SourceCounts, SourceTotals
from streampack.sources.base import Source
from streampack.sources.credits import WeightChange
from streampack.sources.mixture import Mixture, sources_of
from streampack.sources.sharded import ShardedSource
from streampack.sources.skips import Skips


@dataclass(frozen=True, slots=True)
class Piece:
    """Origin of one document piece of a batch.

    Attributes:
        source: name of the source in a mixture; None if it is the only one.
        shard: path or URL of the shard; the lane for an iterable.
        index: index of the document in the shard; in JSON lines the byte offset of its line, in
            flat files of ids the offset of its first token.
        start, stop: token range ``[start, stop)`` of the piece in the packed document, after
            tokenizer and hooks.
    """

    source: str | None
    shard: str
    index: int
    start: int
    stop: int

    def __str__(self) -> str:
        of = "" if self.source is None else f"{self.source}, "
        return f"{of}{self.shard}, index {self.index}, tokens {self.start} to {self.stop}"


def locate(source: Source, batch: Any) -> list[Piece]:
    """Return the pieces of a `PackedBatch`, or of its provenance (N,), in order.

    Raises:
        ConfigError: the batch has no provenance, or comes from another dataset.
    """
    provenance: NDArray[np.void] | None = getattr(batch, "provenance", batch)
    if provenance is None:
        raise ConfigError(
            "The batch must carry provenance, got none.",
            "Pass provenance=True to the dataset.",
            setting="provenance",
        )
    members = sources_of(source)
    names = list(source.sources) if isinstance(source, Mixture) else [None]
    shards: dict[tuple[int, int], str] = {}
    pieces = []
    for number, shard, index, start, stop in provenance.tolist():
        if not 0 <= number < len(members):
            raise ConfigError(
                f"The source index of a piece must be below {len(members)}, got {number}.",
                "Ask the dataset that made the batch.",
                setting="batch",
            )
        if (number, shard) not in shards:
            shards[number, shard] = members[number].shard_name(shard)
        pieces.append(Piece(names[number], shards[number, shard], index, start, stop))
    return pieces


def text_of(source: Source, piece: Piece, tokenizer: Any) -> str:
    """Return the whole document of a piece, as stored; see `PackedDataset.text_of`."""
    if not isinstance(piece, Piece):
        raise ConfigError(
            f"piece must be a Piece, got {piece!r:.80}.",
            "Pass a piece that dataset.locate(batch) returned.",
            setting="piece",
        )
    found = source.sources.get(str(piece.source)) if isinstance(source, Mixture) else source
    found = found and found.inner
    if not isinstance(found, ShardedSource) or piece.shard not in found.manifest.paths:
        raise ConfigError(
            f"The piece must be from a file of the dataset's source, got {piece.shard!r}.",
            "Ask the dataset that made the batch; for documents of an iterable use "
            "batch.decode(number, tokenizer).",
            path=piece.shard,
        )
    shard = found.manifest.paths.index(piece.shard)
    weight = int(found.manifest.weights[shard])
    for block, _, _ in found.read_shard(shard, 0, weight, None, Skips("skip")):
        (places,) = np.nonzero(block.origin["index"] == piece.index)
        if not len(places):
            continue
        document = block.take(places[:1])
        if isinstance(document, Texts):
            return document.texts[0]
        if isinstance(document, Conversations):
            return json.dumps(asdict(document.conversations[0]), ensure_ascii=False, default=list)
        return decoder(tokenizer)(document.document(0).astype(np.int64))
    raise ConfigError(
        f"{piece.shard} has no document {piece.index}.",
        "Locate it with the files that the run read.",
        path=piece.shard,
    )


class SourceFigures(NamedTuple):
    """Figures of one source of a mixture.

    Attributes:
        name: name in the mixture.
        expected: share of the tokens by its weight, 0 to 1.
        observed: share of the delivered tokens, 0 to 1.
        tokens, documents, loss_tokens: delivered counts; see `Metrics.sources`.
        epochs: whole passes over the source, averaged over the lanes that gave this rank batches.
            The count covers documents read, not documents delivered: a lane counts 0 until it
            reads the first document of its second pass, or finds that there is none, and documents
            that it has read may still wait in its window. So it may be up to one pass behind
            `documents`, or a window ahead. It comes from the states of lanes, and continues after
            a resume.
    """

    name: str
    expected: float
    observed: float
    tokens: int
    documents: int
    loss_tokens: int
    epochs: float


class SourceReport(tuple[SourceFigures, ...]):
    """`SourceFigures` of every source, in the order of the mixture; ``print`` makes a table."""

    def __str__(self) -> str:
        rows = [
            ("source", "expected", "observed", "tokens", "documents", "loss tokens", "epochs read")
        ]
        rows += [
            (
                row.name, f"{row.expected:.2%}", f"{row.observed:.2%}", f"{row.tokens:,}",
                f"{row.documents:,}", f"{row.loss_tokens:,}", f"{row.epochs:.2f}",
            )
            for row in self
        ]  # fmt: skip
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return "\n".join(
            "  ".join([name.ljust(widths[0]), *map(str.rjust, figures, widths[1:])])
            for name, *figures in rows
        )

    __repr__ = __str__

    def as_dict(self) -> dict[str, dict[str, Any]]:
        """Return the fields of `SourceFigures` by source name; JSON-able."""
        return {row.name: dict(zip(row._fields[1:], row[1:], strict=True)) for row in self}


def source_report(
    source: Source,
    totals: Mapping[str, SourceCounts],
    passes: Mapping[int, NDArray[np.int64]],
) -> SourceReport:
    """Make the report; `passes` maps each lane to the epochs it has read, (sources,).

    The report has no rows unless the source is a mixture.
    """
    if not isinstance(source, Mixture):
        return SourceReport()
    whole = max(sum(counts.tokens for counts in totals.values()), 1)
    none = np.zeros(len(source.sources), dtype=np.int64)
    epochs = np.mean([*passes.values()] or [none], axis=0)
    return SourceReport(
        SourceFigures(
            name,
            own.expected_tokens / whole,
            own.tokens / whole,
            own.tokens,
            own.documents,
            own.loss_tokens,
            finished,
        )
        for name, finished in zip(source.sources, epochs.tolist(), strict=True)
        for own in (totals.get(name, SourceCounts()),)
    )


def counted(
    totals: SourceTotals,
    mixture: Source,
    by_source: NDArray[np.int64],
    at: int,
    change: WeightChange | None,
) -> SourceTotals:
    """Return new totals that include a batch; other threads may be reading the old object.

    `by_source` comes from `PackedRows`; `at` is the number of tokens of the run before the batch;
    `change` is the change of weights in force by then.
    """
    assert isinstance(mixture, Mixture)
    shares = mixture.shares if change is None else change.shares([*mixture.sources])
    rates = shares.rates(at, [True] * len(mixture.sources))
    rows = by_source.tolist()
    each = sum(row[0] for row in rows) / sum(rates)
    made, none = SourceTotals(totals), SourceCounts()
    for name, (tokens, documents, learnt, _), rate in zip(
        mixture.sources, rows, rates, strict=True
    ):
        own = totals.get(name, none)
        made[name] = SourceCounts(
            own[0] + tokens, own[1] + documents, own[2] + learnt, own[3] + each * rate
        )
    return made
