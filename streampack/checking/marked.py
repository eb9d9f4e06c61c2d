"""Documents in which each token id occurs once, so that a slot tells its document and offset."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, overload

import numpy as np
from numpy.typing import NDArray

from streampack.arguments import whole_number
from streampack.errors import ConfigError

#: Lengths of documents are drawn with equal weight for each power of two in this range.
SHORTEST, LONGEST = 4, 128
#: Ids below it are never used, for padding and other special tokens.
FIRST_ID = 256


class MarkedDocuments(Sequence[list[int]]):
    """Documents in which each token id occurs once; a sequence of lists of ids.

    Attributes:
        lengths: (N,) int64, tokens of each document, without an end token.
        eos_id: id at the end of each document; None if documents have no end token.
        pad_id: id for padding, which no document has.
        answers: True if only a part of each document carries loss.
        vocab_size: number of ids that a model or tokenizer needs.
    """

    def __init__(
        self,
        lengths: NDArray[np.int64],
        ids: NDArray[np.int64],
        *,
        eos_id: int | None,
        pad_id: int,
        answers: bool,
        seed: int,
    ) -> None:
        self.lengths, self.eos_id, self.pad_id, self.answers = lengths, eos_id, pad_id, answers
        self.vocab_size = int(max(ids.max(initial=0), pad_id, eos_id or 0)) + 1
        self._ids, self._offsets = ids, np.concatenate(([0], lengths.cumsum()))
        self._loss = np.ones(len(ids), dtype=bool)
        if answers:
            draws = np.random.default_rng([seed, 1]).uniform(0.2, 0.8, len(lengths))
            prompts = np.clip((lengths * draws).astype(np.int64), 1, lengths - 1)
            of_document = np.repeat(np.arange(len(lengths)), lengths)
            self._loss = self._offset_of_token() >= prompts[of_document]
        self._token = np.full(self.vocab_size, -1, dtype=np.int64)
        self._token[ids] = np.arange(len(ids))

    def __len__(self) -> int:
        return len(self.lengths)

    @overload
    def __getitem__(self, index: int) -> list[int]: ...
    @overload
    def __getitem__(self, index: slice) -> list[list[int]]: ...
    def __getitem__(self, index: int | slice) -> list[int] | list[list[int]]:
        if isinstance(index, slice):
            return [self[number] for number in range(*index.indices(len(self)))]
        number = range(len(self))[index]
        ids: list[int] = self._ids[self._offsets[number] : self._offsets[number + 1]].tolist()
        return ids if self.eos_id is None else [*ids, self.eos_id]

    def loss_mask(self, index: int) -> list[int]:
        """Return 1 for each token of a document that carries loss, as long as its ids."""
        mask: list[int] = self._loss[self._offsets[index] : self._offsets[index + 1]].tolist()
        return [int(counts) for counts in mask] + [1] * (self.eos_id is not None)

    def records(self, *columns: str) -> Iterator[dict[str, Any]]:
        """Yield each document as a dictionary, for `datasets.Dataset.from_list` and collators.

        Args:
            columns: "input_ids", "labels" (not shifted, -100 without loss), "attention_mask" (ones)
                and "text"; any other name gets the loss mask, such as "completion_mask",
                "assistant_masks" or "loss_mask".
        """
        for number, ids in enumerate(self):
            mask = self.loss_mask(number)
            values: dict[str, Any] = {
                "input_ids": ids,
                "labels": [
                    token if counts else -100 for token, counts in zip(ids, mask, strict=True)
                ],
                "attention_mask": [1] * len(ids),
                "text": " ".join(f"<{token}>" for token in ids),
            }
            yield {column: values.get(column, mask) for column in columns}

    def tokenizer(self) -> Any:
        """Return a `tokenizers.Tokenizer` that encodes the column "text" as the marked ids."""
        from tokenizers import Tokenizer, models, pre_tokenizers

        vocabulary = {f"<{token}>": token for token in range(self.vocab_size)}
        tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=f"<{self.pad_id}>"))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer

    def _offset_of_token(self) -> NDArray[np.int64]:
        starts: NDArray[np.int64] = np.repeat(self._offsets[:-1], self.lengths)
        return np.arange(len(self._ids)) - starts

    # ------------------------------------------------------------------ slots to documents

    @property
    def num_tokens(self) -> int:
        """Number of marked tokens, without end tokens."""
        return len(self._ids)

    def token_of(self, ids: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the index in the corpus of the token of each id; -1 for ids of no document."""
        inside = (ids >= 0) & (ids < len(self._token))
        return np.where(inside, self._token[np.where(inside, ids, 0)], -1)

    def place_of(
        self, tokens: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """Return document, offset and loss of tokens by index; -1, -1 and False for -1."""
        document = np.searchsorted(self._offsets, tokens, side="right") - 1
        document = np.where(tokens < 0, -1, document)
        offset = np.where(tokens < 0, -1, tokens - self._offsets[np.maximum(document, 0)])
        return document, offset, np.where(tokens < 0, False, self._loss[np.maximum(tokens, 0)])


def marked_documents(
    count: int = 400,
    *,
    lengths: Sequence[int] | None = None,
    answers: bool = False,
    eos_id: int | None = None,
    pad_id: int = 0,
    first_id: int = FIRST_ID,
    reserved: Sequence[int] = (),
    vocab_size: int | None = None,
    seed: int = 0,
) -> MarkedDocuments:
    """Return documents whose token ids tell their document and offset, for `check`.

    Pass them to your loader as its corpus: as lists of ids, as `records` for a data set, or as
    texts with their `tokenizer`. Each id occurs once in all documents, apart from `eos_id`.

    Args:
        count: number of documents. Choose more than fill ten batches of the loader.
        lengths: tokens of each document, instead of `count`; None draws 4 to 128 tokens. Include
            documents longer than a row to see how the loader cuts them.
        answers: let only the last part of each document carry loss, as in instruction data. The
            loader must then get the labels or the mask, from `records`.
        eos_id: end token to append to each document. None if the loader appends one, or if there is
            no such token.
        pad_id: id that the loader uses for padding.
        first_id: smallest id of a document.
        reserved: further ids to leave out, such as the special tokens of a tokenizer.
        vocab_size: ids of the model or tokenizer, which must have room for all tokens.
        seed: seed of lengths and answers.

    Raises:
        ConfigError: a number is not positive, or `vocab_size` is too small.
    """
    if lengths is None:
        low, high = np.log2([SHORTEST, LONGEST + 1]).tolist()
        draws = np.random.default_rng(seed).uniform(low, high, whole_number("count", count))
        sizes = np.floor(2**draws).astype(np.int64)
    else:
        sizes = np.asarray([whole_number("lengths", length) for length in lengths], dtype=np.int64)
    if answers and sizes.min(initial=2) < 2:
        raise ConfigError(
            "With answers=True each of lengths must be at least 2, got 1.",
            "Give each document a token of a prompt and a token of an answer.",
            setting="lengths",
        )
    special = {pad_id, *reserved} | ({eos_id} - {None})
    total = int(sizes.sum())
    ids = np.setdiff1d(np.arange(first_id, first_id + total + len(special)), [*special])[:total]
    if vocab_size is not None and int(ids.max(initial=0)) >= vocab_size:
        raise ConfigError(
            f"The documents need ids up to {ids.max():,}, but vocab_size is {vocab_size:,}.",
            "Pass a smaller count or shorter lengths.",
            setting="vocab_size",
        )
    return MarkedDocuments(
        sizes, ids.astype(np.int64), eos_id=eos_id, pad_id=pad_id, answers=answers, seed=seed
    )
