"""Metrics of a run by flat names, for a logger."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from streampack.metrics import LaneTimes, Metrics


def named_metrics(metrics: Metrics) -> dict[str, Any]:
    """Return the numbers of `Metrics.as_dict`."""
    composition = metrics.composition
    return {
        "batches": metrics.batches,
        "empty_batches": metrics.empty_batches,
        "tokens": metrics.tokens,
        "documents": metrics.documents,
        "shared_tokens": metrics.shared_tokens,
        "loss_tokens": metrics.loss_tokens,
        "loss_deviation_between_steps": metrics.loss_deviation_between_steps,
        "loss_deviation_within_steps": metrics.loss_deviation_within_steps,
        "tokens_dropped": composition.dropped,
        "loss_tokens_dropped": composition.loss_dropped,
        "documents_cropped": composition.documents_cropped,
        "documents_lost": composition.documents_lost,
        "documents_unlearnt": composition.documents_unlearnt,
        "utilisation": metrics.utilisation,
        "row_utilisation": composition.utilisation,
        "padding_ratio": composition.padding_ratio,
        "truncation_ratio": composition.truncation_ratio,
        "dropped_ratio": composition.dropped_ratio,
        "loss_dropped_ratio": metrics.loss_dropped_ratio,
        "mean_context": composition.mean_context,
        "tokens_left": metrics.left.placed,
        "documents_left": metrics.left.documents,
        "tokens_stepped_over": metrics.stepped_over.placed,
        "documents_stepped_over": metrics.stepped_over.documents,
        "empty_documents": metrics.empty_documents,
        "eos_in_texts": metrics.eos_in_texts,
        "skipped": metrics.skipped,
        "duplicates": metrics.duplicates,
        "duplicate_tokens": metrics.duplicate_tokens,
        "context_dropped": metrics.context_dropped,
        "excluded": metrics.excluded,
        "excluded_tokens": metrics.excluded_tokens,
        **{
            f"{kind}/{name}": count
            for name, counts in metrics.sources.items()
            for kind, count in counts._asdict().items()
        },
        "wait_s": metrics.wait_s,
        **{f.name: getattr(metrics.times, f.name) for f in fields(LaneTimes)},
    }
