"""``python -m demo``; `scripts/demo.sh` sets up its environment."""

import sys

from demo.command import app
from streampack.errors import StreampackError

if __name__ == "__main__":
    try:
        app(prog_name="demo")
    except StreampackError as error:
        sys.exit(f"demo: {error}")
    except KeyboardInterrupt:
        sys.exit(130)
