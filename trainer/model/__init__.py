"""The model: stages of a GPT- or Llama-like transformer made of Megatron core's tensor-parallel layers."""
