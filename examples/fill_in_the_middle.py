"""Fill-in-the-middle and a length filter, as hooks on the way to packed batches.

    python examples/fill_in_the_middle.py

A part of the documents is cut at two random places and rearranged, so that the model sees the text
on both sides of a gap and learns to write the missing part (Bavarian et al., "Efficient Training of
Language Models to Fill in the Middle", 2022). The document

    prefix middle suffix        becomes        <PRE> prefix <SUF> suffix <MID> middle

The cuts come from one seed per document, so a resumed run rearranges every document as before,
whatever block it comes in, and another epoch rearranges it anew.

Runs on a CPU in seconds, on the Python files of this machine's standard library.
"""

from __future__ import annotations

import sysconfig
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer, models, pre_tokenizers

from streampack import Hook, PackedDataset, PackedLoader, Topology
from streampack.documents import Documents
from streampack.packing.rng import derive_seed

SENTINELS = ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>")


@dataclass(frozen=True)
class FillInTheMiddle:
    """Rearranges a share of the documents; a map for `Hook`.

    Attributes:
        prefix_id, suffix_id, middle_id: the sentinels' token ids.
        eos_id: stays at the end of a document that ends in it.
        rate: share of the documents.
    """

    prefix_id: int
    suffix_id: int
    middle_id: int
    eos_id: int
    rate: float = 0.5

    def __call__(self, documents: Documents, seeds: NDArray[np.uint64]) -> Documents:
        """The documents (texts, without loss masks), some rearranged, three tokens longer."""
        arrays: list[NDArray[np.generic]] = []
        for i in range(len(documents)):
            tokens = documents.document(i)
            chance, *cuts = uniform(int(seeds[i]), 3)
            arrays.append(self.rearranged(tokens, cuts) if chance < self.rate else tokens)
        return Documents.from_arrays(arrays, documents.origin)

    def rearranged(self, tokens: NDArray[np.generic], cuts: list[float]) -> NDArray[np.generic]:
        """One document of T tokens, cut at two of its T + 1 places."""
        body = tokens[:-1] if tokens[-1] == self.eos_id else tokens
        first, second = sorted(int(cut * (len(body) + 1)) for cut in cuts)
        parts = [
            [self.prefix_id], body[:first],
            [self.suffix_id], body[second:],
            [self.middle_id], body[first:second],
            tokens[len(body) :],
        ]  # fmt: skip
        return np.concatenate([np.asarray(part, dtype=tokens.dtype) for part in parts])


def uniform(seed: int, count: int) -> list[float]:
    """Numbers in [0, 1) from a document's seed; the same on any machine, with any numpy."""
    return [(derive_seed(seed, k) >> 11) / (1 << 53) for k in range(count)]


def byte_tokenizer() -> Tokenizer:
    """One token per byte and the special ones: stands for the tokenizer of your model."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.add_special_tokens(["<|endoftext|>", *SENTINELS])
    return tokenizer


def long_enough(documents: Documents, seeds: NDArray[np.uint64]) -> NDArray[np.bool_]:
    """(N,) True for documents of 200 tokens or more."""
    return documents.lengths >= 200


def main() -> None:
    """Pack some files, half of them rearranged, and print the result."""
    folder = Path(sysconfig.get_path("stdlib"))
    texts = [path.read_text(errors="replace")[:6000] for path in sorted(folder.glob("*.py"))[:120]]
    tokenizer = byte_tokenizer()
    prefix, suffix, middle, eos = map(tokenizer.token_to_id, (*SENTINELS, "<|endoftext|>"))
    rearrange = FillInTheMiddle(prefix, suffix, middle, eos_id=eos)
    dataset = PackedDataset(
        texts,
        seq_len=8192,
        batch_size=1,
        tokenizer=tokenizer,
        filter=Hook("at least 200 tokens", long_enough),
        map=Hook("fill in the middle, rate 0.5", rearrange),
        topology=Topology(),
    )
    loader = PackedLoader(dataset)
    rearranged = sum(int((batch.input_ids == middle).sum()) for batch in loader)
    composition = loader.metrics().composition
    print(f"{composition.documents} of {len(texts)} documents were long enough")
    print(f"{rearranged} of them were rearranged")
    print(f"{composition.utilisation:.1%} of the rows is filled")


if __name__ == "__main__":
    main()
