"""Writes docs/families.md anew, for the installed transformers: `python -m scripts.families`.

The page has a section for each version that the tests run with; the other ones stay.
"""

from __future__ import annotations

import re
from pathlib import Path

from tests.support.family_table import section

PAGE = Path(__file__).parents[1] / "docs/families.md"


def main() -> None:
    """Put the section of the installed version in the place of the one for its major version."""
    new = section()
    major = new.split(".")[0]  # "## transformers 5"
    page = PAGE.read_text()
    old = re.compile(re.escape(major) + r"\.(?:.|\n)*?(?=\n## |\Z)")
    page = old.sub(lambda _: new, page) if old.search(page) else f"{page.rstrip()}\n\n{new}"
    PAGE.write_text(page)


if __name__ == "__main__":
    main()
