"""Real trainers as they are and with streampack: the smallest change, and both sides in figures.

    python -m examples.clients transformers
    python -m examples.clients trl
    python -m examples.clients fabric
    python -m examples.clients litgpt
    python -m examples.clients torchtitan
    python -m examples.clients nanochat PATH_OF_NANOCHAT

Each trains twenty steps twice on a CPU, saves after ten and resumes from there, in well under a
minute. ``scripts/test_frameworks.sh`` has an environment in which all of them run.
"""
