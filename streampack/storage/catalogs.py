"""Sizes and versions of remote files, and names in folders, each asked for in one attempt."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Protocol
from urllib.parse import quote, unquote_plus, urlencode

from streampack.storage.clients import S3Client, WebClient, answered
from streampack.storage.failures import failure_of
from streampack.storage.file_info import split_url
from streampack.storage.remote import Pace, info_of
from streampack.storage.wire import RefusedError

#: Names and fields of files, and None for folders.
Items = Iterator[tuple[str, "dict[str, Any] | None"]]

#: Answers to HEAD of servers that answer GET.
_ASK_BY_GET = (400, 401, 403, 405, 500, 501)


class Catalog(Protocol):
    """Names in the stores of one protocol. Fields of files are named as by fsspec."""

    def info(self, url: str) -> dict[str, Any]:
        """Return the fields of a file; of a folder its "type", "directory"."""

    def inside(self, folder: str, *, deep: bool) -> Items:
        """Yield names below a folder, relative to it or as URLs, and fields.

        Args:
            folder: URL of the folder.
            deep: True yields all files; False its direct contents, folders with None as fields.
        """

    def is_folder(self, url: str) -> bool:
        """Return True if a folder exists."""

    def canonical(self, url: str) -> str:
        """Return the same URL for all ways to write it."""


class FsspecCatalog:
    """Names in a file system of fsspec, within the pace where it allows that."""

    def __init__(self, filesystem: Any, pace: Pace) -> None:
        self._filesystem, self._pace = filesystem, pace

    def info(self, url: str) -> dict[str, Any]:
        try:
            return info_of(self._filesystem, url, self._pace)
        except Exception as error:
            if failure_of(error) in ("denied", "other"):  # the body contains the reason
                self._pace.call(self._filesystem, "cat_file", url, start=0, end=1, num_bytes=1)
            raise

    def inside(self, folder: str, *, deep: bool) -> Items:
        root = self._path(folder).rstrip("/") + "/"
        if deep:
            items = self._filesystem.find(folder, detail=True).values()
        else:
            items = self._filesystem.ls(folder, detail=True)
        for item in items:
            path = item["name"].rstrip("/")
            is_file = item.get("type") == "file"
            if path.startswith(root):  # not the folder itself, nor a file that it is
                yield path.removeprefix(root), item if is_file else None
            elif deep and is_file:
                yield self._filesystem.unstrip_protocol(path), item

    def is_folder(self, url: str) -> bool:
        # A store lists the siblings of a missing folder.
        return bool(self._filesystem.info(url).get("type") == "directory")

    def canonical(self, url: str) -> str:
        return str(self._filesystem.unstrip_protocol(self._path(url)))

    def _path(self, url: str) -> str:
        return str(self._filesystem._strip_protocol(url))


class WebCatalog:
    """Files of web servers, which list no folders."""

    def __init__(self, client: WebClient | S3Client) -> None:
        self._client: Any = client

    def info(self, url: str) -> dict[str, Any]:
        with suppress(RefusedError):
            fields = self._fields(url, "HEAD", {})
            if fields["size"] is not None:
                return fields
        # Some servers and all signed URLs refuse HEAD, and the body of a refusal has the reason.
        return self._fields(url, "GET", {"Range": "bytes=0-0"})

    def _fields(self, url: str, method: str, headers: dict[str, str]) -> dict[str, Any]:
        client = self._client
        with answered(client, url, lambda: client.request(url, headers, "", method)) as answer:
            named = answer.headers
            size = named.get("Content-Length" if answer.status == 200 else "Content-Range", "")
            size = size.rpartition("/")[2]
            is_plain = named.get("Content-Encoding", "identity") == "identity"
            known = int(size) if size.isdecimal() and is_plain else None
            return {"size": known, **client.version(answer)}

    def inside(self, folder: str, *, deep: bool) -> Items:
        yield from ()

    def is_folder(self, url: str) -> bool:
        return False

    def canonical(self, url: str) -> str:
        return url


class S3Catalog(WebCatalog):
    """Objects of S3, of which a request lists a thousand."""

    def info(self, url: str) -> dict[str, Any]:
        named = url.rstrip("/")
        return super().info(named) if "/" in split_url(named)[1] else {"type": "directory"}

    def inside(self, folder: str, *, deep: bool) -> Items:
        asked_for = {} if deep else {"delimiter": "/"}
        while True:
            page, root = self._page(folder, asked_for)
            for entry in page.findall("{*}Contents"):
                name = self._name(page, entry, "Key").removeprefix(root)
                if name and not name.endswith("/"):  # an object that stands for a folder
                    yield name, {"size": int(_text(entry, "Size")), "ETag": _text(entry, "ETag")}
            for entry in page.findall("{*}CommonPrefixes"):
                yield self._name(page, entry, "Prefix").removeprefix(root).rstrip("/"), None
            if _text(page, "IsTruncated") != "true":
                return
            asked_for["continuation-token"] = _text(page, "NextContinuationToken")

    def is_folder(self, url: str) -> bool:
        page, _ = self._page(url, {"max-keys": "1"})
        return page.find("{*}Contents") is not None

    def _page(self, folder: str, asked_for: dict[str, str]) -> tuple[Any, str]:
        """Return an answer about the objects below a folder, and the beginning of their keys."""
        from xml.etree import ElementTree

        bucket, _, key = split_url(folder)[1].partition("/")
        root = f"{key.rstrip('/')}/" if key else ""
        asked_for = {"list-type": "2", "prefix": root, "encoding-type": "url", **asked_for}
        query = urlencode(asked_for, quote_via=quote, safe="")
        client = self._client
        with answered(client, folder, lambda: client.signed(bucket, f"?{query}")) as answer:
            text = b"".join(answer.parts())
        try:
            return ElementTree.fromstring(text), root
        except ElementTree.ParseError as error:
            raise OSError(f"the answer to a listing is no XML: {error}") from error

    def _name(self, page: Any, entry: Any, kind: str) -> str:
        name = _text(entry, kind)
        return unquote_plus(name) if _text(page, "EncodingType") == "url" else name

    def canonical(self, url: str) -> str:
        return f"s3://{split_url(url)[1].rstrip('/')}"


def _text(entry: Any, name: str) -> str:
    return entry.findtext(f"{{*}}{name}") or ""
