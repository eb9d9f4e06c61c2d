"""Jobs of several processes: their collectives, equal starts, and states of all ranks."""
