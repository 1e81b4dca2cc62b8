"""Acceptance: what was measured on nodes inside a Slurm job, the bars it is held against, and the verdict."""
