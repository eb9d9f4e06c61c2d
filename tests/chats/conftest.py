from __future__ import annotations

from tests.support.fixtures import http, s3, s3_for_all, storage

__all__ = ["http", "s3", "s3_for_all", "storage"]
