"""Fetch byte ranges of remote files, each checked for its length and the file's version."""

from __future__ import annotations

import io
import time
from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any, NamedTuple

from fsspec.asyn import sync

from streampack.storage.remote import VERSION_FIELDS, Pace, info_of, replaced, split_url, version_of

_HTTP = ("http", "https")
_S3 = ("s3", "s3a")
_PART_BYTES = 1 << 20


class Part(NamedTuple):
    """Bytes of a file, and its version at that time, from `version_of`."""

    data: bytes
    version: str


def fetch_range(
    filesystem: Any, url: str, start: int, stop: int, size: int, pace: Pace
) -> Part | None:
    """Fetch bytes [start, stop) of a file of `size` bytes; None if the server has no ranges.

    Answers of HTTP, S3 and the Hub contain the version; for other protocols it is looked up after
    each range.

    Raises:
        OSError: other bytes came, or fewer; the file system may raise other errors too.
    """
    protocol = split_url(url)[0]
    method: Any = "cat_file"
    if protocol in _HTTP:
        method = _http_range
    elif protocol in _S3 and hasattr(filesystem, "_call_s3"):
        method = _s3_range
    elif protocol == "hf":
        return _hub_range(filesystem, url, start, stop, size, pace)
    if method != "cat_file":
        found: Part | None = pace.call(
            filesystem, method, filesystem, url, start, stop, size, num_bytes=stop - start
        )
        return found
    # Else fsspec would read further than asked to.
    options = {} if filesystem.async_impl else {"cache_type": "none"}
    try:
        data = pace.call(
            filesystem, method, url, start=start, end=stop, num_bytes=stop - start, **options
        )
    except (NotImplementedError, io.UnsupportedOperation):
        return None
    if len(data) != stop - start:
        raise OSError(f"{len(data)} bytes came instead of {stop - start}")
    return Part(data, version_of(info_of(filesystem, url, pace)))


def whole_file(filesystem: Any, url: str, size: int, pace: Pace) -> Iterator[bytes]:
    """Yield the `size` bytes of a file as they come.

    Raises:
        OSError: more bytes came, or fewer, or too slowly; or another error of the file system.
    """
    chunks = _http_chunks if split_url(url)[0] in _HTTP else _file_chunks
    since, had, came = time.monotonic(), 0, 0
    with closing(chunks(filesystem, url, pace)) as parts:
        for data in parts:
            came += len(data)
            if came > size:
                break
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
        while data := sync(filesystem.loop, answer.content.readany):
            yield data
    finally:
        filesystem.loop.call_soon_threadsafe(answer.close)


async def _http_answer(filesystem: Any, url: str) -> Any:
    session = await filesystem.set_session()
    answer = await session.get(filesystem.encode_url(url), **filesystem.kwargs)
    answer.raise_for_status()
    return answer


def _hub_range(
    filesystem: Any, url: str, start: int, stop: int, size: int, pace: Pace
) -> Part | None:
    """Fetch a range from the Hub; its first answer, often a redirection, has the version."""
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
    headers = build_hf_headers(token=filesystem.token)
    headers |= {"Range": f"bytes={start}-{stop - 1}", "Accept-Encoding": "identity"}
    answer = get_session().get(link, headers=headers, timeout=pace.timeout_s)
    hf_raise_for_status(answer)
    tags = [
        sent.headers.get("X-Linked-Etag") or sent.headers.get("ETag") or ""
        for sent in [*answer.history, answer]
    ]
    etag = next(filter(None, tags), "").removeprefix("W/")
    if answer.status_code == 200 and (start, stop) != (0, size):
        return None
    if answer.status_code != 200:
        _check_range(answer.headers.get("Content-Range", ""), url, start, stop, size)
    return _part(answer.content, stop - start, {"ETag": etag})


async def _http_range(filesystem: Any, url: str, start: int, stop: int, size: int) -> Part | None:
    options = dict(filesystem.kwargs)
    headers = {**(options.pop("headers", None) or {}), "Range": f"bytes={start}-{stop - 1}"}
    session = await filesystem.set_session()
    async with session.get(filesystem.encode_url(url), headers=headers, **options) as answer:
        answer.raise_for_status()
        if answer.status == 200 and (start, stop) != (0, size):
            return None
        if answer.status != 200:
            _check_range(answer.headers.get("Content-Range", ""), url, start, stop, size)
        if answer.status not in (200, 206):
            raise OSError(f"status {answer.status} came for a range")
        data = bytearray()
        async for chunk in answer.content.iter_any():
            data += chunk
            if len(data) > stop - start:
                break
        return _part(
            data, stop - start, {name: answer.headers.get(name) for name in VERSION_FIELDS}
        )


async def _s3_range(filesystem: Any, url: str, start: int, stop: int, size: int) -> Part:
    bucket, key, version = filesystem.split_path(url)
    named = {"VersionId": version} if version else {}
    answer = await filesystem._call_s3(
        "get_object",
        Bucket=bucket,
        Key=key,
        Range=f"bytes={start}-{stop - 1}",
        **named,
        **filesystem.req_kw,
    )
    try:
        _check_range(str(answer.get("ContentRange", "")), url, start, stop, size)
        return _part(await answer["Body"].read(), stop - start, dict(answer))
    finally:
        answer["Body"].close()


def _check_range(said: str, url: str, start: int, stop: int, size: int) -> None:
    sent, _, total = said.lower().partition("/")
    if total.isdecimal() and int(total) != size:
        raise replaced(url, f"{size} bytes", f"{total} bytes")
    if sent != f"bytes {start}-{stop - 1}":
        raise OSError(f"bytes {start}-{stop - 1} were asked for and {said or 'others'} came")


def _part(data: bytes | bytearray, expected: int, headers: dict[str, Any]) -> Part:
    if len(data) != expected:
        more = "more than " if len(data) > expected else ""
        raise OSError(f"{more}{len(data)} bytes came instead of {expected}")
    return Part(bytes(data), version_of(headers))
