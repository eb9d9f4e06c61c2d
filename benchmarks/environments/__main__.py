"""The command; see the package."""

from benchmarks.environments import main

main()
