"""Errors that streampack raises. Each states a fact and a remedy."""

from __future__ import annotations

from textwrap import shorten
from typing import Literal

#: Kind of a store's failure; "transient" ones have been retried.
StoreFailure = Literal["missing", "denied", "transient", "other"]


class StreampackError(Exception):
    """Base of every error raised on purpose.

    Args:
        fact: a sentence with the expectation and the value, which names the document, shard or
            field.
        remedy: a sentence with advice for the reader.
        setting: name of the argument to change.
        path: the file or object.
        document: name of the document, as in "row 7 of part-3.parquet".

    `fact` and `remedy` are the exception's ``args``, so that it can be pickled between processes.
    """

    def __init__(
        self,
        fact: str,
        remedy: str = "",
        *,
        setting: str | None = None,
        path: str | None = None,
        document: str | None = None,
    ) -> None:
        super().__init__(fact, remedy)
        self.setting = setting
        self.path = path
        self.document = document
        self.fact = fact
        self.remedy = remedy

    def __str__(self) -> str:
        return " ".join(part for part in (self.fact, self.remedy) if part)


class ConfigError(StreampackError, ValueError):
    """A setting, or a combination of settings, that cannot work."""


class MissingPackageError(ConfigError, ImportError):
    """A required package is not installed."""


class ContentError(StreampackError, ValueError):
    """A document or shard with broken content, which `on_error="skip"` passes over.

    Attributes:
        shard: index of the shard in the manifest.
        index: first affected document in the shard, in the unit of `Documents.origin`.
        rest_of_shard: the rest of the shard cannot be read either.
    """

    def __init__(
        self,
        fact: str,
        remedy: str = "",
        shard: int = -1,
        index: int = 0,
        rest_of_shard: bool = False,
        *,
        setting: str | None = None,
        path: str | None = None,
        document: str | None = None,
    ) -> None:
        super().__init__(fact, remedy, setting=setting, path=path, document=document)
        self.args = (fact, remedy, shard, index, rest_of_shard)
        self.shard = shard
        self.index = index
        self.rest_of_shard = rest_of_shard

    def of_source(self, name: str) -> ContentError:
        """Return a copy that names the source of a mixture."""
        return ContentError(
            f'In source "{name}": {self.fact}',
            *self.args[1:],
            setting=self.setting,
            path=self.path,
            document=self.document,
        )


class PlanError(StreampackError, ValueError):
    """A packing plan that breaks a rule of `streampack.packing.check_plan`."""


class RankError(StreampackError, RuntimeError):
    """Another process of the job died, stopped responding, or runs another program."""


class StateError(StreampackError, ValueError):
    """A saved state that does not belong to this dataset, or data that changed under it."""


class StorageError(StreampackError, OSError):
    """Reading or writing storage failed after all retries.

    The file system's error is the ``__cause__``.

    Attributes:
        failure: kind of the failure.
    """

    failure: StoreFailure = "other"

    def __str__(self) -> str:  # OSError would format two arguments as an errno pair
        return StreampackError.__str__(self)


class WorkerError(StreampackError, RuntimeError):
    """A worker process died or stopped responding."""


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error, shortened to 200 characters."""
    return shorten(str(error).strip().partition("\n")[0], 200, placeholder=" ...")
