"""The columns that files of rows must have."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pyarrow as pa

from streampack.documents.fields import TEXT_REMEDY, FieldSpec
from streampack.errors import ConfigError
from streampack.file_info import shown
from streampack.formats.rows.columns import (
    is_mask_list,
    is_null,
    is_number,
    is_number_list,
    is_text,
    is_token_list,
)
from streampack.sources.fields import ATTENTION_MASK, RecordSchema
from streampack.sources.records import DamagedFileError

#: Problem of a file that its writer has encrypted.
ENCRYPTED = "it is encrypted, and only plain Parquet is read"
DECRYPT = "Write it again without encryption (pyarrow reads it with decryption_properties)"

#: Exceptions from reading a damaged file; UnicodeDecodeError comes from names of columns.
DAMAGE = (pa.ArrowException, OSError, UnicodeDecodeError, DamagedFileError)


def check_schema(
    name: str, schema: pa.Schema, column: str, fields: RecordSchema, of_ids: bool, types: FieldSpec
) -> bool:
    """Check a file's columns; return True if its ids fit into uint16, by their type.

    A column of type null has nulls in all rows: each row is broken, and the file is not.

    Args:
        name: name of the file, for messages.
        schema: schema of the file.
        column: the column with the documents.
        fields: names the columns of loss masks.
        of_ids: True if documents are token ids.
        types: the fields to read beside the documents.

    Raises:
        ConfigError: the file lacks a column, or has it in another type.
    """
    fields.refuse_unread(schema.names, shown(name))
    masks = list(fields.loss_masks)
    if of_ids and ATTENTION_MASK in schema.names:
        masks.append(ATTENTION_MASK)
    of_documents = (is_token_list, "lists of token ids") if of_ids else (is_text, "strings")
    wanted = [(column, *of_documents, "tokens" if of_ids else "text")]
    wanted += [(mask, is_mask_list, "lists of booleans, or 1 and 0", "loss_mask") for mask in masks]
    for field, dtype in types.token.items() if of_ids else ():
        if not types.optional or field in schema.names:
            fits: Callable[..., bool] = partial(is_number_list, shape=dtype.shape)
            each = f"lists of shape {dtype.shape} of " if dtype.shape else ""
            wanted.append((field, fits, f"lists of {each}numbers", "token_fields"))
    for field in types.document:
        if not types.optional or field in schema.names:
            fits, each = (is_text, "strings") if field in types.keys else (is_number, "numbers")
            fits = getattr(types.keys.get(field), "fits", fits)
            wanted.append((field, fits, each, "document_fields"))
    for field, fits, expected, setting in wanted:
        held = schema.field(field).type if schema.get_field_index(field) >= 0 else None
        if held is None or not (fits(held) or is_null(held)):
            columns = ", ".join(f'"{other.name}" ({other.type})' for other in schema)
            more = f"; {TEXT_REMEDY}" if fits is is_number and held and is_text(held) else ""
            if (
                setting == "text"
                and held is not None
                and pa.types.is_struct(getattr(held, "value_type", held))
            ):
                more = "; sources.Chat(path) reads conversations"
            raise ConfigError(
                f'{shown(name)} has {f"{held} in the" if held else "no"} column "{field}", which '
                f"should hold {expected}.",
                f"Name another one of the columns {columns} in {setting}={more}.",
                setting=setting,
                path=shown(name),
            )
    if not of_ids:
        return False
    kind = schema.field(column).type
    return is_null(kind) or kind.value_type in (pa.uint8(), pa.uint16(), pa.null())
