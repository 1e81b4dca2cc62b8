"""Checkpoints: PyTorch DCP writes and reshards; here is what makes one of them trustworthy. Needs no Megatron."""
