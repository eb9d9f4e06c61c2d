"""Lightning Fabric: rows of joined documents in a DataLoader, and a `PackedLoader`.

The change: the loader. `fabric.save` and `fabric.load` take its state, which a DataLoader has not.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

import torch
from lightning import Fabric
from torch.utils.data import DataLoader

from examples.clients.common import ROWS, SAVED_AFTER, SEQ_LEN, STEPS, Corpus, Side, tiny_llama
from streampack import PackedLoader


def losses(corpus: Corpus, make_loader: Any, *, resume: bool) -> list[float]:
    """Return the losses of a whole run, or of one resumed from its state after `SAVED_AFTER`."""
    fabric = Fabric(accelerator="cpu", devices=1)
    model = tiny_llama()
    model, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), 1e-3))
    made = make_loader(model)
    loader = fabric.setup_dataloaders(made)
    state = {"model": model, "optimizer": optimizer}
    if hasattr(made, "state_dict"):
        state["loader"] = loader
    if resume:
        fabric.load(corpus.folder / "fabric", state)
    done, found = SAVED_AFTER if resume else 0, []
    for batch in islice(loader, STEPS - done):
        loss = model(**batch).loss
        fabric.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
        if done + len(found) == SAVED_AFTER:
            fabric.save(corpus.folder / "fabric", state)
    return found


def before(corpus: Corpus) -> Side:
    """Documents joined and cut into rows: strangers attend to each other."""
    ids = torch.tensor([token for document in corpus.documents for token in document])
    rows = ids[: len(ids) // SEQ_LEN * SEQ_LEN].view(-1, SEQ_LEN)

    def make(model: Any) -> Any:
        generator = torch.Generator().manual_seed(0)
        samples: Any = [{"input_ids": row, "labels": row} for row in rows]
        return DataLoader(samples, ROWS, shuffle=True, generator=generator, drop_last=True)

    return Side(*corpus.joined_epoch(), *runs(corpus, make))


def after(corpus: Corpus) -> Side:
    """Whole documents, apart."""

    def make(model: Any) -> Any:
        return PackedLoader(corpus.dataset(), transform=lambda batch: batch.hf(model=model))

    return Side(*corpus.packed_epoch(), *runs(corpus, make))


def runs(corpus: Corpus, make_loader: Any) -> list[list[float]]:
    """The losses of a run, and of one that resumes."""
    return [losses(corpus, make_loader, resume=resume) for resume in (False, True)]


def sides(corpus: Corpus) -> dict[str, Side]:
    """Return both sides."""
    return {"joined rows": before(corpus), "streampack": after(corpus)}
