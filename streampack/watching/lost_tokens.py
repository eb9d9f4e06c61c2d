"""The report of tokens that are in no row, for a run that has some."""

from __future__ import annotations

from streampack.metrics import Metrics
from streampack.packing.packer import Packer, fields_of


def lost_summary(metrics: Metrics, packer: Packer, whole: str) -> str:
    """Describe the shares of tokens and loss tokens that are in no row, with advice.

    Args:
        metrics: counts of the tokens.
        packer: the packer that dropped them.
        whole: scope of the counts, such as "of the run".
    """
    stats = metrics.composition
    way = f'overflow="{packer.overflow}"'
    remedy = ' Longer rows, overflow="split" or, for chats, Chat(overflow="turns") keep them.'
    if packer.overflow == "split":
        way, remedy = type(packer).__name__, ""
    elif fields_of(packer):  # documents are whole
        remedy = " Longer rows or higher limits of a row keep them."
    return (
        f"{stats.dropped_ratio:.1%} of the tokens {whole} and {metrics.loss_dropped_ratio:.1%} of "
        f"the loss tokens are in no row ({way}, rows of {packer.seq_lens[-1]}): "
        f"{stats.documents_cropped:,} of {stats.documents + stats.documents_lost:,} documents "
        f"lost some, {stats.documents_lost:,} of these all, and {stats.documents_unlearnt:,} "
        f"keep no loss token.{remedy}"
    )
