"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
---
module: swap_report
short_description: Say what a hardware swap changed on a node
description:
  - Compares the observed document with the accepted one, or, where none is accepted, with the one that was observed
    before the rebuild, which step V(remember) keeps and step V(forget) removes.
  - Names every difference, what follows (HCA list, rail map, gres with Cores) with old and new value, and any loss.
options:
  host: {description: "The node.", type: str, required: true}
  step: {description: "What to do.", type: str, choices: [remember, report, forget], required: true}
  observed_dir: {description: "Directory of observed documents.", type: path, required: true}
  accepted_dir: {description: "Directory of accepted documents.", type: path, required: true}
  before_dir: {description: "Directory of documents from before a rebuild.", type: path, required: true}
  fabric: {description: "The fabric block; needed by step V(report).", type: dict, default: {kind: ethernet}}
  nccl_version: {description: "NCCL that the job loads.", type: str}
  torch_version: {description: "PyTorch of the job.", type: str}
  profile:
    description: "Profile of the environment."
    type: str
    choices: [production, acceptance, lab]
    default: production
  image: {description: "Whether the job runs in a container image.", type: bool, default: false}
  image_plugins: {description: "NCCL network plugins of that image.", type: list, elements: str}
  log_directory: {description: "Directory for per-rank files.", type: str}
  collective_timeout_s: {description: "Timeout of a collective in seconds.", type: int, default: 600}
attributes:
  check_mode: {support: full, description: Keeps and removes nothing.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Say what changed
  rackweave.cluster.swap_report:
    host: gpu02
    step: report
    observed_dir: .state/prod/observed
    accepted_dir: inventory/hardware/prod
    before_dir: .state/prod/rebuild
    fabric: "{{ rackweave_fabric }}"
"""
RETURN = r"""
lines: {description: The report for people., returned: step is report, type: list, elements: str}
loss: {description: What the node lost in one sentence; empty if nothing., returned: step is report, type: str}
report: {description: The report for programs., returned: step is report, type: dict}
"""
