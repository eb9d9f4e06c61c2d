"""What the GPU experiment measures on held-out documents, the same for all arms.

Losses are means in nats per token.

- *alone*: documents from their beginning, one row at most, by position; and tokens of identifiers
  that training lacks and the document had before, by distance ("copied": the loss there).
- *gain from context*: the last eighth of documents that fill a row, behind an eighth of a row and
  behind all of it.
- *gain from examples*: the right-hand sides of made-up lines of one form, behind 0 to 8 others.
- *price of an unrelated document*: the first quarter of a row of a document, alone, behind half a
  row of a document of another package, and behind one of its own package ("gain from a related
  document").
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.papers.model import SmallGPT, label_losses
from benchmarks.papers.training.corpus import Corpus
from benchmarks.papers.training.protocol import Preset
from streampack import PackedBatch, PackedDataset, TokenRules, Topology, sources
from streampack.packing import BestFitDecreasing

__all__ = ["EXAMPLES", "Probes"]

EXAMPLES = (0, 1, 2, 4, 8)
PROBE_SEED = 7_000_000
WORDS = (
    "amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "heron", "inlet", "jetty",
    "knoll", "larch", "maple", "north", "ochre", "pearl", "quill", "ridge", "shoal", "thorn",
    "umber", "vista", "wharf", "yield", "zonal",
)  # fmt: skip


@dataclass(frozen=True)
class Piece:
    """Tokens that are read by themselves; those with a `mark` above 0 count.

    Attributes:
        tokens: (L,) ids.
        mark: (L,) int32, 0 or what a token is counted under.
        number: of the piece, to pair pieces.
    """

    tokens: NDArray[np.uint16]
    mark: NDArray[np.int32]
    number: int = 0


class Probes:
    """Every set as batches on the device."""

    def __init__(self, preset: Preset, corpus: Corpus, device: str) -> None:
        self._preset, self._corpus, self._device = preset, corpus, device
        row = preset.seq_len
        documents = corpus.held_out[: 4 * preset.probes]
        alone = [document.tokens[:row] for document in documents]
        positions = [np.arange(len(tokens), dtype=np.int32) for tokens in alone]
        self.sets = {"alone": self._batches(map(Piece, alone, positions))}
        self.sets["copied"] = self._batches(
            Piece(document.tokens[:row], document.copied[:row])
            for document in corpus.held_out
            if document.copied[:row].any()
        )
        self.sets |= self._contexts()
        self.sets |= {f"{count} examples": self._examples(count) for count in EXAMPLES}
        self.sets |= self._behind()
        empty = [name for name, batches in self.sets.items() if not batches]
        if empty:
            raise ValueError(f"The corpus has no held-out documents for: {', '.join(empty)}.")

    def _batches(self, pieces: Iterable[Piece]) -> list[PackedBatch]:
        """Packed, with attention inside pieces, so that each is read alone."""
        records = [
            {"tokens": piece.tokens, "counts": piece.mark > 0, "mark": piece.mark}
            for piece in pieces
        ]
        if not records:
            return []
        row = self._preset.seq_len
        dataset = PackedDataset(
            sources.Iterable(records, tokens="tokens", loss_mask="counts"),
            packer=BestFitDecreasing(seq_len=row),
            batch_size=self._preset.batch_size,
            token_rules=TokenRules(vocab_size=self._corpus.vocab_size),
            token_fields={"mark": "int32"},
            shuffle=False,
            lanes=1,
            topology=Topology(),
        )
        return [batch.to(self._device) for batch in dataset]

    def _contexts(self) -> dict[str, list[PackedBatch]]:
        """The last eighth of a row, behind one eighth and behind seven."""
        row = self._preset.seq_len
        eighth = row // 8
        full = [d.tokens[:row] for d in self._corpus.held_out if len(d.tokens) >= row]
        mark = np.concatenate((np.zeros(row - eighth), np.ones(eighth))).astype(np.int32)
        full = full[: self._preset.probes]
        return {
            "context of a row": self._batches(Piece(tokens, mark) for tokens in full),
            "context of an eighth": self._batches(
                Piece(tokens[-2 * eighth :], mark[-2 * eighth :]) for tokens in full
            ),
        }

    def _examples(self, count: int) -> list[PackedBatch]:
        """Lines that make a constant of a name; the last right-hand side counts."""
        rng = np.random.default_rng(PROBE_SEED)
        pieces = []
        for _ in range(self._preset.probes):
            names = [tuple(rng.choice(WORDS, 2)) for _ in range(max(EXAMPLES) + 1)][-count - 1 :]
            lines = [f'{a.upper()}_{b.upper()} = "{b}-{a}"\n' for a, b in names]
            left, right = lines[-1].split('= "')
            before = self._corpus.encode("".join(lines[:-1]) + left + '= "')
            answer = self._corpus.encode(right)
            tokens = np.array([*before, *answer], dtype=np.uint16)
            mark = np.repeat(np.array([0, 1], dtype=np.int32), [len(before), len(answer)])
            pieces.append(Piece(tokens, mark))
        return self._batches(pieces)

    def _behind(self) -> dict[str, list[PackedBatch]]:
        """Beginnings of documents alone and behind ends of others."""
        rng = np.random.default_rng(PROBE_SEED + 1)
        half, quarter = self._preset.seq_len // 2, self._preset.seq_len // 4
        documents = self._corpus.held_out
        fronts: dict[str, list[int]] = {}
        for number, document in enumerate(documents):
            if len(document.tokens) >= half:
                fronts.setdefault(document.package, []).append(number)
        alone: list[Piece] = []
        unrelated: list[Piece] = []
        related: list[Piece] = []
        for number, document in enumerate(documents):
            own = [k for k in fronts.get(document.package, []) if k != number]
            others = [k for name, ks in fronts.items() if name != document.package for k in ks]
            if len(alone) == self._preset.probes:
                break
            if not own or not others or len(document.tokens) < quarter:
                continue
            target = document.tokens[:quarter]
            mark = (np.arange(quarter) > 0).astype(np.int32)
            alone.append(Piece(target, mark))
            for made, choices in ((unrelated, others), (related, own)):
                front = documents[int(rng.choice(choices))].tokens[-half:]
                tokens = np.concatenate((front, target))
                made.append(Piece(tokens, np.concatenate((np.zeros(half, np.int32), mark))))
        return {
            "beginnings": self._batches(alone),
            "behind an unrelated document": self._batches(unrelated),
            "behind a related document": self._batches(related),
        }

    def measured(self, model: SmallGPT) -> dict[str, float]:
        """Every measure of a trained model."""
        found = {name: _mean(_losses(model, batches)[0]) for name, batches in self.sets.items()}
        row = self._preset.seq_len
        for name, bounds in (("alone", (row // 32, row // 8, row // 2)), ("copied", (row // 8,))):
            losses, marks = _losses(model, self.sets[name])
            lows, highs = (0, *bounds), (*bounds, row)
            for low, high in zip(lows, highs, strict=True):
                there = (marks > low) & (marks <= high)
                if there.any():
                    found[f"{name}, {low + 1} to {high}"] = _mean(losses[there])
        alone = found["beginnings"]
        found["gain from context"] = found["context of an eighth"] - found["context of a row"]
        found["gain from 8 examples"] = found["0 examples"] - found[f"{EXAMPLES[-1]} examples"]
        found["price of an unrelated document"] = found["behind an unrelated document"] - alone
        found["gain from a related document"] = alone - found["behind a related document"]
        return {name: round(value, 5) for name, value in found.items()}


@torch.no_grad()
def _losses(model: SmallGPT, batches: list[PackedBatch]) -> tuple[Tensor, Tensor]:
    """(N,) losses and marks of all tokens that count."""
    losses, marks = [], []
    for batch in batches:
        losses.append(label_losses(model, batch))
        marks.append(batch.fields["mark"][:, 1:][batch.labels[:, 1:] != -100])
    return torch.cat(losses), torch.cat(marks)


def _mean(losses: Tensor) -> float:
    return float(losses.double().mean())
