"""nanochat's base training: its own loader, which crops documents, and streampack's.

docs/migration.md describes the change: the same files, tokenizer and tensors, another loader. The
model and the former loader come from the checkout at the path given (its tokenizer needs
`rustbpe`). Both run in the order of nanochat's own loop, which takes the next batch before the step
and saves with it in hand.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import torch

from examples.clients.common import ROWS, SAVED_AFTER, SEQ_LEN, STEPS, Corpus, Side
from streampack import PackedBatch, PackedDataset, PackedLoader, Tokenizer, sources


def inputs_and_targets(batch: PackedBatch) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tensors for nanochat's loop: shifted, and -1 where there is nothing to learn."""
    targets = batch.labels[:, 1:]
    return batch.input_ids[:, :-1], targets.masked_fill(targets == -100, -1)


class Its:
    """nanochat's own loader, with the state that it saves."""

    def __init__(self, tokenizer: Any, state: Any = None) -> None:
        from nanochat import dataloader

        self.batches = dataloader.tokenizing_distributed_data_loader_with_state_bos_bestfit(
            tokenizer,
            ROWS,
            SEQ_LEN,
            "train",
            device="cpu",
            resume_state_dict=state,
        )
        self.state: Any = None

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        for inputs, targets, state in self.batches:
            self.state = state
            yield inputs, targets

    def state_dict(self, before: Any) -> Any:
        """Return the state of the batch in hand, as nanochat saves it."""
        return self.state


def losses(tokenizer: Any, loader: Any, weights: Any = None) -> tuple[list[float], Any]:
    """Return the losses of the remaining steps, and the state after step `SAVED_AFTER`."""
    from nanochat.gpt import GPT, GPTConfig

    torch.manual_seed(0)
    model = GPT(
        GPTConfig(SEQ_LEN, tokenizer.get_vocab_size(), n_layer=2, n_head=2, n_kv_head=2, n_embd=64,
                  window_pattern="L")
    )  # fmt: skip
    model.init_weights()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)  # without a state of its own
    if weights is not None:
        model.load_state_dict(weights)
    found: list[float] = []
    saved = None
    batches = iter(loader)
    inputs, targets = next(batches)
    for _ in range(STEPS if weights is None else STEPS - SAVED_AFTER):
        if weights is None and len(found) == SAVED_AFTER:  # as there, with the next batch in hand
            copies = {name: value.clone() for name, value in model.state_dict().items()}
            saved = loader.state_dict(before=(inputs, targets)), copies
        loss = model(inputs, targets)
        loss.backward()
        inputs, targets = next(batches)  # before the step, as nanochat's loop
        optimizer.step()
        optimizer.zero_grad()
        found.append(loss.item())
    return found, saved


def epoch_of_its(tokenizer: Any, tokens: int) -> tuple[int, int, int, int]:
    """Return steps, tokens, slots and cut (cropped) documents of an epoch of nanochat's loader.

    It counts the second epoch, from one start of the files to the next: its buffer is full at both.
    """
    loader, steps = Its(tokenizer), 0
    for _ in loader:
        if loader.state["epoch"] > 2:
            break
        steps += loader.state["epoch"] == 2
    slots = steps * ROWS * (SEQ_LEN + 1)
    return steps, min(tokens, slots), slots, 0


def sides(corpus: Corpus, path: str) -> dict[str, Side]:
    """Return both sides."""
    sys.path.insert(0, path)
    os.environ["NANOCHAT_BASE_DIR"] = str(corpus.folder)
    (corpus.folder / "base_data_climbmix").symlink_to(corpus.folder / "texts")
    from nanochat.tokenizer import RustBPETokenizer

    tokenizer = RustBPETokenizer.train_from_iterator(iter(corpus.texts), 2000)
    rules = Tokenizer(tokenizer.enc, bos=True, bos_id=tokenizer.get_bos_token_id(), eos="as-is")

    def packed() -> PackedLoader:
        source = sources.Parquet(corpus.files[:-1], text="text")  # the last is for validation
        dataset = PackedDataset(
            source, seq_len=SEQ_LEN + 1, batch_size=ROWS, tokenizer=rules, attention="row"
        )
        return PackedLoader(dataset, transform=inputs_and_targets)

    loader = packed()
    steps = sum(1 for _ in loader)
    tokens = loader.metrics().tokens

    whole, (state, weights) = losses(tokenizer, Its(tokenizer))
    again, _ = losses(tokenizer, Its(tokenizer, state), weights)
    before = Side(tokens, *epoch_of_its(tokenizer, tokens), whole, again)

    whole, (state, weights) = losses(tokenizer, packed())
    resumed = packed()
    resumed.load_state_dict(state)
    again, _ = losses(tokenizer, resumed, weights)
    after = Side(tokens, steps, tokens, steps * ROWS * (SEQ_LEN + 1), 0, whole, again)
    return {"its own loader": before, "streampack": after}
