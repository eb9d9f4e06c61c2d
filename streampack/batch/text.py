"""A batch as text, for a person: documents apart, and what carries loss marked."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.tokenization import Tokenizer, load_tokenizer

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch

_DIM, _GREEN, _END = "\x1b[2m", "\x1b[32m", "\x1b[0m"
_LEGEND = "(« and » enclose what carries loss)"
_CONTROLS = ("Cc", "Zl", "Zp")  # categories of Unicode: control characters, other line breaks
_PRE = '<pre style="white-space:pre-wrap">{}</pre>'


class ShownText(str):
    """Text that a console shows as it is, without quotes, and a notebook as HTML."""

    _html: Callable[[], str]

    def __new__(cls, text: str, html: Callable[[], str]) -> ShownText:
        """`html` makes the other form, if it is asked for."""
        made = super().__new__(cls, text)
        made._html = html
        return made

    def __reduce__(self) -> Any:
        return str, (str(self),)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self._html()


def decoder(tokenizer: Any) -> Callable[[NDArray[np.int64]], str]:
    """What makes text of ids (N,) with a tokenizer; None writes the ids as numbers."""
    if tokenizer is None:
        return lambda ids: " ".join(map(str, ids.tolist()))
    settings = {} if isinstance(tokenizer, Tokenizer) else {"eos": "as-is", "bos": False}
    return load_tokenizer(tokenizer, **settings).decode


def decode(batch: PackedBatch, number: int, tokenizer: Any = None) -> str:
    """The text of a document piece, special tokens included.

    Args:
        number: of the piece, as in `document_ids`.
        tokenizer: whatever `PackedDataset` takes; None writes the ids as numbers.

    Raises:
        ConfigError: there is no such piece, or it is no tokenizer.
    """
    if not 0 <= number < batch.num_documents:
        raise ConfigError(
            f"Piece {number} was asked for, and the batch has {batch.num_documents}.",
            "Pass a number of `document_ids` that is not negative.",
            setting="number",
        )
    return decoder(tokenizer)(batch.input_ids[batch.document_ids == number].cpu().numpy())


def show(
    batch: PackedBatch,
    tokenizer: Any = None,
    *,
    color: bool | None = None,
    pieces: Sequence[Any] = (),
) -> str:
    """The rows as text: a line for every document piece, with what carries loss marked.

    The text that carries loss is between « and », or green where there are colours; the rest
    is dim; a notebook shows the same in HTML. (The first token of a piece has nothing before
    it, so it carries none.) Places of images are named as such. Line breaks are written as \\n,
    other control characters as escapes too, and a character cut by a mark as "\ufffd".

    Args:
        tokenizer: whatever `PackedDataset` takes; None shows ids.
        color: colours for a terminal; None has them if standard output is one.
        pieces: what `PackedDataset.locate` says of the batch: source, shard, document and
            tokens are named in the lines.
    """
    if color is None:
        color = sys.stdout.isatty()
    return _shown(batch, tokenizer, color=color, pieces=pieces)


def _shown(batch: PackedBatch, tokenizer: Any, *, color: bool, pieces: Sequence[Any]) -> ShownText:
    """The text of `show`, and its HTML."""
    fields = (batch.input_ids, batch.document_ids, batch.labels)
    ids, documents, labels = (field.cpu().numpy() for field in fields)
    decode, between = decoder(tokenizer), " " if tokenizer is None else ""
    image = _images(batch).reshape(ids.shape)
    origins = [f", {piece}" for piece in pieces] or [""] * batch.num_documents

    def lines(mark: Callable[[str, bool], str], plain: Callable[[str], str]) -> Iterator[str]:
        """A head for every row, and a line for each piece in it."""
        for row in range(len(ids)):
            yield f"row {row}"
            changes = np.flatnonzero(np.diff(documents[row])) + 1
            for places in np.split(np.arange(ids.shape[1]), changes):
                number = int(documents[row, places[0]])
                if number < 0:
                    yield f"  padding, {len(places)} slots"
                    continue
                learnt = labels[row, places] != -100
                changed = np.diff(learnt) | (np.diff(image[row, places]) != 0)
                runs = np.split(places, np.flatnonzero(changed) + 1)
                text = between.join(
                    mark(
                        _visible(decode(ids[row, run]))
                        if image[row, run[0]] < 0
                        else f"[image, {len(run)} tokens]",
                        bool(labels[row, run[0]] != -100),
                    )
                    for run in runs
                )
                yield f"  document {number}, {len(places)} tokens{plain(origins[number])}: {text}"

    shown = list(lines(_colored if color else _quoted, str))
    return ShownText(
        "\n".join(shown if color else [*shown, _LEGEND]),
        lambda: _PRE.format("\n".join(lines(_html, escape))),
    )


def _images(batch: PackedBatch) -> NDArray[np.int64]:
    """(T,) the number of the image whose place a slot is; -1 of others."""
    out = np.full(batch.rows * batch.seq_len, -1, dtype=np.int64)
    places = getattr(batch, "_places", None)
    for number, (start, stop) in enumerate(() if places is None else places.spans):
        out[start:stop] = number
    return out


def _visible(text: str) -> str:
    """A text whose control characters, line breaks among them, are written as escapes."""
    return "".join(
        repr(char)[1:-1] if unicodedata.category(char) in _CONTROLS else char for char in text
    )


def _quoted(text: str, learnt: bool) -> str:
    return f"«{text}»" if learnt else text


def _colored(text: str, learnt: bool) -> str:
    return f"{_GREEN if learnt else _DIM}{text}{_END}"


def _html(text: str, learnt: bool) -> str:
    style = "color:green" if learnt else "opacity:0.6"
    return f'<span style="{style}">{escape(text)}</span>'
