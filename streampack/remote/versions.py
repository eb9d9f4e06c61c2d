"""Versions of remote files, by the fields that each store gives."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from streampack.errors import StorageError
from streampack.file_info import FileInfo, replaced, shown

#: Fields that differ between versions of a file, by file system; the most reliable first.
_FIELDS = (
    "ETag", "generation", "etag", "Last-Modified", "LastModified", "updated", "mtime", "created",
)  # fmt: skip
_AND_TIME = "; Last-Modified "


def info_from(url: str, info: dict[str, Any]) -> FileInfo:
    """Convert the answer of an fsspec file system; raise `StorageError` without a size."""
    if info.get("type") == "directory":
        raise StorageError(
            f"{shown(url)} is a directory.",
            "Name a file in it, or pass the directory as the source's path.",
            path=shown(url),
        )
    size = info.get("size")
    if not isinstance(size, int) or not 0 <= size < 1 << 63:
        raise StorageError(
            f"The server does not declare the size of {shown(url)}: it sends no "
            "Content-Length, or compresses the file.",
            "Let it send Content-Length and no Content-Encoding, or copy the file.",
            path=shown(url),
        )
    return FileInfo(url, size, version_of(info))


def version_of(info: dict[str, Any]) -> str:
    """Return the fields that differ between versions of a file, with their names, as text.

    The result is "" if the store has no such field. Weak ETags (``W/``) are left out, as they need
    not depend on the bytes. An HTTP server's ETag comes with its time: see `is_another_version`.
    """
    if "blob_id" in info:  # for the Hub, which sends one of these as ETag
        info = {"ETag": (info.get("lfs") or {}).get("sha256") or info["blob_id"]}
    for name in _FIELDS:
        field = info.get(name) or ""
        if isinstance(field, datetime):  # listings and look-ups may differ in the type of times,
            field = field.timestamp()
        value = str(field).strip('"')  # and in quotes
        if value and not value.startswith("W/"):
            time = info.get("Last-Modified") if name == "ETag" else None
            return f"{name} {value}" + (f"{_AND_TIME}{time}" if time else "")
    return ""


def is_another_version(version: str, other: str) -> bool | None:
    """Return True if two versions differ, and None if they have no field in common.

    One equal field makes versions equal: behind some proxies a file has another ETag in every
    answer, or another time on every server.
    """
    fields, others = _fields(version), _fields(other)
    common = fields.keys() & others.keys()
    return all(fields[name] != others[name] for name in common) if common else None


def _fields(version: str) -> dict[str, str]:
    first, _, time = version.partition(_AND_TIME)
    name, _, value = first.partition(" ")
    return {name: value, "Last-Modified": time} if time else {name: value}


def is_of_store(version: str) -> bool:
    """Return True for a version that a store gave."""
    return bool(version) and not version.startswith("start ")


def require_version(listed: FileInfo, version: str) -> bool:
    """Raise `StateError` if a file has another version than it had when it was listed.

    Return False if the two have no field in common.
    """
    is_another = is_another_version(version, listed.version)
    if is_another:
        raise replaced(listed.path, listed.version, version)
    return is_another is not None
