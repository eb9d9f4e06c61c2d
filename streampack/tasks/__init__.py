"""Engines that run the tasks of a job: this process, local processes, or the workers of Ray.

A task is a function of the job and its indices. Its result is in files that are either complete or
missing, so a task that is lost with its worker is repeated.
"""
