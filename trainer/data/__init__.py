"""Corpora: from text to Megatron's .bin/.idx files, and from those to samples by global index."""
