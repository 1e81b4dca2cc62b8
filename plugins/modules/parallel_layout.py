"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
---
module: parallel_layout
short_description: Compute tensor, pipeline and data parallel sizes and the place of each rank
version_added: "0.1.0"
description:
  - Runs on the controller, from node documents or a declared hardware class; no host is contacted or changed.
  - Sizes that are given are kept and checked against the rules of the frameworks; the others are chosen by search.
  - Fails with one sentence, naming numbers and a layout that works, where the request breaks a rule or does not fit.
options:
  model:
    description: Name of a preset, a mapping (our keys or a Hugging Face configuration), or the path of a JSON file.
    type: raw
    required: true
  documents_dir:
    description: Directory with one node document per host, accepted or observed.
    type: path
  document_files:
    description: Node documents by host, instead of a directory.
    type: dict
  fabric:
    description:
      - The fabric block (docs/fabric.md). With it, the NIC of each rank is the one that the NCCL environment names,
        overrides included.
    type: dict
  hosts:
    description: Host names in rank order; the first is the master. Without it, documents are in natural order.
    type: list
    elements: str
  hardware_class:
    description:
      - Declared hardware, used for hosts without a document.
      - Keys are C(gpu), C(gpus_per_host), and optionally C(gpu_memory_gib), C(nic_gbps_per_gpu), C(host_memory_gib),
        C(gpu_bdfs), C(hcas), C(leafs) (host name to leaf switch), C(unlisted_gpu_ok).
    type: dict
  tensor_parallel_size:
    description: Ranks that share each layer.
    type: int
  pipeline_parallel_size:
    description: Pipeline stages.
    type: int
  virtual_pipeline_size:
    description: Model chunks per pipeline stage.
    type: int
  data_parallel_size:
    description: Copies of the model; without it, as many as the GPUs hold.
    type: int
  context_parallel_size:
    description: Ranks that share each sequence.
    type: int
  expert_parallel_size:
    description: Ranks that share the experts.
    type: int
  micro_batch_size:
    description: Sequences of one forward pass.
    type: int
  global_batch_size:
    description: Sequences of one optimizer step.
    type: int
  sequence_length:
    description: Tokens of one sequence; without it, that of the model.
    type: int
  zero_stage:
    description: ZeRO stage, 0 to 3.
    type: int
  sequence_parallel:
    description: Whether activations between tensor-parallel blocks are split; on unless refused.
    type: bool
  recompute:
    description: What is computed again in the backward pass.
    type: str
    choices: [none, selective, full]
  offload:
    description: Where optimizer states are kept besides the GPU.
    type: str
    choices: [none, cpu, nvme]
  engine:
    description:
      - Who runs pipeline and ZeRO.
      - V(trainer) is this project's trainer on the engine that it will choose for the layout, within what it runs;
        V(trainer-flat) and V(trainer-deepspeed) ask for one of its engines.
    type: str
    choices: [megatron, flat, deepspeed-pipeline, fsdp, trainer, trainer-flat, trainer-deepspeed]
    default: megatron
  backend:
    description: Backend of the trainer's collectives, on which its choice of an engine depends.
    type: str
    choices: [nccl, gloo]
    default: nccl
  precision:
    description: What matrix products are computed in.
    type: str
    choices: [bf16, fp16, fp8, mxfp8, nvfp4]
    default: bf16
  task:
    description: What is trained.
    type: str
    choices: [pretrain, full-finetune, lora, qlora]
    default: pretrain
  stage_layers:
    description: Layers of each pipeline stage, where they are not equal.
    type: list
    elements: int
  cross_domain_tensor_parallel:
    description: Whether tensor-parallel groups may leave the NVLink domain.
    type: bool
    default: false
  run:
    description: Name of the run.
    type: str
    default: run
  calibration:
    description: File of factors that C(rackweave calibrate) stored; none plans without.
    type: path
author:
  - Rackweave contributors
"""

EXAMPLES = r"""
- name: Plan Llama 3 70B on the accepted hardware
  rackweave.cluster.parallel_layout:
    model: llama3-70b
    documents_dir: inventory/hardware/prod
    hosts: "{{ groups['gpu'] }}"
    tensor_parallel_size: 8
    pipeline_parallel_size: 2
  register: plan
  run_once: true
"""

RETURN = r"""
layout:
  description: The plan as in plan.json (schema rackweave.plan/1), with the table of ranks.
  returned: when the request breaks no rule
  type: dict
msg:
  description: One sentence, the reason of the choice or of the refusal.
  returned: always
  type: str
"""
