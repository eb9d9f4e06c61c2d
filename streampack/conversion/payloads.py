"""Payloads: what a shard holds of each document of a block, which is its ids or its text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from streampack.conversion.shards import Payload, masked_ids
from streampack.documents.blocks import Documents, Texts
from streampack.documents.conversations import Conversations
from streampack.errors import ConfigError, StateError
from streampack.reading.base import Block, Source
from streampack.reading.skips import Skips
from streampack.tokenization import Tokenizer


def check_content(source: Source, tokenizer: Tokenizer | None) -> None:
    """Raise `ConfigError` if there is a tokenizer and no text for it."""
    if tokenizer is not None and source.tokenized:
        raise ConfigError(
            "A tokenizer was given for documents that are tokenized already.",
            "There is no text to tokenize.",
            "Leave --tokenizer out, or name a column of text with --text.",
        )


def no_documents(consequence: str = "Nothing was written.") -> ConfigError:
    """The error for a source that holds none."""
    return ConfigError(
        "The source holds no document.", consequence, "Check the path and the name of the column."
    )


def payloads_of(
    block: Block,
    source: Source,
    tokenizer: Tokenizer | None,
    dtype: str,
    skips: Skips,
    *,
    masks: bool = False,
) -> tuple[str, list[Payload], NDArray[np.void]]:
    """The block's N documents as they are written, and their dtype and origins (N,).

    Args:
        block: of any kind but conversations.
        source: of the block.
        tokenizer: for texts; None leaves them as they are.
        dtype: of the ids so far, "uint16" or "uint32"; "" takes that of the block.
        skips: for documents that cannot be tokenized.
        masks: True if loss masks are written too.

    Raises:
        ConfigError: the block holds what shards of ids would lose.
        StateError: ids do not fit into `dtype`.
    """
    if isinstance(block, Texts):
        if tokenizer is None:
            return "str", list(block.texts), block.origin
        block = tokenizer.encode(source.short_texts(block, skips), skips)
    if isinstance(block, Conversations):
        raise ConfigError(
            "The documents are conversations.",
            "Token ids only are written, and which of them are learnt would be lost.",
            "Pass them to PackedDataset as they are, in their files; they need no shards.",
        )
    if block.loss_mask is not None and not masks:
        raise ConfigError(
            "The documents have loss masks.",
            "Token ids only are written, and the masks would be lost.",
            'Order ids that are all learnt: --loss-mask "", or a source made with loss_mask=[].',
        )
    return _ids(block, dtype)


def _ids(block: Documents, dtype: str) -> tuple[str, list[Payload], NDArray[np.void]]:
    if not dtype:
        dtype = "uint16" if block.tokens.dtype == np.uint16 else "uint32"
    tokens = block.tokens[block.offsets[0] : block.offsets[-1]]
    if len(tokens) and (int(tokens.max()) > np.iinfo(dtype).max or int(tokens.min()) < 0):
        raise StateError(
            f"Documents have token ids from {int(tokens.min())} to {int(tokens.max())}, and the "
            f"shards so far hold {dtype}.",
            "The ids do not fit.",
            "Convert to another destination with --dtype uint32; no id may be negative.",
        )
    ids = tokens.astype(dtype, copy=False)
    if block.loss_mask is not None:
        ids = masked_ids(ids, block.loss_mask[block.offsets[0] : block.offsets[-1]])
    places = block.offsets - block.offsets[0]
    return dtype, [ids[places[i] : places[i + 1]] for i in range(len(block))], block.origin
