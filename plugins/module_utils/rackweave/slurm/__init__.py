"""What Slurm must be told of the nodes, and what it says of them: configuration texts, munge key, node states.

Pure: node documents and plain settings in, texts and decisions out.
"""
