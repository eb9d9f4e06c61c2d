"""Which packer a run has, whether it has what the packer goes by, and what the packer loses."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from streampack.arguments import one_of
from streampack.documents.blocks import PATCHES
from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError
from streampack.packing.decreasing import BestFitDecreasing
from streampack.packing.packer import Packer, require_packer
from streampack.sources.base import Source

if TYPE_CHECKING:
    from streampack.metrics import Metrics
    from streampack.ordering import DocumentOrder
    from streampack.packing.balancing import Balance

logger = logging.getLogger(__name__)


def choose_packer(
    seq_len: int | None,
    packer: Packer | None,
    order: DocumentOrder | None,
    source: Source,
    layout: str = "documents",
    media: bool = False,
) -> Packer:
    """The packer of a run, from what is given of row length, packer, order, layout and images."""
    if packer is not None:
        packer = require_packer(packer)
    if (seq_len is None) == (packer is None):
        raise ConfigError(
            f"seq_len is {seq_len!r} and packer is {packer!r:.200}.",
            "Pass seq_len=2048, or packer=BestFitDecreasing(seq_len=2048)."
            if packer is None
            else "Leave out seq_len=.",
            setting="seq_len",
        )
    if packer is None:
        if (layout == "tree" or media) and order is None:
            return BestFitDecreasing(seq_len=seq_len or 0, overflow="drop")
        usual = _usual_packer(seq_len or 0, order, source)
        return _of_groups(usual) if source.grouped and layout != "tree" else usual
    if source.overflow != "split" and (packer.overflow == "split" or not packer.keeps_whole):
        logger.warning(
            "%s cuts conversations, and what is cut off is learnt without what was said before; "
            'BestFitDecreasing(seq_len=%d, overflow="%s") learns no such part.',
            type(packer).__name__,
            packer.seq_lens[-1],
            source.overflow,
        )
    if order is not None and not packer.keeps_order:
        raise ConfigError(
            f"{type(packer).__name__} puts documents into rows by their lengths, "
            f"which tears apart what {type(order).__name__} puts side by side.",
            f"Use packer=Concat(seq_len={packer.seq_lens[-1]}), or leave out the order.",
            setting="order",
        )
    return _of_groups(packer) if source.grouped and layout != "tree" else packer


def _usual_packer(seq_len: int, order: DocumentOrder | None, source: Source) -> Packer:
    """The packer of rows of `seq_len` where none is given."""
    if order is None and source.grouped:
        return BestFitDecreasing(seq_len=seq_len, overflow="drop")
    if len({part.overflow for part in source.parts.values()}) > 1:
        raise ConfigError(
            "The mixture has conversations, which are truncated, and documents, which are split.",
            f'Pass packer=BestFitDecreasing(seq_len={seq_len}, overflow=...) with "split", '
            '"truncate" or "drop".',
            setting="packer",
        )
    if order is None:
        return BestFitDecreasing(seq_len=seq_len, overflow=source.overflow)
    if source.overflow != "split":
        raise ConfigError(
            f"{type(order).__name__} goes with a packer that cuts documents where rows end.",
            f"Pass packer=Concat(seq_len={seq_len}) to have them cut, or leave out the order.",
            setting="order",
        )
    from streampack.packing.concat import Concat

    return Concat(seq_len=seq_len)


def _of_groups(packer: Packer) -> Packer:
    """The packer that keeps the documents of a record together, if the one given can."""
    given = BestFitDecreasing(seq_len=packer.seq_lens[-1], overflow=packer.overflow)
    if packer == given and given.overflow in ("drop", "error"):
        from streampack.packing.whole_groups import WholeGroups

        return WholeGroups(seq_len=given.seq_len, overflow=given.overflow)
    logger.warning(
        "The documents of a record are packed apart: only BestFitDecreasing with overflow "
        '"drop" or "error", and without balance=, keeps them in one batch.'
    )
    return packer


def check_balance(attention: str, packer: Packer) -> Balance | None:
    """The schedule that the packer's `balance` asks for, to be measured; None if it asks for none.

    Raises:
        ConfigError: it or `attention` is unknown, or there is nothing to be balanced.
    """
    one_of("attention", attention, ["document", "row"])
    if packer.balance is None:
        return None
    one_of("balance", packer.balance, ["attention", *packer.weights])
    if attention == "row" and packer.balance == "attention":
        raise ConfigError(
            'The packer has balance="attention", and attention is "row": all rows cost the same.',
            "Leave out balance=.",
            setting="balance",
        )
    if len(packer.seq_lens) > 1:  # which has a schedule of its own
        return None
    from streampack.packing.balancing import Balance

    return Balance(kind=packer.balance)


def check_weights(packer: Packer, fields: FieldTypes) -> None:
    """Raise `ConfigError` unless there are the fields of whole numbers that rows go by."""
    for name in packer.weights:
        if name not in fields.document or fields.document[name].kind not in "iu":
            remedy = f'Declare it: document_fields={{"{name}": "int64"}}.'
            if name == PATCHES:
                remedy = "Pass processor=, of documents with images, or leave it out."
            raise ConfigError(
                f'The packer goes by "{name}", which is no document field of whole numbers.',
                remedy,
                setting="capacity" if name in packer.capacity else "balance",
            )


def lost_in_words(metrics: Metrics, packer: Packer, of: str) -> str:
    """The shares of tokens and loss tokens that no row holds, "of the run", and a remedy."""
    found = metrics.composition
    way, remedy = f'overflow="{packer.overflow}"', ' Longer rows or overflow="split" keep them.'
    if packer.overflow == "split":
        way, remedy = type(packer).__name__, ""
    elif packer.capacity:
        remedy = " Longer rows or a larger capacity keep them."
    return (
        f"{found.dropped_ratio:.1%} of the tokens {of} and {metrics.loss_dropped_ratio:.1%} of the "
        f"loss tokens are in no row ({way}, rows of {packer.seq_lens[-1]}): "
        f"{found.documents_cropped:,} of {found.documents + found.documents_lost:,} documents lost "
        f"some, {found.documents_lost:,} of these all, and {found.documents_unlearnt:,} keep no "
        f"loss token.{remedy}"
    )
