"""gigatoken gives the ids of tokenizers, and where it does not, nobody gets its ids."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import AddedToken, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Engine

from streampack.documents.blocks import Texts, make_origin
from streampack.errors import ConfigError
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import Tokenizer
from streampack.tokenization.byte_level import LETTERS
from streampack.tokenization.fast import FastEngine, fast_engine
from tests.support.vocabularies import LLAMA3, QWEN2, random_texts, trained, trained_pieces

pytest.importorskip("gigatoken")

WHITE = "\t\n\r\x85\xa0\u2000\u2008\u2028\u3000 "

#: Made anew for each test, which may change them.
ENGINES = {
    "gpt2": lambda: trained(None),
    "llama3": lambda: trained(LLAMA3),
    "qwen2": lambda: trained(QWEN2, normalizers.NFC()),
    "pieces": trained_pieces,
}


def block(texts: list[Any]) -> Texts:
    return Texts(texts, make_origin(0, np.arange(len(texts))))


def encoded(
    tokenizer: Tokenizer, texts: list[Any], skips: ErrorPolicy | None = None
) -> list[list[int]]:
    made = tokenizer.encode(block(texts), skips or ErrorPolicy())
    return [made.document(i).tolist() for i in range(len(made))]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("name", "special"), [*((name, "encode") for name in ENGINES), ("qwen2", "split")]
)
def test_random_texts_of_many_scripts_have_the_same_ids(name: str, special: Any) -> None:
    engine = ENGINES[name]()
    fast, slow = (
        Tokenizer(engine, eos="as-is", special_tokens_in_text=special, engine=kind)
        for kind in ("gigatoken", "tokenizers")
    )
    texts = [*random_texts(1, 1500), " " * 400_000, "\x00" * 30_000]
    assert encoded(fast, texts) == encoded(slow, texts)
    assert fast.fingerprint == slow.fingerprint
    assert fast._fast is not None


def test_the_pattern_of_gpt2_is_exact_at_apostrophes_after_white_space() -> None:
    engine = ENGINES["gpt2"]()
    fast = Tokenizer(engine, eos="as-is", engine="gigatoken")
    assert encoded(fast, ["a\n's"]) == [engine.encode("a\n's", add_special_tokens=False).ids]


def test_marks_that_only_newer_versions_of_unicode_know_stay_as_tokenizers_orders_them() -> None:
    engine = ENGINES["qwen2"]()
    texts = ["q\u1dc5\u1df9", "q\u0301\U0001e130\u0316", "e\U0001e130\u0301", "e\u0301"]
    slow = [engine.encode(text, add_special_tokens=False).ids for text in texts]
    assert encoded(Tokenizer(engine, eos="as-is", engine="gigatoken"), texts) == slow


def test_a_vocabulary_that_joins_white_space_to_letters_has_the_same_ids() -> None:
    engine = trained(r"[^x]+|x")
    engine.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast = Tokenizer(engine, eos="as-is", engine="gigatoken")
    texts = random_texts(2, 1000) + Path(json.__file__).read_text().splitlines(keepends=True)
    texts += [f"a{white}{after}" for white in WHITE for after in ("b", "\u8aaa", "(", "'s", "1")]
    assert encoded(fast, texts) == encoded(
        Tokenizer(engine, eos="as-is", engine="tokenizers"), texts
    )


@pytest.mark.parametrize("all_match", [False, True])
def test_tokens_of_characters_that_encode_no_byte_stand_for_no_text(all_match: bool) -> None:
    described = json.loads(trained(LLAMA3).to_str())
    vocabulary, merges = described["model"]["vocab"], described["model"]["merges"]
    first, second, _ = (LETTERS[byte] for byte in "\u2603".encode())
    for text in ("\u2603", "\u2603a", "\u4eba", first + second):
        vocabulary[text] = max(vocabulary.values()) + 1
    merges += [[first, second], ["\u2603", "a"]]
    described["model"]["ignore_merges"] = all_match
    engine = Engine.from_str(json.dumps(described))
    texts = ["plain"] * 20 + [f"document {i} with a \u2603, \u2603a and \u4eba" for i in range(300)]
    tokenizer = Tokenizer(engine, eos="as-is")
    assert encoded(tokenizer, texts) == [engine.encode(text).ids for text in texts]
    assert tokenizer._fast is not None


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ENGINES)
def test_masks_follow_from_lengths_of_tokens(name: str) -> None:
    engine = ENGINES[name]()
    rng = random.Random(3)
    texts = random_texts(4, 2000)
    spans = [
        [sorted(rng.choices(range(len(text) + 1), k=2)) for _ in range(rng.randrange(3))]
        for text in texts
    ]
    made = [
        Tokenizer(engine, eos="as-is", engine=kind).encode_spans(
            block(texts), spans, ErrorPolicy()
        )[0]  # type: ignore[arg-type]
        for kind in ("gigatoken", "tokenizers")
    ]
    assert np.array_equal(made[0].tokens, made[1].tokens)
    assert np.array_equal(made[0].loss_mask, made[1].loss_mask)  # type: ignore[arg-type]


def test_broken_texts_are_skipped_as_before() -> None:
    tokenizer = Tokenizer(ENGINES["gpt2"](), eos="as-is", engine="gigatoken")
    skips = ErrorPolicy("skip")
    assert len(encoded(tokenizer, ["good", "\ud800", None, "also good"], skips)) == 2
    assert skips.counts.skipped == 2


def err(fast: FastEngine, word: str) -> None:
    """Make an engine give other ids for texts that hold a word."""
    right = fast._fast.encode

    def wrong(texts: Sequence[str]) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        ids, counts = right(texts)
        for text, end in zip(texts, counts.cumsum(), strict=True):
            ids[end - 1] += word in text
        return ids, counts

    fast._fast.encode = wrong  # type: ignore[method-assign]


def test_an_engine_that_differs_on_the_first_texts_is_not_used() -> None:
    engine = ENGINES["gpt2"]()
    tokenizer = Tokenizer(engine, eos="as-is", engine="gigatoken")
    assert tokenizer._fast is not None
    err(tokenizer._fast, "wrong")
    texts = ["fine", "a wrong text"]
    assert encoded(tokenizer, texts) == [
        engine.encode(text, add_special_tokens=False).ids for text in texts
    ]


def test_an_engine_that_errs_in_few_texts_after_the_first_ones_is_caught() -> None:
    fast = fast_engine(ENGINES["gpt2"](), "gigatoken")
    assert fast is not None
    assert fast.encode(["first"]) is not None
    err(fast, "text 7")
    texts = [f"text {i}" for i in range(1000, 10_000)]

    def encode_many() -> None:
        for _ in range(20):
            fast.encode(texts)

    with pytest.raises(ConfigError) as caught:
        encode_many()
    assert caught.value.setting == "engine"


def test_kinds_that_are_not_proved_are_left_to_tokenizers() -> None:
    with_space, stripped, pieces = ENGINES["gpt2"](), ENGINES["gpt2"](), Engine(models.Unigram())
    with_space.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    stripped.add_tokens([AddedToken("<keep>", lstrip=True)])
    for engine in (with_space, stripped, pieces):
        assert Tokenizer(engine, eos="as-is")._fast is None
        with pytest.raises(ConfigError):
            Tokenizer(engine, eos="as-is", engine="gigatoken")
    with pytest.raises(ConfigError):
        Tokenizer(with_space, eos="as-is", engine="quick")  # type: ignore[arg-type]


WITHOUT = """
import logging, sys
logging.basicConfig(format="%(message)s")
sys.modules["gigatoken"] = None  # as if it were not installed
import numpy as np
from streampack.documents import Texts, make_origin
from streampack.errors import ConfigError
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import Tokenizer
for _ in range(2):
    tokenizer = Tokenizer(sys.argv[1], eos="as-is")
texts = Texts(["two words"], make_origin(0, np.arange(1)))
print(tokenizer.encode(texts, ErrorPolicy()).tokens.tolist())
try:
    Tokenizer(sys.argv[1], eos="as-is", engine="gigatoken")
except ConfigError as error:
    print(error.setting)
"""


def test_without_gigatoken_tokenizers_encodes_and_one_log_line_reports_it(tmp_path: Path) -> None:
    engine = ENGINES["llama3"]()
    engine.save(str(tmp_path / "tokenizer.json"))
    command = [sys.executable, "-c", WITHOUT, str(tmp_path / "tokenizer.json")]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=600)
    ids = engine.encode("two words", add_special_tokens=False).ids
    assert done.stdout.splitlines() == [str(ids), "engine"]
    assert [line.split(":")[0] for line in done.stderr.splitlines()] == [
        "gigatoken is not installed"
    ]


def test_an_encoding_of_tiktoken_is_taken_with_its_ids() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    vocabulary = json.loads(trained(LLAMA3).to_str())["model"]["vocab"]
    letters = {letter: byte for byte, letter in enumerate(LETTERS)}
    ranks = {bytes(letters[c] for c in text): n for text, n in vocabulary.items() if n}
    ends = {"<|endoftext|>": 9000, "<|other|>": 9001}
    encoding = tiktoken.Encoding("own", pat_str=LLAMA3, mergeable_ranks=ranks, special_tokens=ends)
    tokenizer = Tokenizer(encoding, eos="as-is")
    assert (tokenizer.eos_id, tokenizer.vocab_size) == (9000, 9002)
    texts = [*random_texts(2, 1000), "a<|other|>b"]
    assert encoded(tokenizer, texts) == encoding.encode_batch(texts, allowed_special="all")
    assert tokenizer._fast is not None
    assert tokenizer.decode(np.array(encoding.encode("two words"))) == "two words"


def test_a_possessive_pattern_of_tiktoken_cuts_as_it_does_there() -> None:
    tiktoken = pytest.importorskip("tiktoken")
    pattern = r"\p{N}{1,3}+|[^\s\p{N}]{1,2}+|[^\s\p{N}]?+\p{L}++|\s++$|\s"
    ranks = {bytes([byte]): byte for byte in range(256)} | {b"12": 256, b"34": 257, b"123": 258}
    encoding = tiktoken.Encoding("own", pat_str=pattern, mergeable_ranks=ranks, special_tokens={})
    found = encoded(Tokenizer(encoding, eos="as-is"), ["1234567", "abc 12345  \n\n x"])
    assert found == encoding.encode_batch(["1234567", "abc 12345  \n\n x"])


def test_threads_that_come_and_go_make_and_use_tokenizers_at_once() -> None:
    engine = ENGINES["gpt2"]()
    expected = engine.encode("a text", add_special_tokens=False).ids

    def make(_: int) -> list[list[int]]:
        return encoded(Tokenizer(engine, eos="as-is", engine="gigatoken"), ["a text"] * 20)

    for _ in range(5):
        with ThreadPoolExecutor(5) as pool:
            assert all(found == [expected] * 20 for found in pool.map(make, range(10)))


LIFE = """
import os, pickle, random, sys, threading, time
import numpy as np
from streampack.documents.blocks import Texts, make_origin
from streampack.sources.error_policy import ErrorPolicy
from streampack.tokenization import Tokenizer, fast

def encode(tokenizer, *texts):
    return tokenizer.encode(Texts(texts, make_origin(0, np.arange(len(texts)))), ErrorPolicy())

tokenizer = Tokenizer(sys.argv[1], eos="as-is", engine="gigatoken")
expected = encode(tokenizer, "two words").tokens.tolist()
assert encode(pickle.loads(pickle.dumps(tokenizer)), "two words").tokens.tolist() == expected
child = os.fork()
if child == 0:
    os._exit(encode(tokenizer, "two words").tokens.tolist() != expected)
assert os.waitpid(child, 0)[1] == 0

long, turns, done = "some words of a long text, and the next. " * 200_000, [], threading.Event()

def count():
    while not done.is_set():
        turns.append(encode(tokenizer, "two words").tokens.tolist() == expected)

encode(tokenizer, long[:300_000])
other = threading.Thread(target=count)
other.start()
tokens = encode(tokenizer, long, long).num_tokens
done.set()
other.join()
assert len(turns) > 5 and all(turns) and tokens == 2 * encode(tokenizer, long).num_tokens

fast.MOST_GROWTH, fast.LEAST_RENEWED = 64 << 20, 1 << 20
rng, most = random.Random(1), 0
for _ in range(int(sys.argv[2])):  # megabytes
    words = " ".join(hex(rng.randrange(1 << 44)) for _ in range(77_000))
    encode(tokenizer, words.translate(dict(zip(range(48, 58), "ghijklmnop"))))
    most = max(most, fast._process_bytes())
print(most - tokenizer._fast._fast._size >> 20, "awkward" in sys.modules)
"""


@pytest.mark.slow
@pytest.mark.parametrize("megabytes", [25, 100])
def test_an_engine_lives_in_forks_pickles_and_threads_and_its_memory_is_bounded(
    megabytes: int, tmp_path: Path
) -> None:
    ENGINES["llama3"]().save(str(tmp_path / "tokenizer.json"))
    command = [sys.executable, "-c", LIFE, str(tmp_path / "tokenizer.json"), str(megabytes)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500)
    assert done.returncode == 0, done.stderr
    grown, awkward = done.stdout.split()
    assert int(grown) < 160  # MiB; without renewal 8.7 for a megabyte
    assert awkward == "False"


def test_the_engine_of_before_is_refused_with_the_one_to_choose() -> None:
    with pytest.raises(ConfigError) as caught:
        Tokenizer(ENGINES["gpt2"](), eos="as-is", engine="kitoken")  # type: ignore[arg-type]
    assert caught.value.setting == "engine"
    assert "gigatoken" in str(caught.value)
