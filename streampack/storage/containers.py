"""Find out whether the bucket, repository or revision of a URL without files exists."""

from __future__ import annotations

from functools import partial
from typing import Any

from streampack.errors import StorageError
from streampack.storage.file_info import shown, split_url
from streampack.storage.retries import with_retries

BUCKETS = ("s3", "s3a", "gs", "gcs", "az", "abfs", "abfss")


def missing_container(filesystem: Any, url: str, *, retries: int | None) -> str:
    """Return a sentence if the container of a URL does not exist, or "".

    Args:
        filesystem: file system of the URL's protocol.
        url: URL in which no file was found.
        retries: attempts after the first.
    """
    protocol, path = split_url(url)
    ask, sentence = None, ""
    if protocol == "hf":
        ask = partial(filesystem.resolve_path, url)
    elif protocol in BUCKETS:
        bucket = f"{protocol}://{path.split('://')[-1].split('/')[0]}"
        ask, sentence = partial(filesystem.ls, bucket), f"There is no bucket {shown(bucket)}."
    if ask is None:
        return ""
    try:
        with_retries(ask, doing="Looking up", url=url, retries=retries)
    except StorageError as error:
        if error.failure == "missing":
            return sentence or f"{shown(url)} leads nowhere: {error.__cause__}."
    return ""
