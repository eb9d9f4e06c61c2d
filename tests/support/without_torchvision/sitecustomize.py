"""On the path of scripts that tests start: what `tests/conftest.py` does for the tests."""

import sys

sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
