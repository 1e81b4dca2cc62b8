"""Rebuild of a node after a hardware swap: what Slurm shows, the next move, host keys, the difference in words.

Nothing here keeps a state of its own: every move follows from what is seen, so a rebuild that was killed goes on.
"""
