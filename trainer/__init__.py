"""The training job: Megatron core layers and schedules, one DeepSpeed engine, PyTorch DCP."""
