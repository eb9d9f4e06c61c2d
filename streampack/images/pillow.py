"""Pillow, or the error that names the command which installs it."""

from __future__ import annotations

from streampack.extras import missing_package

try:
    from PIL import Image, ImageOps
except ImportError as error:
    raise missing_package("Pillow", "vision") from error

__all__ = ["Image", "ImageOps"]
