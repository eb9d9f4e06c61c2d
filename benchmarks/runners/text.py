"""Raw text to full batches, beside the engines alone and other libraries' own pipelines."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

from benchmarks.corpus_files import ROW_GROUP, jsonl_texts, parquet_texts
from benchmarks.protocol import ROWS, SEQ_LEN, Counts, Timed, WrongOutputError
from benchmarks.runners.streampack import fields_of

__all__ = ["TEXT_RUNNERS"]

TEXT_BYTES = 32 << 20
CALL = 256  # texts per call of an engine alone
ENDS = {"GPT-2": "<|endoftext|>", "DeepSeek V3": "<｜end▁of▁sentence｜>"}


class Text(Timed):
    """About 32 MiB of this machine's Python source, tokenized with a production vocabulary.

    The first pass of a process is timed, with the engine's start and texts that it has not met.
    """

    first = True
    vocabulary: ClassVar[str]
    engine: ClassVar[str] = "auto"
    variables: ClassVar[dict[str, str]] = {"TOKENIZERS_PARALLELISM": "false"}

    def prepare(self) -> None:
        """Gather texts and write the vocabulary."""

        def write(path: Path) -> None:
            from demo.corpus import gather

            texts = gather(max(int(TEXT_BYTES * self.workload.scale), 1 << 16))
            path.write_text("\0".join(texts), encoding="utf-8", newline="")

        def write_vocabulary(path: Path) -> None:
            from benchmarks.vocabularies import VOCABULARIES

            VOCABULARIES[self.vocabulary]().engine.save(str(path))

        file = self.workload.file("texts", write)
        with file.open(encoding="utf-8", newline="") as stream:
            self.texts = stream.read().split("\0")
        self.file = self.workload.file(f"{self.vocabulary}.json", write_vocabulary)

    @property
    def end(self) -> str:
        """The end-of-document token."""
        return ENDS[self.vocabulary]

    def made_tokenizer(self) -> Any:
        """Ours, with the runner's engine, which has encoded nothing."""
        from tokenizers import Tokenizer as Engine

        from streampack.tokenization import Tokenizer

        end = Engine.from_file(str(self.file)).token_to_id(self.end)
        return Tokenizer(self.file, engine=self.engine, bos=False, eos_id=end)

    @cached_property
    def tokenizer(self) -> Any:
        """The one that is timed."""
        return self.made_tokenizer()

    def expected(self) -> Counts:
        """Tokens with an end-of-document id each, from tokenizers."""

        def write(path: Path) -> None:
            from tokenizers import Tokenizer as Engine

            engine, tokens = Engine.from_file(str(self.file)), 0
            end = engine.token_to_id(self.end)
            for text in self.texts:
                ids = engine.encode(text, add_special_tokens=False).ids
                tokens += len(ids) + (ids[-1:] != [end])
            path.write_text(json.dumps(tokens))

        file = self.workload.file(f"{self.vocabulary}-tokens.json", write)
        tokens = json.loads(file.read_text())
        return Counts(tokens, tokens, len(self.texts))

    def check(self) -> Counts:
        """Return the expected counts: it is the reference, or has rows unlike ours."""
        return self.expected()


class EngineAlone(Text):
    """The engine that "auto" takes, alone."""

    label = "gigatoken alone"
    settings = f"calls of {CALL} texts in memory"
    delivers = "one array of ids"

    def prepare(self) -> None:
        """Import the engine, which starts when it is timed."""
        super().prepare()
        self.tokenizer._fast._fast._load()

    def batches(self) -> Iterator[Any]:
        """One call at a time."""
        encode = self.tokenizer._fast._fast.encode
        for first in range(0, len(self.texts), CALL):
            yield encode(self.texts[first : first + CALL])


class TokenizersAlone(Text):
    """The tokenizers library alone; its encodings are thrown away."""

    label = "tokenizers alone"
    settings = "encode_batch_fast of 16 texts in memory, one thread: more are slower"
    delivers = "Encoding objects, ids not taken out"

    def batches(self) -> Iterator[Any]:
        """One call at a time."""
        encode = self.tokenizer._engine.encode_batch_fast
        for first in range(0, len(self.texts), 16):
            yield encode(self.texts[first : first + 16], add_special_tokens=False)


class StreampackText(Text):
    """A text source to full batches."""

    settings = f"defaults, batches of {ROWS} rows; reading, decoding and packing included"
    delivers = "all fields, 28 bytes per slot"
    kind: ClassVar[str] = "JSON lines"
    workers: ClassVar[int] = 0

    def source(self) -> Any:
        """The files."""
        from streampack import sources

        if self.kind == "JSON lines":
            return sources.JSONL(jsonl_texts(self.workload, self.texts), text="text")
        return sources.Parquet(parquet_texts(self.workload, self.texts), text="text")

    def prepare(self) -> None:
        """Import, and compile by passes over some texts; the timed tokenizer stays unused."""
        super().prepare()
        other = self.made_tokenizer()
        for source in (self.texts[:300], self.source()):
            for batch in self.loader(source, tokenizer=other):
                fields_of(batch)
                if source is not self.texts:
                    break
        _ = self.tokenizer

    def loader(self, source: Any = None, **options: Any) -> Any:
        """A fresh loader."""
        from streampack import PackedDataset, PackedLoader, Topology

        given = {"tokenizer": self.tokenizer, "topology": Topology(), **options}
        dataset = PackedDataset(source or self.source(), seq_len=SEQ_LEN, batch_size=ROWS, **given)
        return PackedLoader(dataset, num_workers=self.workers)

    def batches(self) -> Iterator[Any]:
        """Batches with all fields."""
        for batch in self.loader():
            yield fields_of(batch)

    def check(self) -> Counts:
        """Expect as many tokens and documents as the tokenizer alone gives."""
        slots = tokens = 0
        pieces: set[tuple[int, ...]] = set()
        cut: set[tuple[int, ...]] = set()
        for batch in self.loader(provenance=True):
            slots += batch.document_ids.numel()
            tokens += int(np.count_nonzero(batch.document_ids.numpy() >= 0))
            for origin in batch.provenance:
                key = (int(origin["shard"]), int(origin["index"]))
                (cut if key in pieces else pieces).add(key)
        expected = self.expected()
        if (tokens, len(pieces)) != (expected.tokens, expected.documents):
            raise WrongOutputError(
                f"{self.label}: {tokens} tokens of {len(pieces)} documents, the tokenizer gives "
                f"{expected.tokens} of {expected.documents}."
            )
        return Counts(slots, tokens, len(pieces), len(cut))


class TRLText(Text):
    """TRL's SFTTrainer on a dataset of texts before it trains: map, map, pack."""

    label = "TRL, preparation of SFTTrainer"
    environment = "trl"
    settings = "packing=True, bfd_split; load_dataset of the Parquet file"
    delivers = "an Arrow table: 4 bytes per token"

    def prepare(self) -> None:
        """Texts, vocabulary and imports."""
        super().prepare()
        import datasets
        from transformers import PreTrainedTokenizerFast
        from trl import SFTConfig

        datasets.disable_progress_bars()
        datasets.disable_caching()
        self.fast = PreTrainedTokenizerFast(tokenizer_file=str(self.file), eos_token=self.end)
        self.path = str(parquet_texts(self.workload, self.texts))
        self.config = SFTConfig(
            output_dir="none", packing=True, packing_strategy="bfd_split", max_length=SEQ_LEN,
            bf16=False, use_cpu=True,
        )  # fmt: skip

    def batches(self) -> Iterator[Any]:
        """The packed dataset, whole."""
        import datasets
        from trl import SFTTrainer

        trainer = SimpleNamespace(
            _tokenizer=self.fast, chat_template=None, completion_only_loss=False
        )
        with tempfile.TemporaryDirectory() as cache:
            texts = datasets.load_dataset(
                "parquet", data_files=self.path, split="train", cache_dir=cache
            )
            yield SFTTrainer._prepare_dataset(
                trainer, texts, self.fast, self.config, True, None, "train"
            )

    def check(self) -> Counts:
        """Every token once."""
        (packed,) = self.batches()
        expected = self.expected()
        tokens = sum(map(len, packed.with_format("arrow")[:]["input_ids"]))
        if tokens != expected.tokens:
            raise WrongOutputError(f"{self.label}: {tokens} tokens instead of {expected.tokens}.")
        return Counts(len(packed) * SEQ_LEN, tokens, expected.documents)


class NanochatText(Text):
    """nanochat's loader, until its tokenizer has had every text once.

    It crops documents that do not fit, and leaves its buffer unpacked at the end. Needs a
    checkout, which the environment variable NANOCHAT names.
    """

    label = "nanochat, its loader"
    environment = "nanochat"
    settings = "tiktoken with the same ranks, tokenizer_threads=1, batches of 128 texts"
    delivers = "inputs and targets int64, cropped documents; tokens count all that it tokenized"

    def prepare(self) -> None:
        """Texts as its Parquet files, and its tokenizer."""
        super().prepare()
        base = self.workload.file("nanochat", self._write)
        os.environ["NANOCHAT_BASE_DIR"] = str(base)
        sys.path.append(os.environ["NANOCHAT"])
        import tiktoken
        from nanochat.tokenizer import RustBPETokenizer

        from streampack.tokenization.byte_level import GPT2, LETTERS

        byte_of = {letter: byte for byte, letter in enumerate(LETTERS)}
        vocabulary = json.loads(self.file.read_text())["model"]["vocab"]
        vocabulary.pop(self.end, None)
        ranks = {bytes(byte_of[c] for c in token): rank for token, rank in vocabulary.items()}
        encoding = tiktoken.Encoding(
            "own", pat_str=GPT2, mergeable_ranks=ranks, special_tokens={self.end: len(ranks)}
        )
        self.own = RustBPETokenizer(encoding, self.end)

    def _write(self, folder: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        files = folder / "base_data_climbmix"
        files.mkdir(parents=True)
        for number, texts in enumerate((self.texts, self.texts[:1])):  # the last is for validation
            path = files / f"shard_{number:05}.parquet"
            pq.write_table(pa.table({"text": texts}), path, row_group_size=ROW_GROUP)

    def batches(self) -> Iterator[Any]:
        """Batches, until all texts are tokenized."""
        from nanochat.dataloader import tokenizing_distributed_data_loader_bos_bestfit

        left, encode = len(self.texts), self.own.encode

        def counted(texts: list[str], **settings: Any) -> Any:
            nonlocal left
            left -= len(texts)
            return encode(texts, **settings)

        tokenizer = SimpleNamespace(encode=counted, get_bos_token_id=self.own.get_bos_token_id)
        loader = tokenizing_distributed_data_loader_bos_bestfit(
            tokenizer, ROWS, SEQ_LEN, "train", tokenizer_threads=1, device="cpu"
        )
        for batch in loader:
            yield batch
            if left <= 0:
                return


def _runners(vocabulary: str) -> list[type[Text]]:
    """The engines alone, then pipelines."""
    members: list[tuple[type[Text], dict[str, Any]]] = [(EngineAlone, {}), (TokenizersAlone, {})]
    for engine in ("auto", "tokenizers"):
        for kind in ("JSON lines", "Parquet"):
            label = f"streampack, {kind}" + (", engine tokenizers" if engine != "auto" else "")
            members.append((StreampackText, {"label": label, "kind": kind, "engine": engine}))
    for workers, word in ((1, "one worker"), (2, "two workers")):
        label = f"streampack, JSON lines, {word}"
        members.append((StreampackText, {"label": label, "workers": workers}))
    members.append((TRLText, {}))
    if vocabulary == "GPT-2":  # one pattern, as its tokenizers have
        members.append((NanochatText, {}))
    return [
        type(
            f"{base.__name__}{n}", (base,), {"__doc__": base.__doc__, "vocabulary": vocabulary, **m}
        )
        for n, (base, m) in enumerate(members)
    ]


TEXT_RUNNERS = {vocabulary: _runners(vocabulary) for vocabulary in ENDS}
