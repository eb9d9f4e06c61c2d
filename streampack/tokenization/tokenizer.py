"""Encoding of blocks of texts to blocks of token ids.

The tokenizers library encodes text by text, because it takes 50 to 400 bytes of memory per encoded
byte of a call and is not faster for several texts. Ids go into one flat array, uint16 if the
vocabulary allows. No Python code runs per token: converting each list of ids to `array("I")` is
twice as fast as "H" and three times as fast as numpy.
"""

from __future__ import annotations

import hashlib
import logging
import os
from array import array
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import numpy as np
from numpy.typing import NDArray
from tokenizers import Encoding, processors
from tokenizers import Tokenizer as Engine

from streampack.arguments import explained, one_of, type_in_words
from streampack.documents.blocks import Documents, Texts, offsets_of
from streampack.errors import ConfigError, ContentError
from streampack.extras import pip_command
from streampack.notices import is_first
from streampack.per_process import PerProcess
from streampack.sources.error_policy import ErrorPolicy
from streampack.stages.token_rules import (
    EosRule,
    SpecialInText,
    check_rule,
    check_special_rule,
    checked_id,
)
from streampack.tokenization.ends import apply_bos, apply_eos, missing_id
from streampack.tokenization.fast import EngineName, FastEngine, Flat, fast_engine
from streampack.tokenization.vocabulary import open_vocabulary

if TYPE_CHECKING:
    from streampack.tokenization.spans import Span

logger = logging.getLogger(__name__)

#: Function from a document's origin, a record of dtype `ORIGIN`, to its name.
NameOf = Callable[[np.void], str]

_THREADS = "TOKENIZERS_PARALLELISM"


def _numbered(origin: np.void) -> str:
    return f"document {int(origin['index'])} of shard {int(origin['shard'])}"


def load_tokenizer(tokenizer: Any, **settings: Any) -> Tokenizer:
    """Make a `Tokenizer` from a path or a tokenizer object, without downloading anything.

    Args:
        tokenizer: path of a tokenizer.json or of its folder, a `tokenizers.Tokenizer`, a fast
            tokenizer of transformers, a `tiktoken.Encoding`, or a `Tokenizer` (returned unchanged,
            without settings).
        settings: keyword arguments of `Tokenizer`.

    Raises:
        ConfigError: the path does not exist, the object is of another type, or a rule needs an id
            that the tokenizer does not declare.
    """
    if isinstance(tokenizer, Tokenizer):
        if not settings:
            return tokenizer
        raise ConfigError(
            f"A streampack.Tokenizer takes no further settings, got {', '.join(sorted(settings))}.",
            "Pass them to the constructor of streampack.Tokenizer.",
            setting="tokenizer",
        )
    return Tokenizer(tokenizer, **settings)


@explained
class Tokenizer:
    """Encoder of blocks of texts to blocks of token ids. Picklable; uses a copy of the tokenizer.

    Truncation and padding configured in the tokenizer are turned off, because they would drop or
    add tokens silently.

    Args:
        tokenizer: see `load_tokenizer`.
        eos: "ensure" adds the end-of-document id to texts that do not end with it, "append" always
            adds it, "as-is" never does. Empty texts stay empty.
        eos_id: end-of-document id. None uses the one that the tokenizer declares.
        bos: True prepends `bos_id` to texts that do not begin with it. None follows the tokenizer,
            which may prepend several ids ("[gMASK] <sop>").
        bos_id: beginning-of-text id. None uses the one that the tokenizer declares, if any.
        pad_id: padding id. None uses the one that the tokenizer declares, if any.
        model_vocab_size: number of rows of the model's embedding, if larger than the vocabulary, to
            allow EOS, BOS and padding ids up to it.
        engine: library that encodes: "tokenizers", "gigatoken" (the same ids many times faster),
            or "auto", which uses gigatoken if it is installed and supports the tokenizer. Its ids
            are compared with tokenizers' before the first use and on one text in 4,001. Either
            uses one thread of a process; use workers for more.
        special_tokens_in_text: see `TokenRules`.

    Attributes:
        vocab_size: one more than the largest id that can occur in a document.
        dtype: dtype of ids: uint16 if `vocab_size` is at most 65,536, else uint32.
        fingerprint: 64-bit hash, in hexadecimal, of the tokenizer and these rules.
        splits_special_tokens: texts of special tokens are split like ordinary text.
        chat_template: Jinja template of the tokenizer, or None.
        tool_template: its template "tool_use", for conversations with tools, or None.

    Raises:
        ConfigError: see `load_tokenizer`.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        eos: EosRule = "ensure",
        eos_id: int | None = None,
        bos: bool | None = None,
        bos_id: int | None = None,
        pad_id: int | None = None,
        model_vocab_size: int | None = None,
        special_tokens_in_text: SpecialInText | None = None,
        engine: EngineName = "auto",
    ) -> None:
        if str(engine) == "kitoken":
            raise ConfigError(
                'engine="kitoken" does not exist any more: gigatoken gives the same ids, faster.',
                f'Pass engine="auto", and run `{pip_command("fast")}`.',
                setting="engine",
            )
        one_of("engine", engine, get_args(EngineName))
        vocabulary = open_vocabulary(tokenizer)
        if special_tokens_in_text is not None:
            check_special_rule(special_tokens_in_text)
            vocabulary.engine.encode_special_tokens = special_tokens_in_text == "split"
        check_rule(eos)
        self.eos: EosRule = eos
        size = max(vocabulary.largest_id + 1, model_vocab_size or 0)
        self.eos_id = checked_id("eos_id", vocabulary.eos_id if eos_id is None else eos_id, size)
        self.bos_id = checked_id("bos_id", vocabulary.bos_id if bos_id is None else bos_id, size)
        self.pad_id = checked_id("pad_id", vocabulary.pad_id if pad_id is None else pad_id, size)
        self.bos = bool(vocabulary.before) if bos is None else bos
        follows = bos_id is None and (bos is None or self.bos_id is None)
        before: tuple[int | None, ...] = vocabulary.before if follows else ()
        wanted = (before or (self.bos_id,)) if self.bos else ()
        self.bos_ids = tuple(token for token in wanted if token is not None)
        if eos != "as-is" and self.eos_id is None:
            raise (
                _several_ends(vocabulary.likely_eos)
                if vocabulary.likely_eos
                else missing_id("eos", f'eos="{eos}"', 'use eos="as-is"')
            )
        if eos != "as-is" and eos_id is None and vocabulary.likely_eos:
            (name,) = vocabulary.likely_eos
            logger.warning(
                "The tokenizer does not declare an EOS token: %s (id %d) is used, the only special "
                "token with a usual name. Pass TokenRules(eos_id=%d) (--eos-id) to silence this "
                "warning.",
                name,
                self.eos_id,
                self.eos_id,
            )
        if self.bos and not self.bos_ids:
            raise missing_id("bos", "bos=True", "use bos=False")
        after = vocabulary.after
        ends = [i for i in (self.eos_id, self.bos_id) if i is not None]
        self.vocab_size = max([vocabulary.largest_id, *ends, *self.bos_ids]) + 1
        self.dtype = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        self._left_out = () if eos != "as-is" and after == (self.eos_id,) else after
        self._engine = vocabulary.engine
        self.engine: EngineName = engine
        source = self._engine.to_str()
        self._fast: FastEngine | None = fast_engine(self._engine, engine, source)
        self.splits_special_tokens = vocabulary.engine.encode_special_tokens
        self.fingerprint = self._digest(source)
        self.chat_template = vocabulary.chat_template
        self.tool_template = vocabulary.tool_template
        # Special tokens are never added by the engine. The post-processor would only trim white
        # space from the tokens' offsets, and `encode_spans` needs untrimmed ones.
        self._engine.post_processor = processors.ByteLevel(trim_offsets=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_engine": self._engine.to_str(), "_fast": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._engine = Engine.from_str(state["_engine"])
        self._engine.encode_special_tokens = self.splits_special_tokens
        self._fast = fast_engine(self._engine, self.engine, state["_engine"])

    def _digest(self, source: str) -> str:
        rules = (self.eos, self.eos_id, self.bos, self.bos_id, self.splits_special_tokens)
        digest = hashlib.blake2b(source.encode(), digest_size=8)
        digest.update(repr(rules).encode())
        if self.bos and self.bos_ids != (self.bos_id,):
            digest.update(repr(self.bos_ids).encode())
        return digest.hexdigest()

    def encode(self, texts: Texts, skips: ErrorPolicy, name: NameOf = _numbered) -> Documents:
        """Encode a block in order, without the texts that cannot be encoded.

        Args:
            texts: N texts; an empty one becomes an empty document.
            skips: gets a `ContentError` for each text that is not a string, has lone surrogates, or
                is refused by the tokenizer; the rest of the block is encoded.
            name: function from a text's origin to its name, for errors.
        """
        self._warn_left_out()
        flat = self._by_fast_engine(texts.texts)
        if flat is not None:
            ids, counts = flat
            ids = ids.astype(self.dtype, copy=False)
            documents = Documents(ids, offsets_of(counts), texts.origin)
        else:
            kept: list[int] = []
            arrays: list[array[int]] = []
            for i in range(len(texts.texts)):
                if (encoding := self._encoding(texts, i, skips, name)) is not None:
                    kept.append(i)
                    arrays.append(array("I", encoding.ids))
            documents = self._documents(texts.origin[kept], arrays)
        if self.bos:
            documents = apply_bos(documents, self.bos_ids)
        return apply_eos(documents, self.eos, self.eos_id)

    def encode_spans(
        self,
        texts: Texts,
        spans: Sequence[Sequence[Span]],
        skips: ErrorPolicy,
        name: NameOf = _numbered,
    ) -> tuple[Documents, NDArray[np.int64]]:
        """Encode a block to token ids with a loss mask, without BOS and EOS.

        Args:
            texts: N texts.
            spans: (start, stop) characters of each text that carry loss. A token carries loss if
                any of its characters does.
            skips: as in `encode`.
            name: as in `encode`.

        Returns:
            The M documents, and the indices (M,) of their texts; skipped texts are missing.
        """
        from streampack.tokenization.spans import mask_of

        flat = self._by_fast_engine(texts.texts)
        pieces = None if flat is None else np.split(flat[0], flat[1].cumsum())
        kept, masks = [], [np.zeros(0, dtype=np.bool_)]
        arrays: list[array[int] | NDArray[np.uint32]] = []
        for i, text in enumerate(texts.texts):
            mask = None
            if self._fast and pieces is not None:
                mask = self._fast.mask(text, pieces[i], spans[i])
            if mask is not None and pieces is not None:
                arrays.append(pieces[i])
            else:  # the fast engine cannot derive offsets
                encoding = self._encoding(texts, i, skips, name, places=True)
                if encoding is None:
                    continue
                arrays.append(array("I", encoding.ids))
                mask = mask_of(encoding, spans[i], len(text))
            kept.append(i)
            masks.append(mask)
        documents = self._documents(texts.origin[kept], arrays)
        return replace(documents, loss_mask=np.concatenate(masks)), np.array(kept, dtype=np.int64)

    @property
    def special_tokens(self) -> list[str]:
        """Texts that become special tokens."""
        added = self._engine.get_added_tokens_decoder().values()
        return [token.content for token in added if token.special]

    def knows(self, text: str) -> bool:
        """Return True if the text is one token."""
        return self._engine.token_to_id(text) is not None

    def token(self, token_id: int | None) -> str | None:
        """Return the text of an id, or None."""
        return None if token_id is None else self._engine.id_to_token(token_id)

    def decode(self, ids: NDArray[np.integer[Any]]) -> str:
        """Return the text of ids (N,), special tokens included.

        Incomplete characters, as at the cut of a document, become "\ufffd".
        """
        return str(self._engine.decode(ids.tolist(), skip_special_tokens=False))

    def _by_fast_engine(self, texts: Sequence[str]) -> Flat | None:
        """Encode with the fast engine; return None without one, or if a text is not valid."""
        if self._fast is None:
            return None
        try:
            ids = self._fast.encode(texts)
        except (TypeError, UnicodeEncodeError):
            return None
        if ids is None:
            self._fast = None
        return ids

    def _warn_left_out(self) -> None:
        """Warn once if the tokenizer itself puts ids after a text that the EOS rule does not."""
        after, self._left_out = self._left_out, ()
        if after and is_first(f"left out {after}"):
            logger.warning(
                'The tokenizer itself puts %s after a text, and eos="%s" puts %s.',
                " ".join(f"{self.token(token)} (id {token})" for token in after),
                self.eos,
                "nothing" if self.eos == "as-is" else f"{self.token(self.eos_id)} there",
            )

    def _documents(self, origin: NDArray[np.void], encoded: Sequence[Any]) -> Documents:
        ids = np.frombuffer(b"".join(encoded), dtype=np.uint32).astype(self.dtype, copy=False)
        return Documents(ids, offsets_of(np.array([*map(len, encoded)], dtype=np.int64)), origin)

    def _encoding(
        self, texts: Texts, i: int, skips: ErrorPolicy, name: NameOf, places: bool = False
    ) -> Encoding | None:
        """Encode a text with tokenizers, with offsets if `places`; None if it is skipped."""
        text = texts.texts[i]
        encode = self._engine.encode_batch if places else self._engine.encode_batch_fast
        _use_one_thread()
        try:
            if not isinstance(text, str):
                raise TypeError  # the library would accept a pair of texts and join it
            (encoding,) = encode([text], add_special_tokens=False)
        except Exception as error:  # the library raises plain Exception
            origin = texts.origin[i]
            document = name(origin)
            skips.handle(
                ContentError(
                    f"{document[0].upper()}{document[1:]} cannot be tokenized: "
                    f"{_complaint(text, error)}.",
                    'Repair it, or use on_error="skip" to leave such documents out.',
                    shard=int(origin["shard"]),
                    index=int(origin["index"]),
                    document=document,
                )
            )
            return None
        return encoding


def _use_one_thread() -> None:
    """Turn off the threads of tokenizers, which a single text does not use and a fork loses.

    A user's setting is kept, except in a forked process, where the threads do not exist.
    """
    _threads()


def _lose_threads(setting: str) -> None:
    os.environ[_THREADS] = "false"


_threads = PerProcess(lambda: os.environ.setdefault(_THREADS, "false"), leave=_lose_threads)


def _several_ends(names: Mapping[str, int]) -> ConfigError:
    listed = ", ".join(f'"{name}" (id {number})' for name, number in names.items())
    return ConfigError(
        f"The tokenizer must declare one EOS token, but it may be any of {listed}.",
        "Pass TokenRules(eos_id=...) (--eos-id), or put the tokenizer_config.json of the model "
        "beside the tokenizer.json.",
        setting="eos_id",
    )


def _complaint(text: object, error: Exception) -> str:
    if not isinstance(text, str):
        return f"it is {type_in_words(text)}, not a string"
    try:
        text.encode()
    except UnicodeEncodeError as surrogate:
        return f"character {surrogate.start} is a lone surrogate, which UTF-8 cannot express"
    return str(error)
