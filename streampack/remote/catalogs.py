"""Sizes and versions of remote files, and names in folders, each asked for in one attempt."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, unquote_plus, urldefrag, urlencode

from streampack.file_info import split_url
from streampack.remote.clients import S3Client, WebClient, answered
from streampack.remote.failures import RefusedError, failure_of
from streampack.remote.pace import Pace
from streampack.remote.retries import with_retries
from streampack.remote.wire import KEPT_IN_URL
from streampack.threads import in_threads

#: Name and fields of a file, or None for a folder.
Item = tuple[str, "dict[str, Any] | None"]
Items = Iterator[Item]

_NUMBER = re.compile(r"[0-9]+")
_PAGES_AHEAD = 15  # of a listing, beside the next one
_MOST_PAGE_BYTES = 64 << 20  # of a page, which has a thousand keys of up to a KiB


class _Page(NamedTuple):
    """An answer about the names below a folder.

    Attributes:
        items: names with their fields.
        names: all names of the answer, sorted.
        token: names the next page; "" for the last one.
    """

    items: list[Item]
    names: list[str]
    token: str


class Elsewhere(str):
    """URL of a file that a file system lists for a folder under another name."""


class Catalog(Protocol):
    """Names in the stores of one protocol. Fields of files are named as by fsspec."""

    def info(self, url: str) -> dict[str, Any]:
        """Return the fields of a file; of a folder its "type", "directory"."""

    def inside(self, folder: str, *, deep: bool) -> Items:
        """Yield names below a folder, relative to it or `Elsewhere`, and fields.

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
            more = {"expand_info": True} if split_url(url)[0] == "hf" else {}  # with the version
            info: dict[str, Any] = self._pace.call(
                self._filesystem, "info", url, num_bytes=0, **more
            )
            is_empty = info.get("type") == "file" and info.get("size") == 0
            if is_empty and self._pace.call(self._filesystem, "cat_file", url, num_bytes=0):
                raise OSError("it has bytes, and the server declares a size of 0")
            return info
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
                yield Elsewhere(self._filesystem.unstrip_protocol(path)), item

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
        fields: dict[str, Any] = {}
        with suppress(RefusedError):
            fields = self._fields(url, "HEAD", {})
        if fields.get("size"):
            return fields
        # Some servers and all signed URLs refuse HEAD, and the body of a refusal has the reason;
        # some count no byte for it.
        try:
            return self._fields(url, "GET", {"Range": "bytes=0-0"})
        except RefusedError as error:
            if error.status == 416 and fields.get("size") == 0:
                return fields
            raise

    def _fields(self, url: str, method: str, headers: dict[str, str]) -> dict[str, Any]:
        client = self._client
        with answered(client, url, lambda: client.request(url, headers, "", method)) as answer:
            return {"size": client.size(answer), **client.version(answer)}

    def inside(self, folder: str, *, deep: bool) -> Items:
        return iter(())

    def is_folder(self, url: str) -> bool:
        return False

    def canonical(self, url: str) -> str:
        return quote(urldefrag(url).url, safe=KEPT_IN_URL)


class S3Catalog(WebCatalog):
    """Objects of S3, of which a request lists a thousand.

    Args:
        client: the client.
        retries: attempts of each page of a listing after the first.
    """

    _begins_at_names = True  # as far as it is known

    def __init__(self, client: S3Client, retries: int | None) -> None:
        super().__init__(client)
        self._retries = retries

    def info(self, url: str) -> dict[str, Any]:
        named = url.rstrip("/")
        return super().info(named) if "/" in split_url(named)[1] else {"type": "directory"}

    def inside(self, folder: str, *, deep: bool) -> Items:
        """See `Catalog`. If names are numbered, several pages are asked for at a time.

        A page that begins at a guessed name is used if the pages before it reach that name. Each
        page has attempts of its own, since all may take minutes.
        """
        asked_for = {} if deep else {"delimiter": "/"}
        tokens: set[str] = set()
        page, most_ahead = self._surely(folder, asked_for), _PAGES_AHEAD
        yield from page.items
        while token := page.token:
            guessed: list[str] = []
            if page.names and self._begins_at_names:
                guessed = _numbered_on(page.names[0], page.names[-1], most_ahead)
            by_token = {**asked_for, "continuation-token": token}
            following: list[Callable[[], _Page | None]] = [
                partial(self._surely, folder, by_token),
                *(partial(self._guessed, folder, asked_for, name) for name in guessed),
            ]
            pages = in_threads(lambda call: call(), following)
            assert pages[0] is not None
            page = pages[0]
            yield from page.items
            tokens.add(token)
            if page.token in tokens:
                raise ValueError(
                    "a page of the listing names itself, or one before it, as the next"
                )
            for name, after in zip(guessed, pages[1:], strict=True):
                if not page.token:
                    return
                if after is None or page.names[-1:] < [name]:
                    most_ahead //= 2  # more names than guessed, or a failure
                    break
                page = after
                yield from page.items

    def _surely(self, folder: str, asked_for: dict[str, str]) -> _Page:
        ask = partial(self._page, folder, asked_for)
        return with_retries(ask, doing="Listing", url=folder, retries=self._retries)

    def _guessed(self, folder: str, asked_for: dict[str, str], name: str) -> _Page | None:
        """Return the page after a name; None if the store fails, or begins at no name."""
        try:
            page = self._page(folder, {**asked_for, "start-after": _root(folder) + name})
            if not page.names or page.names[0] > name:
                return page
        except Exception as error:  # the page is asked for by its token
            if failure_of(error) == "transient":
                return None
        self._begins_at_names = False
        return None

    def is_folder(self, url: str) -> bool:
        return bool(self._page(url, {"max-keys": "1"}).names)

    def _page(self, folder: str, asked_for: dict[str, str]) -> _Page:
        """Ask for names below a folder."""
        from xml.etree import ElementTree

        bucket, root = split_url(folder)[1].partition("/")[0], _root(folder)
        asked_for = {"list-type": "2", "prefix": root, "encoding-type": "url", **asked_for}
        query = urlencode(asked_for, quote_via=quote, safe="")
        client = self._client
        with answered(client, folder, lambda: client.signed(bucket, f"?{query}")) as answer:
            text = bytearray()
            for part in answer.parts():
                text += part
                if len(text) > _MOST_PAGE_BYTES:
                    raise OSError(f"a page of the listing has more than {_MOST_PAGE_BYTES} bytes")
        try:
            page = ElementTree.fromstring(text)
        except ElementTree.ParseError as error:
            raise OSError(f"the answer to a listing is no XML: {error}") from error
        if "ListBucket" not in page.tag:  # the page of a portal, or of an error
            raise OSError(f"the answer to a listing is of the kind {page.tag:.80}")
        is_quoted = _text(page, "EncodingType") == "url"

        def named(entry: Any, kind: str) -> str:
            name = _text(entry, kind)
            name = unquote_plus(name) if is_quoted else name
            if not name.startswith(root):
                raise ValueError(
                    f"a page of the listing has the key {name:.80}, outside the folder"
                )
            return name.removeprefix(root)

        items: list[Item] = [
            (named(entry, "Key"), {"size": int(_text(entry, "Size")), "ETag": _text(entry, "ETag")})
            for entry in page.findall("{*}Contents")
        ]
        names = [name for name, _ in items]
        # An object may stand for a folder.
        items = [item for item in items if item[0] and not item[0].endswith("/")]
        folders = [named(entry, "Prefix") for entry in page.findall("{*}CommonPrefixes")]
        items += [(name.rstrip("/"), None) for name in folders]
        is_cut = _text(page, "IsTruncated").lower()  # some stores leave it out
        token = "" if is_cut == "false" else _text(page, "NextContinuationToken")
        if is_cut == "true" and not token:
            raise ValueError("a page of the listing is cut and names no next one (list-type=2)")
        return _Page(items, sorted([*names, *folders]), token)

    def canonical(self, url: str) -> str:
        return f"s3://{split_url(url)[1].rstrip('/')}"


def _root(folder: str) -> str:
    """Return the beginning of the keys below a folder."""
    key = split_url(folder)[1].partition("/")[2].rstrip("/")
    return f"{key}/" if key else ""


def _numbered_on(first: str, last: str, most: int) -> list[str]:
    """Return the last names of the next pages, if names are numbered with leading zeros.

    Args:
        first, last: names of a page, which are expected to differ in a number.
        most: number of names to return at most.
    """
    for low, high in zip(_NUMBER.finditer(first), _NUMBER.finditer(last), strict=False):
        begin, end = high.span()
        if low.span() != (begin, end) or first[:begin] != last[:begin]:
            return []
        if low[0] != high[0]:
            step, width = int(high[0]) - int(low[0]) + 1, end - begin
            numbers = range(int(high[0]) + step, 10**width, step)[:most]
            return [f"{last[:begin]}{number:0{width}}{last[end:]}" for number in numbers]
    return []


def _text(entry: Any, name: str) -> str:
    return entry.findtext(f"{{*}}{name}") or ""
