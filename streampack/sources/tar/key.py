"""What the ending of the wanted files says of how they hold documents."""

from __future__ import annotations

from streampack.errors import ConfigError
from streampack.reading.integer_arrays import integer_kind

_TEXT = ("txt", "text", "md")


def form_of(key: str, dtype: str | None) -> str:
    """How the wanted file is read: "npy", "npz", "text", "json" or "raw"."""
    if dtype is not None:
        integer_kind(dtype)
    last = key.rsplit(".", 1)[-1]
    form = "raw" if dtype is not None else "text" if last in _TEXT else last
    if form not in ("npy", "npz", "text", "json", "raw"):
        raise ConfigError(
            f"key is {key!r}.",
            "It does not say how such files hold documents, and decoders that could run code "
            "(pickle, torch) are not used.",
            "Use files that end in npy, npz, txt or json, or pass dtype for bare arrays of ids.",
        )
    return form


def check_names(form: str, key: str, text: str | None, tokens: str | None) -> None:
    """Raise `ConfigError` unless the names go with the key."""
    if form not in ("json", "npz") and (text is not None or tokens is not None):
        raise ConfigError(
            f"A field is named ({text or tokens!r}), and key is {key!r}.",
            "Only JSON and .npz files have fields.",
            "Leave text= and tokens= out, or use the key of such a file.",
        )
    if form == "npz" and tokens is None:
        raise ConfigError(
            f"key is {key!r}, and tokens is None.",
            "Nothing says which array of the .npz files has the ids.",
            'Pass tokens="input_ids", or whatever its name is.',
        )
