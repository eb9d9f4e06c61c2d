"""Worker processes: started, sent their lanes, received from, ended.

Knows processes, pipes and messages; it does not know ranks, nor when a run ends.
"""
