"""Parts that the clients share: a corpus, a tokenizer, a tiny Llama, the table of both sides."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from tokenizers import ByteLevelBPETokenizer

from demo.corpus import gather, write_parquet
from streampack import PackedDataset, PackedLoader, TokenRules
from streampack.cached import cached_property

STEPS, SAVED_AFTER = 20, 10
SEQ_LEN, ROWS = 2048, 2
END = "<|endoftext|>"
CORPUS_BYTES = 4 << 20


@dataclass
class Side:
    """One way to feed a trainer.

    Attributes:
        corpus: tokens of the corpus, with an end or a beginning for each document.
        steps: of an epoch.
        tokens: that an epoch trains on.
        slots: that an epoch computes, padding included.
        cut: documents in several pieces that would fit into a row.
        losses: of the steps.
        resumed: of those after the saved one, by a run that resumed there.
    """

    corpus: int
    steps: int
    tokens: int
    slots: int
    cut: int
    losses: Sequence[float]
    resumed: Sequence[float]


class Corpus:
    """This machine's Python sources as documents as long as web pages, in Parquet, a tokenizer.

    Most are shorter than a row, a few are many rows long.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        texts = as_web_pages("".join(gather(CORPUS_BYTES)))
        write_parquet(texts, folder / "texts", files=3)
        tokenizer = ByteLevelBPETokenizer()
        tokenizer.train_from_iterator(texts[:500], 2000, special_tokens=[END], show_progress=False)
        self.tokenizer_file = str(folder / "tokenizer.json")
        tokenizer.save(self.tokenizer_file)

    @property
    def files(self) -> list[str]:
        """The shards, with a column `text`."""
        return [str(path) for path in sorted((self.folder / "texts").glob("*.parquet"))]

    @cached_property
    def texts(self) -> list[str]:
        """All of them."""
        return [text for file in self.files for text in pq.read_table(file)["text"].to_pylist()]

    @cached_property
    def tokenizer(self) -> Any:
        """The tokenizer as a fast tokenizer of transformers."""
        from transformers import PreTrainedTokenizerFast

        return PreTrainedTokenizerFast(
            tokenizer_file=self.tokenizer_file, eos_token=END, pad_token=END
        )

    @cached_property
    def documents(self) -> list[list[int]]:
        """The ids of each, with an end."""
        end = self.tokenizer.eos_token_id
        return [[*ids, end] for ids in self.tokenizer(self.texts)["input_ids"]]

    @property
    def tokens(self) -> int:
        """Tokens of all documents, with their ends."""
        return sum(map(len, self.documents))

    def dataset(self, row: int = SEQ_LEN, **options: Any) -> PackedDataset:
        """Return streampack's dataset of the corpus, with the `options` of a `PackedDataset`."""
        return PackedDataset(
            self.files, seq_len=row, batch_size=ROWS, tokenizer=self.tokenizer_file,
            token_rules=TokenRules(eos_id=0), **options,
        )  # fmt: skip

    def packed_epoch(self, row: int = SEQ_LEN, **options: Any) -> tuple[int, int, int, int, int]:
        """Tokens of the corpus; steps, tokens, slots and cut documents of an epoch of `dataset`."""
        loader = PackedLoader(self.dataset(row, **options))
        steps = pieces = 0
        for batch in loader:
            steps += 1
            pieces += batch.num_documents
        needed = sum(-(-len(ids) // row) for ids in self.documents)
        tokens = loader.metrics().tokens
        return self.tokens, steps, tokens, steps * ROWS * row, pieces - needed

    def joined_epoch(self, row: int = SEQ_LEN) -> tuple[int, int, int, int, int]:
        """The same of an epoch in which documents are joined and cut into rows."""
        ends = np.cumsum([len(ids) for ids in self.documents])
        starts = np.r_[0, ends[:-1]]
        cut = (ends - starts <= row) & (starts // row < (ends - 1) // row)
        steps = self.tokens // row // ROWS
        slots = steps * ROWS * row
        return self.tokens, steps, slots, slots, int(cut.sum())


def as_web_pages(text: str) -> list[str]:
    """The text as documents of lognormal lengths: 1,800 characters at the median, 3,300 on average.

    Those are about the lengths of pages in FineWeb.
    """
    lengths = np.random.default_rng(0).lognormal(np.log(1800), 1.1, len(text) // 1000)
    ends = np.cumsum(1 + lengths.clip(0, 72_000)).astype(int)
    ends = ends[: int(np.searchsorted(ends, len(text)))]
    return [text[start:end] for start, end in pairwise([0, *ends.tolist()])]


def tiny_llama() -> Any:
    """The same random weights every time."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=2000, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
            num_attention_heads=4, max_position_embeddings=SEQ_LEN,
        )
    )  # fmt: skip


def same(losses: Sequence[float], resumed: Sequence[float]) -> bool:
    """True if a resumed run printed the losses of the one that was not stopped."""
    return [f"{loss:.4f}" for loss in losses[SAVED_AFTER:]] == [f"{loss:.4f}" for loss in resumed]


def table(client: str, sides: dict[str, Side]) -> str:
    """Both sides, a line per figure."""

    def line(what: str, *cells: str) -> str:
        return f"{what:42}" + "".join(f"{cell:>24}" for cell in cells)

    found = sides.values()
    return "\n".join(
        [
            line(client, *sides),
            line("steps of an epoch", *(f"{side.steps:,}" for side in found)),
            line("tokens of the corpus", *(f"{side.corpus:,}" for side in found)),
            line(
                "of these never trained on",
                *(f"{1 - side.tokens / side.corpus:.1%}" for side in found),
            ),
            line("documents cut that fit into a row", *(f"{side.cut:,}" for side in found)),
            line(
                "slots that are padding", *(f"{1 - side.tokens / side.slots:.1%}" for side in found)
            ),
            line("loss of step 1", *(f"{side.losses[0]:.4f}" for side in found)),
            line(f"loss of step {STEPS}", *(f"{side.losses[-1]:.4f}" for side in found)),
            line(
                f"stopped after {SAVED_AFTER}, resumed: the same losses",
                *("yes" if same(side.losses, side.resumed) else "no" for side in found),
            ),
        ]
    )


def quiet() -> None:
    """Settings for a run that prints the table alone."""
    os.environ.update(
        TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1", TRANSFORMERS_VERBOSITY="error",
        TQDM_DISABLE="1", HF_DATASETS_DISABLE_PROGRESS_BARS="1",
    )  # fmt: skip
