"""`python -m streampack` is `streampack`."""

from streampack.cli import main

if __name__ == "__main__":
    main()
