"""The embedded cluster: what a machine must offer for it, and how its nodes are started. Not for real nodes."""
