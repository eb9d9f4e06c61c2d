"""Fetch byte ranges of remote files, each checked for its length and the file's version."""

from __future__ import annotations

import io
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from streampack.storage.file_info import replaced, split_url
from streampack.storage.first_fetch import first_fetch
from streampack.storage.remote import VERSION_FIELDS, Pace, info_from, info_of, version_of, wait_for

_HTTP = ("http", "https")
_S3 = ("s3", "s3a")
_PART_BYTES = 1 << 20


class Fetched(NamedTuple):
    """Bytes of a file, its version at that time, from `version_of`, and its size if it was told."""

    data: bytes
    version: str
    size: int | None = None


def fetch_range(
    filesystem: Any, url: str, start: int, stop: int, size: int, pace: Pace
) -> Fetched | None:
    """Fetch bytes [start, stop) of a file of `size` bytes; None if the server has no ranges.

    Answers of HTTP, S3 and the Hub contain the version; for other protocols it is looked up after
    each range.

    Raises:
        OSError: other bytes came, or fewer; the file system may raise other errors too.
    """
    first_fetch().begin(url)
    if split_url(url)[0] == "hf":
        return _hub_range(filesystem, url, start, stop, size, pace)
    method = _own_request(filesystem, url, _http_range, _s3_range)
    if method is not None:
        part: Fetched | None = pace.call(
            filesystem, method, filesystem, url, start, stop, size, num_bytes=stop - start
        )
        return part
    # fsspec would otherwise read beyond the range.
    options = {} if filesystem.async_impl else {"cache_type": "none"}
    try:
        data = pace.call(
            filesystem, "cat_file", url, start=start, end=stop, num_bytes=stop - start, **options
        )
    except (NotImplementedError, io.UnsupportedOperation):
        return None
    first_fetch().add(len(data))
    if len(data) != stop - start:
        raise OSError(f"{len(data)} bytes came instead of {stop - start}")
    return Fetched(data, version_of(info_of(filesystem, url, pace)))


def fetch_start(filesystem: Any, url: str, most: int | None, pace: Pace) -> Fetched:
    """Fetch the first `most` bytes of a file, or all of it, in one request; fewer at its end.

    Raises:
        OSError: fewer bytes came than the answer told; the file system may raise other errors too.
    """
    first_fetch().begin(url)
    if split_url(url)[0] == "hf":
        return _hub_start(filesystem, url, most, pace)
    method = _own_request(filesystem, url, _http_start, _s3_start)
    if method is not None:
        part: Fetched = pace.call(filesystem, method, filesystem, url, most, pace, num_bytes=None)
        return part
    asked: dict[str, Any] = {} if most is None else {"start": 0, "end": most}
    try:
        options = {} if filesystem.async_impl else {"cache_type": "none"}
        size = most or _PART_BYTES
        data = pace.call(filesystem, "cat_file", url, num_bytes=size, **asked, **options)
    except (NotImplementedError, io.UnsupportedOperation):
        data = b"".join(_file_chunks(filesystem, url, pace))[:most]
    first_fetch().add(len(data))
    return Fetched(data, "")


def _own_request(filesystem: Any, url: str, over_http: Any, to_s3: Any) -> Any:
    """Return the request with a version in its answer, or None if the protocol has none here."""
    protocol = split_url(url)[0]
    if protocol in _HTTP:
        return over_http
    return to_s3 if protocol in _S3 and hasattr(filesystem, "_call_s3") else None


def whole_file(filesystem: Any, url: str, size: int, pace: Pace) -> Iterator[bytes]:
    """Yield the `size` bytes of a file as they come.

    Raises:
        OSError: more bytes came, or fewer, or too slowly; or another error of the file system.
    """
    first_fetch().begin(url)
    chunks = _http_chunks if split_url(url)[0] in _HTTP else _file_chunks
    since, had, came = time.monotonic(), 0, 0
    with closing(chunks(filesystem, url, pace)) as parts:
        for data in parts:
            came += len(data)
            if came > size:
                break
            first_fetch().add(len(data))
            yield data
            now = time.monotonic()
            if now - since >= pace.timeout_s:
                if came - had < (now - since) * pace.min_bytes_per_s:
                    raise pace.too_slow(came - had, now - since)
                since, had = now, came
    if came != size:
        more = "more than " if came > size else ""
        raise OSError(f"{more}{came} of {size} bytes arrived")


def _file_chunks(filesystem: Any, url: str, pace: Pace) -> Generator[bytes, None, None]:
    with filesystem.open(url, "rb") as file:
        while data := file.read(_PART_BYTES):
            yield data


def _http_chunks(filesystem: Any, url: str, pace: Pace) -> Generator[bytes, None, None]:
    """Yield what has come of a file; fsspec's own stream would wait for a whole part."""
    answer = pace.call(filesystem, _http_answer, filesystem, url, num_bytes=0)
    try:
        while data := wait_for(filesystem.loop, answer.content.readany):
            yield data
    finally:
        filesystem.loop.call_soon_threadsafe(answer.close)


async def _http_answer(filesystem: Any, url: str) -> Any:
    session = await filesystem.set_session()
    answer = await session.get(filesystem.encode_url(url), **filesystem.kwargs)
    answer.raise_for_status()
    return answer


def _hub_answer(filesystem: Any, url: str, range_: str, pace: Pace) -> tuple[Any, str]:
    """Ask the Hub for a file; return the answer and the ETag, which a redirection may have."""
    from huggingface_hub import get_session, hf_hub_url
    from huggingface_hub.utils import (  # type: ignore[attr-defined]
        build_hf_headers,
        hf_raise_for_status,
    )

    resolved = filesystem.resolve_path(url)
    link = hf_hub_url(
        resolved.repo_id,
        resolved.path_in_repo,
        repo_type=resolved.repo_type,
        revision=resolved.revision,
        endpoint=filesystem.endpoint,
    )
    headers = build_hf_headers(token=filesystem.token) | {"Accept-Encoding": "identity"}
    headers |= {"Range": range_} if range_ else {}
    answer = get_session().get(link, headers=headers, timeout=pace.timeout_s)
    hf_raise_for_status(answer)
    first_fetch().add(len(answer.content))
    tags = [
        sent.headers.get("X-Linked-Etag") or sent.headers.get("ETag") or ""
        for sent in [*answer.history, answer]
    ]
    return answer, next(filter(None, tags), "").removeprefix("W/")


def _hub_range(
    filesystem: Any, url: str, start: int, stop: int, size: int, pace: Pace
) -> Fetched | None:
    answer, etag = _hub_answer(filesystem, url, _range(start, stop), pace)
    if answer.status_code == 200 and (start, stop) != (0, size):
        return None
    if answer.status_code != 200:
        _check_range(answer.headers.get("Content-Range", ""), url, start, stop, size)
    return _part(answer.content, stop - start, {"ETag": etag})


def _hub_start(filesystem: Any, url: str, most: int | None, pace: Pace) -> Fetched:
    answer, etag = _hub_answer(filesystem, url, _range(0, most), pace)
    size = _size(url, answer.headers.get("Content-Range"), len(answer.content))
    end = _end(size, most)
    return _part(answer.content[:end], end, {"ETag": etag}, size)


def _http_asked(filesystem: Any, range_: str) -> dict[str, Any]:
    """Return the arguments of a request over HTTP."""
    options = dict(filesystem.kwargs)
    headers = dict(options.pop("headers", None) or {})
    return {**options, "headers": {**headers, "Range": range_} if range_ else headers}


async def _http_body(answer: Any, most: int) -> bytearray:
    """Read a body, and stop soon after `most` bytes."""
    data = bytearray()
    async for chunk in answer.content.iter_any():
        data += chunk
        first_fetch().add(len(chunk))
        if len(data) > most:
            break
    return data


async def _http_range(
    filesystem: Any, url: str, start: int, stop: int, size: int
) -> Fetched | None:
    session, asked = await filesystem.set_session(), _http_asked(filesystem, _range(start, stop))
    async with session.get(filesystem.encode_url(url), **asked) as answer:
        answer.raise_for_status()
        if answer.status == 200 and (start, stop) != (0, size):
            if answer.content_length not in (None, size):  # the page of a portal, or of an error
                raise OSError(f"{answer.content_length} bytes came for a range")
            return None
        if answer.status != 200:
            _check_range(answer.headers.get("Content-Range", ""), url, start, stop, size)
        if answer.status not in (200, 206):
            raise OSError(f"status {answer.status} came for a range")
        return _part(await _http_body(answer, stop - start), stop - start, _http_version(answer))


async def _http_start(filesystem: Any, url: str, most: int | None, pace: Pace) -> Fetched:
    session, asked = await filesystem.set_session(), _http_asked(filesystem, _range(0, most))
    async with await pace.limited(session.get(filesystem.encode_url(url), **asked), 0) as answer:
        answer.raise_for_status()
        if answer.status not in (200, 206):
            raise OSError(f"status {answer.status} came for a file")
        size = _size(url, answer.headers.get("Content-Range"), answer.content_length)
        end = _end(size, most)
        data = await pace.limited(_http_body(answer, end), end)
        if answer.status == 200:  # of a server without ranges
            del data[end:]
        return _part(data, end, _http_version(answer), size)


def _http_version(answer: Any) -> dict[str, Any]:
    return {name: answer.headers.get(name) for name in VERSION_FIELDS}


async def _s3_range(filesystem: Any, url: str, start: int, stop: int, size: int) -> Fetched:
    answer = await _s3_answer(filesystem, url, _range(start, stop))
    try:
        _check_range(str(answer.get("ContentRange", "")), url, start, stop, size)
        return _part(await _s3_body(answer), stop - start, dict(answer))
    finally:
        answer["Body"].close()


async def _s3_start(filesystem: Any, url: str, most: int | None, pace: Pace) -> Fetched:
    answer = await pace.limited(_s3_answer(filesystem, url, _range(0, most)), 0)
    try:
        size = _size(url, answer.get("ContentRange"), answer.get("ContentLength"))
        end = _end(size, most)
        return _part(await pace.limited(_s3_body(answer), end), end, dict(answer), size)
    finally:
        answer["Body"].close()


async def _s3_body(answer: Any) -> bytes:
    data: bytes = await answer["Body"].read()
    first_fetch().add(len(data))
    return data


async def _s3_answer(filesystem: Any, url: str, range_: str) -> Any:
    bucket, key, version = filesystem.split_path(url)
    named = {"VersionId": version} if version else {}
    asked = {"Range": range_} if range_ else {}
    return await filesystem._call_s3(
        "get_object", Bucket=bucket, Key=key, **asked, **named, **filesystem.req_kw
    )


def _range(start: int, stop: int | None) -> str:
    return "" if stop is None else f"bytes={start}-{stop - 1}"


def _size(url: str, declared: str | None, num_bytes: int | None) -> int:
    """Return the size of a file from the headers of an answer: range, or length without one."""
    total = (declared or "").rpartition("/")[2]
    info = {"size": int(total) if total.isdecimal() else None if declared else num_bytes}
    return info_from(url, info).num_bytes


def _end(size: int, most: int | None) -> int:
    return size if most is None else min(most, size)


def _check_range(declared: str, url: str, start: int, stop: int, size: int) -> None:
    sent, _, total = declared.lower().partition("/")
    if total.isdecimal() and int(total) != size:
        raise replaced(url, f"{size} bytes", f"{total} bytes")
    if sent != f"bytes {start}-{stop - 1}":
        raise OSError(f"bytes {start}-{stop - 1} were asked for and {declared or 'others'} came")


def _part(
    data: bytes | bytearray, expected: int, headers: dict[str, Any], size: int | None = None
) -> Fetched:
    if len(data) != expected:
        more = "more than " if len(data) > expected else ""
        raise OSError(f"{more}{len(data)} bytes came instead of {expected}")
    return Fetched(bytes(data), version_of(headers), size)
