"""In which phase GPU memory ran out: from our own phase events, from the stack, from the last marker."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, field

from .prefix import Line

_FRAME = re.compile(r"^\s*File \"(?P<file>[^\"]{1,300})\", line \d+, in (?P<function>[\w<>.]+)")

_LOAD = re.compile(
    r"load_checkpoint|load_state_dict|_load_(?!from_conf)\w*checkpoint|load_sharded|load_file|/serialization\.py|"
    r"checkpoint/(?:state_dict_loader|filesystem|default_planner)|read_data|dist_checkpointing/"
)
_OPT_INIT = re.compile(
    r"initialize_optimizer_states|_configure_(?:zero|basic|distributed|bf16|fp16)\w*_?optimizer|_configure_optimizer"
    r"|init_optimizer|get_megatron_optimizer|setup_optimizer|build_optimizer|create_optimizer|configure_optimizers|"
    r"_create_fp32|_setup_for_real_optimizer|_link_all_hp_params|DeepSpeedZeroOptimizer|_init_optimizer|"
    r"(?:zero/stage\w*|\w*optimizer)\.py __init__$"
)
_OPT_STEP = re.compile(
    r"^(?:optimizer_step|_optimizer_step|step|_step|_take_model_step|_single_tensor_adamw?|_multi_tensor_adamw?|"
    r"_fused_adamw?|adamw?|_init_group|step_with_ready_grads|multi_tensor_applier|_exec_optimizer_step)"
    r"$"
)
_OPT_FILE = re.compile(r"/optim/|optimizer|adam|zero/stage|lamb|bf16_optimizer|engine\.py")
_BACKWARD = re.compile(
    r"^(?:_?(?:run_)?backward\w*|custom_backward|_engine_run_backward|_exec_backward_pass|backward_step|"
    r"_backward_step)$"
)
_FORWARD = re.compile(
    r"^(?:forward\w*|_forward\w*|forward_step|_call_impl|_wrapped_call_impl|training_step|loss_func|compute_loss|"
    r"_checkpointed_forward|_exec_forward_pass|attention|_attn|mlp|__call__)$"
)
_NOT_DIRECTION = re.compile(r"^forward_backward")
_BUILD = re.compile(
    r"get_model|model_provider|build_model|from_pretrained|_init_weights|initialize_affine|materialize|"
    r"init_empty|setup_model|^cuda$|^to$|^_apply$|convert$|model_fn|create_model|init_method"
)

_MARKERS = (
    (
        "checkpoint_load",
        ("loading", "resum"),
        re.compile(
            r"(?i)\bloading (?:\w+ )*(?:checkpoint|model states|weights|state "
            r"dict|shards?)|resum\w+ from checkpoint"
        ),
    ),
    (
        "loaded",
        ("load",),
        re.compile(
            r"(?i)successfully loaded|checkpoint (?:was )?loaded|loaded checkpoint|"
            r"finished loading"
        ),
    ),
    (
        "optimizer_init",
        ("optimizer", "zero", "partition", "bucket"),
        re.compile(
            r"(?i)(?:creating|initializ\w+|building|setting up|configuring|"
            r"partition\w*) (?:\w+ ){0,4}(?:optimizer|zero)\b|optimizer states?\b.{0,20}"
            r"init|Rank: \d+ partition count|Creating .*ZeRO|zero stage \d|"
            r"DeepSpeed (?:Basic|Final) Optimizer|reduce bucket size|setting "
            r"up optimizer"
        ),
    ),
    (
        "model_build",
        ("model", "parameters on"),
        re.compile(
            r"(?i)building \w+ model|(?:build|construct|instantiat|initializ)"
            r"\w* (?:the )?(?:\w+ )?model\b|number of parameters on|DeepSpeed.*building"
        ),
    ),
    (
        "nccl_init",
        ("nccl", "distributed", "process group", "communicator"),
        re.compile(
            r"(?i)ncclCommInit|init(?:ializ\w+)? (?:torch )?(?:distributed|"
            r"process group|NCCL)|creating (?:nccl )?communicators?"
        ),
    ),
    (
        "training",
        ("train",),
        re.compile(
            r"(?i)before the start of training step|training \.\.\.|start(?:ing)"
            r"? training|begin(?:ning)? training|entering train loop"
        ),
    ),
    ("forward", ("phase",), re.compile(r"(?i)\bphase[\"']?[:= ]+[\"']?forward")),
    ("backward", ("phase",), re.compile(r"(?i)\bphase[\"']?[:= ]+[\"']?backward")),
    ("optimizer_step", ("phase",), re.compile(r"(?i)\bphase[\"']?[:= ]+[\"']?optimizer[_ ]step")),
    ("nccl_init", ("phase",), re.compile(r"(?i)\bphase[\"']?[:= ]+[\"']?nccl[_ ]init")),
    ("model_build", ("phase",), re.compile(r"(?i)\bphase[\"']?[:= ]+[\"']?model[_ ]build")),
    ("checkpoint_load", ("phase",), re.compile(r"(?i)\bphase[\"']?[:= ]+[\"']?checkpoint[_ ]load")),
    ("optimizer_init", ("phase",), re.compile(r"(?i)\bphase[\"']?[:= ]+[\"']?optimizer[_ ]init")),
)

LITERALS = (
    'File "',
    "oading",
    "oaded",
    "ptimizer",
    "artition",
    "ZeRO",
    "zero stage",
    "uilding",
    "odel",
    "parameters on",
    "nccl",
    "distributed",
    "process group",
    "raining",
    "phase",
    "esum",
    "bucket size",
    "ommunicator",
    "backward",
    "step()",
    "forward",
)


# Advice for GPU memory by the phase in which it ran out.
OOM_ADVICE = {
    "nccl_init": "NCCL could not allocate its buffers: look for left-over processes on the GPU, fewer communicators, "
    "smaller NCCL_BUFFSIZE, leave 1-2 GiB of head-room.",
    "model_build": "Parameters alone do not fit: raise tensor or pipeline size, or build on the meta device.",
    "checkpoint_load": "A full copy is made while loading: load to CPU, shard the load, drop the reference copy.",
    "optimizer_init": "Optimizer states do not fit: raise the ZeRO stage or data size, use the distributed "
    "optimizer or offload.",
    "forward": "Activations do not fit: smaller micro batch, recomputation, sequence parallelism; the first pipeline "
    "stage holds most.",
    "backward": "Gradients and activations do not fit: smaller micro batch, recomputation, sequence parallelism.",
    "optimizer_step": "Lazily created optimizer states do not fit: raise the ZeRO stage, distributed optimizer, "
    "offload.",
}


@dataclass
class Phases:
    """Follow frames and markers, per printing rank."""

    frames: dict[tuple[int, int | None], deque[tuple[str, str]]] = field(default_factory=dict)
    marker: str | None = None
    own: dict[int, str] = field(default_factory=dict)

    def feed(self, line: Line) -> bool:
        """Take one line that may be a frame of a traceback or a marker; True if it could be one."""
        key = (line.source, line.rank)
        frame = _FRAME.match(line.text)
        if frame is not None:
            if key in self.frames or len(self.frames) <= 8192:
                stack = self.frames.setdefault(key, deque(maxlen=64))
                stack.append((frame["file"], frame["function"]))
            return True
        indented = line.text.startswith(("    ", "\t"))
        if indented and key in self.frames and len(line.text) < 240:
            self.frames[key].append(("<code>", line.text.strip()))
        low = line.text.lower()
        for name, trigger, pattern in _MARKERS:
            if any(word in low for word in trigger) and pattern.search(line.text):
                self.marker = None if name == "loaded" else name
                return True
        return indented

    def new_traceback(self, line: Line) -> None:
        """A traceback begins: earlier frames of this rank belong to another one."""
        self.frames.pop((line.source, line.rank), None)

    def at(self, line: Line, steps_seen: bool) -> str | None:
        """The phase of an out-of-memory line."""
        if line.rank is not None and line.rank in self.own:
            return self.own[line.rank]
        stack = self.frames.get((line.source, line.rank))
        if not stack and line.rank is not None:
            stack = self.frames.get((line.source, None))
        named = _from_stack(list(stack)) if stack else None
        if named is not None:
            return named
        if "Cuda failure" in line.full or ("nccl" in line.full.lower() and "reserved by PyTorch" not in line.full):
            return "nccl_init"
        if self.marker in ("training", None):
            return "forward" if steps_seen or self.marker else None
        return self.marker


def _from_stack(stack: list[tuple[str, str]]) -> str | None:
    """Classify by the whole stack: recomputation puts a forward inside a backward, a closure the reverse."""
    names = [function.rsplit(".", 1)[-1] for file, function in stack if file != "<code>"]
    code = [text for file, text in stack if file == "<code>"]
    both = [f"{file} {function}" for file, function in stack if file != "<code>"]
    if any(_LOAD.search(entry) for entry in both):
        return "checkpoint_load"
    if any(_OPT_INIT.search(entry) for entry in [*both, *code]) and not any(name == "train_step" for name in names):
        return "optimizer_init"
    directions = [name for name in names if not _NOT_DIRECTION.match(name)]
    if any(_BACKWARD.match(name) for name in directions) or any(".backward(" in text for text in code):
        return "backward"
    for file, function in reversed([entry for entry in stack if entry[0] != "<code>"]):
        name = function.rsplit(".", 1)[-1]
        if _OPT_STEP.match(name) and _OPT_FILE.search(file):
            return "optimizer_step"
        if _FORWARD.match(name) and not _NOT_DIRECTION.match(name):
            return "forward"
        if name == "__init__" or _BUILD.search(name):
            return "model_build"
    if any("optimizer.step(" in text for text in code):
        return "optimizer_step"
    return None
