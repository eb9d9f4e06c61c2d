"""Batches as readable text: one line per document, with loss tokens marked."""

from __future__ import annotations

import sys
import unicodedata
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from streampack.errors import ConfigError
from streampack.forms.image_columns import images_of

if TYPE_CHECKING:
    from streampack.batch.packed_batch import PackedBatch

_DIM, _GREEN, _END = "\x1b[2m", "\x1b[32m", "\x1b[0m"
_LEGEND = "(« and » enclose text that carries loss)"
_CONTROLS = ("Cc", "Zl", "Zp")  # Unicode categories of control characters and line breaks
_PRE = '<pre style="white-space:pre-wrap">{}</pre>'


class ShownText(str):
    """Text that a console shows without quotes, and a notebook as HTML."""

    _html: Callable[[], str]

    def __new__(cls, text: str, html: Callable[[], str]) -> ShownText:
        """Make the text; `html` returns its HTML form and is called on demand."""
        shown = super().__new__(cls, text)
        shown._html = html
        return shown

    def __reduce__(self) -> Any:
        return str, (str(self),)

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return self._html()


def decoder(tokenizer: Any) -> Callable[[NDArray[np.int64]], str]:
    """Return a function from ids, (N,), to text; without a tokenizer it writes the ids."""
    if tokenizer is None:
        return lambda ids: " ".join(map(str, ids.tolist()))
    from streampack.tokenization import Tokenizer, load_tokenizer

    settings = {} if isinstance(tokenizer, Tokenizer) else {"eos": "as-is", "bos": False}
    return load_tokenizer(tokenizer, **settings).decode


def decode(batch: PackedBatch, number: int, tokenizer: Any = None) -> str:
    """Return the text of a document piece, special tokens included.

    Args:
        number: index of the piece, as in `document_ids`.
        tokenizer: any tokenizer that `PackedDataset` takes; None writes the ids as numbers.

    Raises:
        ConfigError: the piece does not exist, or `tokenizer` is not a tokenizer.
    """
    if not 0 <= number < batch.num_documents:
        raise ConfigError(
            f"number must be the index of one of the batch's {batch.num_documents} pieces, got "
            f"{number}.",
            "Pass a value of `document_ids` that is not negative.",
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
    """Return the rows as text, with a line for every document piece and loss tokens marked.

    Text that carries loss is between « and », or green with colours and the rest dim; a notebook
    shows it in HTML. The first token of a piece has no predecessor and so carries no loss. Images
    are named with their number of tokens. Line breaks and other control characters are written as
    escapes, and a character that a mark cuts as "\ufffd".

    Args:
        tokenizer: any tokenizer that `PackedDataset` takes; None shows ids.
        color: use terminal colours; None uses them if standard output is a terminal.
        pieces: the result of `PackedDataset.locate` for the batch, to add source, shard, document
            and tokens to each line.
    """
    if color is None:
        color = sys.stdout.isatty()
    return _shown(batch, tokenizer, color=color, pieces=pieces)


def _shown(batch: PackedBatch, tokenizer: Any, *, color: bool, pieces: Sequence[Any]) -> ShownText:
    """Return the text of `show`, which also has an HTML form."""
    fields = (batch.input_ids, batch.document_ids, batch.labels)
    ids, documents, labels = (field.cpu().numpy() for field in fields)
    decode, between = decoder(tokenizer), " " if tokenizer is None else ""
    image, media = _images(batch).reshape(ids.shape), images_of(batch)
    kinds = () if media is None else media.kinds
    origins = [f", {piece}" for piece in pieces] or [""] * batch.num_documents

    def lines(mark: Callable[[str, bool], str], plain: Callable[[str], str]) -> Iterator[str]:
        """Yield a heading for every row and a line for each of its pieces."""
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
                        else f"[{kinds[image[row, run[0]]]}, {len(run)} tokens]",
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
    """Return the index of each slot's image, (T,); -1 for text and padding."""
    out = np.full(batch.rows * batch.seq_len, -1, dtype=np.int64)
    places = images_of(batch)
    for number, (start, stop) in enumerate(() if places is None else places.spans):
        out[start:stop] = number
    return out


def _visible(text: str) -> str:
    """Replace control characters, line breaks included, by escapes."""
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
