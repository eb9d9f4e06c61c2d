"""On the path of scripts that tests start: the settings that `tests/conftest.py` makes."""

import sys

sys.modules.setdefault("torchvision", None)  # type: ignore[arg-type]
