"""What happens to the blocks of a source before the window: tokenized, checked, passed to hooks.

Groups in a stream: the documents of a record become one document of the window.

What the window, packers and states see is a group's length; `split_groups` gives its documents back
when rows are gathered. A group is what is left of its record: a document that is empty, or that a
filter refuses, is missing in it.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.documents.blocks import Documents, Texts, joined_groups
from streampack.documents.conversations import Conversations
from streampack.documents.fields import FieldTypes
from streampack.errors import ConfigError
from streampack.sources.base import Block, Source
from streampack.sources.skips import Skips
from streampack.streams.hooks import Hook, apply_filter, apply_map, document_seeds
from streampack.tokenization import ChatTokenizer, EosRule, Tokenizer, apply_eos


def apart(documents: Documents) -> Documents:
    """The documents that the groups of a block consist of; a block without groups as it is."""
    members = documents.members
    if members is None:
        return documents
    return members.documents[int(members.offsets[0]) : int(members.offsets[-1])]


def together(documents: Documents) -> Documents:
    """The block in which documents side by side that have one origin are a group."""
    if not len(documents):
        return documents
    shard, index = (documents.origin[name] for name in ("shard", "index"))
    begins = np.flatnonzero((shard[1:] != shard[:-1]) | (index[1:] != index[:-1])) + 1
    return joined_groups(documents, np.concatenate([[0], begins, [len(documents)]]))


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Preparation:
    """What happens to a block between the source and the window.

    Attributes:
        tokenizers: for every source of a mixture, or the only one: of texts or conversations;
            None for those that are tokenized.
        eos: rule for documents that are tokenized already.
        eos_id: the id it adds.
        vocab_size: ids must be below it; None checks only that none is negative.
        filter, map: the user's hooks; the filter sees documents first.
        fields: what travels with tokens and documents.
        grouped: the documents of a record are a group.
        tree: groups are trees.
        media: `MediaProcessing` of runs with images.
    """

    tokenizers: tuple[Tokenizer | ChatTokenizer | None, ...] = (None,)
    eos: EosRule = "as-is"
    eos_id: int | None = None
    vocab_size: int | None = None
    filter: Hook | None = None
    map: Hook | None = None
    fields: FieldTypes = field(default_factory=FieldTypes)
    grouped: bool = False
    tree: bool = False
    media: Any = None

    @property
    def any_tokenizer(self) -> Any:
        """That of the first source that has one; None if all are tokenized."""
        found = next((own for own in self.tokenizers if own is not None), None)
        return getattr(found, "tokenizer", found)


class BlockPreparer:
    """Prepares the blocks of one source in one lane.

    Args:
        preparation: of the run.
        source: names the documents.
        number: of the source in a mixture; documents carry it in their origin.
        seed: of the run.
        skips: what to do with broken content.
    """

    def __init__(
        self, preparation: Preparation, source: Source, number: int, seed: int, skips: Skips
    ) -> None:
        self._preparation = preparation
        self._source = source
        self._number = number
        self._seed = seed
        self._skips = skips

    def prepare(self, block: Block, epoch: int) -> Documents:
        """Tokenize, check, drop empty documents, filter and map."""
        preparation = self._preparation
        if isinstance(block, Documents):
            block = apart(block)
        if self._number and len(block):  # before hooks, whose seeds depend on it
            origin = block.origin.copy()
            origin["source"] = self._number
            block = replace(block, origin=origin)
        if isinstance(block, Conversations):
            self._check_sides(block)
        tokenized = isinstance(block, Documents)
        if isinstance(block, Documents):
            documents = self._checked(block)
        else:
            documents = _with_fields_of(block, self._encoded(block))
        documents = self._without_empty(documents)
        if preparation.media is not None:
            documents = preparation.media.expanded(documents, self._source, self._skips)
        if tokenized:
            documents = apply_eos(documents, preparation.eos, preparation.eos_id)
        if len(documents) and preparation.filter is not None:
            seeds = document_seeds(self._seed, epoch, documents.origin)
            documents = apply_filter(preparation.filter, documents, seeds, self._name)
        if len(documents) and preparation.map is not None:
            seeds = document_seeds(self._seed, epoch, documents.origin)
            documents = apply_map(
                preparation.map, documents, seeds, preparation.vocab_size, self._name
            )
            documents = self._without_empty(documents)
        if preparation.fields or documents.token_fields or documents.document_fields:
            documents = self._fielded(documents)
        if documents.tokens.dtype == np.int32:  # checked: no id is negative
            documents = replace(documents, tokens=documents.tokens.view(np.uint32))
        if preparation.grouped:
            documents = together(documents)
        if preparation.tree and len(documents):
            from streampack.trees.build import planted

            documents = planted(documents)
        return documents

    def _check_sides(self, block: Conversations) -> None:
        """Raise `ConfigError` for pairs of which nothing would tell the rejected side."""
        if "chosen" in self._preparation.fields.document:
            return
        pair = next((i for i, c in enumerate(block.conversations) if c.rejected is not None), None)
        if pair is not None:
            name = self._name(block.origin[pair])
            raise ConfigError(
                f"{name[0].upper()}{name[1:]} has a chosen and a rejected answer, and no "
                'field "chosen" is declared.',
                'Pass document_fields={"chosen": "bool"}, and for chosen answers alone a filter= '
                'that returns documents.document_fields["chosen"].',
                setting="document_fields",
                document=name,
            )

    def _name(self, origin: np.void) -> str:
        of = f' of source "{self._skips.name}"' if self._skips.name else ""
        return self._source.document_name(origin) + of

    def _encoded(self, block: Texts | Conversations) -> Documents:
        tokenizer = self._preparation.tokenizers[self._number]
        if isinstance(block, Texts) and isinstance(tokenizer, Tokenizer):
            texts = self._source.short_texts(block, self._skips)
            if self._preparation.media is not None:
                texts = self._preparation.media.texts(texts)
            documents = tokenizer.encode(texts, self._skips)
            self._count_eos(documents, tokenizer)
            return documents
        if isinstance(block, Conversations) and isinstance(tokenizer, ChatTokenizer):
            return tokenizer.encode(block, self._skips)
        raise ConfigError(
            f"{type(self._source).__name__} yields texts, and there is no tokenizer.",
            "Pass tokenizer= (a path to tokenizer.json, or a tokenizers or transformers "
            "tokenizer).",
            setting="tokenizer",
        )

    def _count_eos(self, documents: Documents, tokenizer: Tokenizer) -> None:
        """Count ends of documents inside texts, and say the first one."""
        if tokenizer.eos_id is None or tokenizer.splits_special_tokens:
            return
        found = np.flatnonzero(documents.tokens == tokenizer.eos_id)
        inside = found[~np.isin(found + 1, documents.offsets)]
        if len(inside) == 0:
            return
        if self._skips.counts.eos_in_texts == 0:
            i = int(np.searchsorted(documents.offsets, inside[0], side="right")) - 1
            logger.warning(
                "%s writes %s, which becomes the end of a document inside it (metrics: "
                'eos_in_texts counts them). TokenRules(special_tokens_in_text="split") makes '
                "ordinary text of special tokens in texts.",
                self._name(documents.origin[i]),
                tokenizer.token(tokenizer.eos_id),
            )
        self._skips.counts.eos_in_texts += len(inside)

    def _fielded(self, documents: Documents) -> Documents:
        """The documents with the fields of the run; `skips` gets those whose values do not fit."""
        documents, problems = self._preparation.fields.cast(documents)
        if not problems:
            return documents
        broken: dict[tuple[int, int], str] = {}  # all documents of a record are skipped together
        for i, problem in problems.items():
            origin = documents.origin[i]
            broken.setdefault((int(origin["shard"]), int(origin["index"])), problem)
        for (shard, index), problem in broken.items():
            self._skips.handle(self._source.broken_document(shard, index, problem))
        return _without_records(documents, [*problems])

    def _without_empty(self, documents: Documents) -> Documents:
        """The documents that are not empty."""
        lengths = documents.lengths
        if len(lengths) == 0 or lengths.min() > 0:
            return documents
        kept = documents.take(np.flatnonzero(lengths > 0))
        self._skips.counts.empty_documents += len(documents) - len(kept)
        return kept

    def _checked(self, documents: Documents) -> Documents:
        """The documents whose ids are all in the vocabulary; `skips` gets the others."""
        preparation = self._preparation
        low, high = int(documents.offsets[0]), int(documents.offsets[-1])
        if low == high:
            return documents
        tokens: NDArray[Any] = documents.tokens[low:high]
        highest = int(np.iinfo(tokens.dtype).max)
        limit = highest + 1 if preparation.vocab_size is None else preparation.vocab_size
        # What the dtype excludes is not looked for: a look at every token is a pass over memory.
        if (limit > highest or int(tokens.max()) < limit) and (
            tokens.dtype.kind == "u" or int(tokens.min()) >= 0
        ):
            return documents
        bad = (tokens < 0) | (tokens >= limit)
        where = np.searchsorted(documents.offsets, np.flatnonzero(bad) + low, side="right") - 1
        wrong = np.unique(where)
        reported: list[Any] = []
        for i in wrong.tolist():
            ids: NDArray[Any] = documents.document(i)
            origin = documents.origin[i]
            if origin.item() in reported[-1:]:
                continue  # of one record
            reported.append(origin.item())
            outside = int(ids[(ids < 0) | (ids >= limit)][0])
            what = f"and the vocabulary has {limit}" if outside >= 0 else "which is negative"
            self._skips.handle(
                self._source.broken_document(
                    int(origin["shard"]),
                    int(origin["index"]),
                    f"holds the token id {outside}, {what}",
                )
            )
        return _without_records(documents, wrong)


def _without_records(documents: Documents, wrong: Any) -> Documents:
    """The documents without those (K,), and without what else their records hold."""
    lost = np.isin(documents.origin, documents.origin[wrong])
    return documents.take(np.flatnonzero(~lost))


def _with_fields_of(block: Block, documents: Documents) -> Documents:
    """Documents with the fields of the texts that they were encoded from; some may be left out."""
    if not isinstance(block, Texts) or not block.document_fields:
        return documents
    kept = np.isin(block.origin["index"], documents.origin["index"])
    fields = {name: values[kept] for name, values in block.document_fields.items()}
    return replace(documents, document_fields=fields)
