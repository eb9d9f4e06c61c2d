"""TRL's SFTTrainer: its own packing, which plans all rows first, and streampack's.

The change: `TrainerMixin` before `SFTTrainer`, `loader=`, and a dataset of one row, which TRL wants
and does not read.
"""

from __future__ import annotations

from typing import Any

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from examples.clients.common import ROWS, SEQ_LEN, Corpus, Side, tiny_llama
from examples.clients.with_transformers import settings, train
from streampack import PackedLoader
from streampack.trainers import TrainerMixin


class PackedSFTTrainer(TrainerMixin, SFTTrainer):  # type: ignore[misc]
    """SFTTrainer on a `PackedLoader`."""


def before(corpus: Corpus, strategy: str) -> Side:
    """`packing=True`: "bfd" truncates documents to a row, "bfd_split" splits them."""
    texts = Dataset.from_dict({"text": corpus.texts})

    def make() -> Any:
        args = SFTConfig(
            **settings(corpus), packing=True, packing_strategy=strategy, max_length=SEQ_LEN,
            per_device_train_batch_size=ROWS,
        )  # fmt: skip
        return SFTTrainer(
            tiny_llama(), args, processing_class=corpus.tokenizer, train_dataset=texts
        )

    batches = list(make().get_train_dataloader())
    tokens = sum(batch["input_ids"].numel() for batch in batches)  # rows are joined without padding
    pieces = sum(int((batch["position_ids"] == 0).sum()) for batch in batches)
    needed = sum(-(-len(ids) // SEQ_LEN) for ids in corpus.documents)
    cut = max(0, pieces - needed)
    return Side(corpus.tokens, len(batches), tokens, tokens, cut, *train(make, corpus))


def after(corpus: Corpus) -> Side:
    """A `PackedLoader`."""

    def make() -> Any:
        return PackedSFTTrainer(
            model=tiny_llama(),
            args=SFTConfig(**settings(corpus), dataset_kwargs={"skip_prepare_dataset": True}),
            processing_class=corpus.tokenizer,
            train_dataset=Dataset.from_dict({"input_ids": [[0]]}),
            loader=PackedLoader(corpus.dataset()),
        )

    return Side(*corpus.packed_epoch(), *train(make, corpus))


def sides(corpus: Corpus) -> dict[str, Side]:
    """Its two strategies, and streampack."""
    its_own = {f'packing="{name}"': before(corpus, name) for name in ("bfd", "bfd_split")}
    return {**its_own, "streampack": after(corpus)}
