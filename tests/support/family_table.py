"""The outcome of a packed batch in each family of transformers, and the page that lists it."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import transformers

from streampack import BestFitDecreasing, PackedBatch
from streampack.errors import ConfigError
from tests.support.packed_batches import packed_batches, random_documents
from tests.support.tiny_families import NotBuiltError, families, tiny_model

__all__ = ["ATTENTIONS", "Outcome", "outcome", "section"]

ATTENTIONS = ("eager", "sdpa")

#: Ways as the page has them, in its order.
TITLES = {
    "positions": "by `position_ids` alone",
    "mask": "by a mask, which `.hf(model=model)` passes",
    "refused": "not at all on a CPU: refused",
    "not tried": "not tried",
}


class Outcome(NamedTuple):
    """The way in which documents are kept apart, and the reason against a better one."""

    way: str
    reason: str = ""


def outcome(family: str, attention: str) -> Outcome:
    """Return the outcome of `.hf(model=)` for a family; raise if documents influence each other."""
    transformers.logging.set_verbosity_error()
    try:
        model = tiny_model(family, attention)
    except NotBuiltError as error:
        reason = f"{error}"
        return Outcome("not tried", reason if "parameters" in reason else "no small config by rule")
    lengths = [9 + 11 * (number % 5) for number in range(17)]
    documents = [2 + ids % 80 for ids in random_documents(lengths)]  # nothing special
    (batch,) = packed_batches(documents, BestFitDecreasing(seq_len=64))
    assert batch.rows == 8
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            arguments = batch.hf(model=model)
        except ConfigError as error:
            return _refused(str(error))
        _check_documents(model, batch, arguments)
    return Outcome("mask" if "attention_mask" in arguments else "positions")


def _refused(complaint: str) -> Outcome:
    layer = re.search(r"move one another in ([\w.]+)", complaint)
    if layer is not None:
        return Outcome("refused", f"`{layer[1]}`")
    if "as if at other positions" in complaint:
        return Outcome("refused", "as if at other positions")
    if "counted through the batch" in complaint:
        return Outcome("refused", "chunks are counted through the batch")
    if "keep packed sequences apart" in complaint or "kernels are not available" in complaint:
        return Outcome("refused", "needs kernels")
    return Outcome("refused", "raises on text in rows")


def _check_documents(model: Any, batch: PackedBatch, arguments: dict[str, Any]) -> None:
    """Every document has the outputs that it has by itself."""
    del arguments["labels"]
    logits = model(**arguments)[0].reshape(batch.rows * batch.seq_len, -1)
    for number in range(batch.num_documents):
        at = batch.document_ids.view(-1) == number
        ids = batch.input_ids.view(-1)[at][None]
        alone = model(input_ids=ids, use_cache=False)[0].reshape(len(ids[0]), -1)
        torch.testing.assert_close(logits[at], alone, rtol=1e-3, atol=1e-3)


def section(outcomes: Callable[[str, str], Outcome] = outcome) -> str:
    """The page's section about the installed version."""
    found: dict[str, list[str]] = {way: [] for way in TITLES}
    for family in families():
        each = {attention: outcomes(family, attention) for attention in ATTENTIONS}
        for way in TITLES:
            of_way = [attention for attention in ATTENTIONS if each[attention].way == way]
            if of_way:
                alone = "" if len(of_way) == len(ATTENTIONS) else f"{of_way[0]}: "
                reason = each[of_way[0]].reason
                if reason != "needs kernels":  # the error of `.hf(model=)` names the others
                    reason = ""
                notes = f" ({alone}{reason})" if reason else f" ({of_way[0]})" if alone else ""
                found[way].append(f"{family}{notes}")
    lines = [f"## transformers {transformers.__version__}, torch {torch.__version__.split('+')[0]}"]
    lines += ["", "| documents are kept apart | families |", "|---|---|"]
    lines += [f"| {TITLES[way]} ({len(found[way])}) | {', '.join(found[way])} |" for way in TITLES]
    return "\n".join(lines) + "\n"
