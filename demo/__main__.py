"""`python -m demo`, in a checkout of the repository."""

import sys

from demo.command import app
from streampack.errors import StreampackError

try:
    app(prog_name="python -m demo")
except StreampackError as error:
    sys.exit(f"demo: {error}")
