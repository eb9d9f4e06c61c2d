"""Which tokens of a document carry loss: from masks of 0 and 1, or from labels.

Labels are what trainers store: a token's own id where it is learnt, and -100 where not (it is the
model that shifts). A field "labels" holds labels. Any other says which by its values: labels have
others than 0 and 1, unless those are all the ids that a document has. Where there are several, a
token carries loss if all of them say so.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from streampack.reading.records import BrokenDocumentError, require_field

LABELS = "labels"
#: The label of a token without loss, as `torch.nn.CrossEntropyLoss` has it.
IGNORED = -100


def joint_mask(masks: Iterable[NDArray[np.bool_]]) -> NDArray[np.bool_] | None:
    """(T,) True where all masks (T,) are; None if there is none."""
    found = list(masks)
    return np.logical_and.reduce(found) if found[1:] else next(iter(found), None)


def learnt_of(
    record: Mapping[str, Any], names: Iterable[str], ids: NDArray[Any], unread: Iterable[str] = ()
) -> NDArray[np.bool_] | None:
    """(T,) True where all these fields of a record say that its ids (T,) carry loss.

    None without a field; `BrokenDocumentError` where one of them is neither a mask nor labels, or
    where the record has one that is `unread`.
    """
    for name in unread:
        if name in record and record[name] is not None:
            raise BrokenDocumentError(
                f'has "{name}", and the first document has not, so its tokens would be learnt '
                "whatever that says: give it to all of them, or pass loss_mask=[], which reads none"
            )
    return joint_mask(mask_of(_values_in(record, name, len(ids)), ids, name) for name in names)


def _values_in(record: Mapping[str, Any], name: str, count: int) -> NDArray[Any]:
    """(count,) the numbers or booleans in a field."""
    require_field(record, name)
    values = record[name]
    if values is None or isinstance(values, str) or not hasattr(values, "__len__"):
        raise BrokenDocumentError(f'has no list of mask values or labels in "{name}"')
    try:  # `array` takes whole numbers only, and a list in a third of the time
        numbers = array("q", values) if isinstance(values, list) else values
        found = np.asarray(numbers)
    except (TypeError, OverflowError, ValueError, RuntimeError) as error:
        raise BrokenDocumentError(f'has a wrong number in "{name}" ({error})') from None
    if found.shape != (count,):
        many = len(found) if found.ndim == 1 else f"the shape {found.shape} of"
        what = LABELS if name == LABELS else "mask values"
        raise BrokenDocumentError(f"has {count} ids and {many} {what}")
    if count and found.dtype.kind not in "biu":
        raise BrokenDocumentError(f'has {found.dtype} values in "{name}", no whole numbers')
    return found


def mask_of(values: NDArray[Any], ids: NDArray[Any], name: str) -> NDArray[np.bool_]:
    """(T,) True where a token carries loss.

    Args:
        values: (T,) booleans, or whole numbers: 0 and 1, or labels.
        ids: (T,) the document's.
        name: of the field.

    Raises:
        BrokenDocumentError: they are neither.
    """
    reasons: dict[int, str] = {}
    mask = masks_of_rows(values, ids, np.array([0, len(ids)]), name, reasons)
    if reasons:
        raise BrokenDocumentError(reasons[0])
    return mask


def _what_is_wrong(values: NDArray[Any], ids: NDArray[Any], name: str) -> str:
    """Of values (T,) that are neither labels nor, unless they are named so, a mask."""
    place = int(np.flatnonzero((values != IGNORED) & (values != ids))[0])
    rule = f"a label is the token's own id or {IGNORED} (it is the model that shifts)"
    label = f"has the label {values[place]} at token {place}, whose id is {ids[place]}; {rule}"
    if name == LABELS:
        return label
    other = int(np.flatnonzero((values != 0) & (values != 1))[0])
    return (
        f'has the value {values[other]} at token {other} in "{name}", so it is no mask of 0 and 1; '
        f"taken as labels, it {label}"
    )


def masks_of_rows(
    values: NDArray[Any],
    ids: NDArray[Any],
    offsets: NDArray[np.int64],
    name: str,
    reasons: dict[int, str],
) -> NDArray[np.bool_]:
    """`mask_of` of N documents end to end.

    Args:
        values: (T,) as for `mask_of`.
        ids: (T,)
        offsets: (N + 1,) of the documents.
        name: of the field.
        reasons: gets what is wrong with a document, by its number.
    """
    mask: NDArray[np.bool_] = values == 1
    strange = values != mask
    if values.dtype.kind == "b" or (name != LABELS and not strange.any()):
        return mask
    row = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    labelled = np.full(len(offsets) - 1, name == LABELS)
    labelled[row[strange]] = True
    np.copyto(mask, values != IGNORED, where=labelled[row])
    for wrong in np.unique(row[mask & labelled[row] & (values != ids)]).tolist():
        part = slice(offsets[wrong], offsets[wrong + 1])
        reasons.setdefault(wrong, _what_is_wrong(values[part], ids[part], name))
    return mask
