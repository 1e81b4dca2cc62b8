"""Measure: training steps on synthetic data, the plain-PyTorch peer of the same shape, and collectives."""
