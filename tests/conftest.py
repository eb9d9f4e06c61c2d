"""What every test process needs before anything is imported."""

from __future__ import annotations

import sys

# transformers and others import torchvision where it is installed, and mosaicml-streaming installs
# a build for CUDA, which cannot be imported beside a CPU build of torch. Nothing here needs it.
sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
