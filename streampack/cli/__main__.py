"""`python -m streampack.cli` is `streampack`."""

from streampack.cli import main

if __name__ == "__main__":
    main()
