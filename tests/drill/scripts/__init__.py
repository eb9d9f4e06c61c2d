"""Training scripts in the manner of known trainers, each with faults to plant by ``--fault``."""
