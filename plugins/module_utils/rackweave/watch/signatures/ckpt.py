"""Checkpoints: Megatron-LM, DeepSpeed, torch DCP, safetensors, NeMo and others."""

from __future__ import annotations

from ..signature import Signature as S

# A save in the words of several trainers, and that it has not ended.
_SAVE = r"\w*(?:save|saving|checkpoint|ckpt|snapshot)\w*(?:\(\))?"
_OPEN = (
    r"(?:still|(?:not|n't)(?: yet| been)* (?:finish\w*|complete\w*|finali[sz]\w*|done|return\w*|persist\w*)|"
    r"in[- ](?:flight|progress)|running|pending|outstanding|unfinished|ongoing)"
)

# A directory that a trainer names after a step: Megatron, DeepSpeed, DCP's and Hugging Face's examples.
_NUMBERED = r"(?:iter_\d+|(?:global_)?step[_=-]?\d+|checkpoint-\d+)"

TABLE = (
    S(
        "ckpt.incomplete/metadata",
        "ckpt.incomplete",
        r"(?:No such file or directory|not found|does not exist|missing).{0,200}(?:/\.metadata\b|\.distcp\b|"
        r"/metadata\.json\b)|"
        r"(?:\.metadata\b|\.distcp\b|\bmetadata\.json\b|\bcommon\.pt\b).{0,80}(?:No such file|not found|does not "
        r"exist|missing)|"
        r"AssertionError: metadata is None|(?:not|n't) (?:contain|have|hold) a (?:valid|complete|distributed) "
        r"checkpoint|"
        r"[Cc](?:an't|annot) find a valid checkpoint at |Object shard \S+ not found|Missing loaded item shard|"
        r"Missing (?:object )?shards after fully parallel loading|"
        r"is not a (?:distributed|complete|valid) checkpoint|(?i:checkpoint\b.{0,160}\bis incomplete|incomplete "
        r"checkpoint\b)",
        "[rank0]: FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/run1/iter_0012000/.metadata'",
        depth=19,
        unless=r"(?i)skipp(?:ed|ing)|ignoring|falling back|removed incomplete|clean(?:ed|ing) up",
    ),
    S(
        "ckpt.incomplete/deepspeed",
        "ckpt.incomplete",
        r"(?:No such file or directory|does not exist|not found).{0,200}(?:_model_states\.pt|_optim_states\.pt|"
        r"layer_\d+-model|model_optim_rng\.pt|distrib_optim\.pt)|"
        r"(?:_model_states\.pt|_optim_states\.pt|model_optim_rng\.pt|distrib_optim\.pt).{0,80}(?:does not "
        r"exist|not found|missing)",
        "FileNotFoundError: [Errno 2] No such file or directory: '/ckpt/global_step1000/mp_rank_00_model_states.pt'",
        depth=19,
    ),
    S(
        "ckpt.incomplete/truncated",
        "ckpt.incomplete",
        r"PytorchStreamReader failed.{0,60}(?:central directory|invalid header|archive is corrupted|zip "
        r"archive)|unexpected EOF, expected \d+ more bytes|"
        r"EOFError: Ran out of input|SafetensorError(?!.*(?:[^e]serializ|IoError))|MetadataIncompleteBuffer|file "
        r"not fully covered|pickle "
        r"data was truncated",
        "RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory",
        depth=19,
    ),
    S(
        "ckpt.missing_key/torch",
        "ckpt.missing_key",
        r"Missing key\(s\) in state_dict|Missing key in checkpoint state_dict|(?i:missing keys?\b.{0,60}\b(?:checkpo"
        r"int|state[_ ]dict))|"
        r"(?i:(?:keys?|tensors?|parameters?)\b.{0,120}\b(?:not (?:found )?in (?:the )?checkpoint|missing "
        r"(?:from|in) (?:the )?checkpoint))|"
        r"(?i:[\w.]+\.\w+['\"]? (?:was |is )?not (?:found |present )?in (?:the )?(?:checkpoint|state[_ ]dict))|"
        r"from model not in state dict|(?i:\bmissing[ _]keys?\b(?: "
        r"\([^)]{0,40}\))?['\"]?\s*[:=]\s*[\[{(]?\s*['\"]\w)|"
        r"parameter group that doesn't match|different number of parameter groups|KeyError: '.*' not (?:found "
        r")?in (?:the )?(?:checkpoint|state_dict)",
        'RuntimeError: Error(s) in loading state_dict for GPTModel: Missing key(s) in state_dict: "decoder.layers.'
        '0.x".',
        depth=19,
        unless=r"(?i)strict=False|missing keys?:? ?(?:\[\]|none|0\b)|<All keys matched|ignor(?:ed|ing)|_extra_state",
    ),
    S(
        "ckpt.missing_key/header",
        "ckpt.missing_key",
        r"Error\(s\) in loading state_dict",
        "[rank0]: RuntimeError: Error(s) in loading state_dict for LlamaForCausalLM:",
        depth=36,
    ),
    S(
        "ckpt.reshard_unsupported/sizes",
        "ckpt.reshard_unsupported",
        r"checkpoint being loaded used a DP world size|Automatic adjustment of ZeRO|"
        r"(?:tensor_model_parallel_size|pipeline_model_parallel_size|data_parallel_size|context_parallel_size|"
        r"expert_model_parallel_size|virtual_pipeline\w*) value from checkpoint \(.*\) is not equal|"
        r"\(TP, ?PP(?:, ?DP|, ?encoder\w*)*\) mismatch|size mismatch for \S+: copying a param|"
        r"Global shape mismatch for loaded|"
        r"(?i:reshard(?:ing)?\b.{0,80}\b(?:not supported|unsupported|impossible|cannot))|(?i:(?:cannot|"
        r"unable to|not supported).{0,60}\breshard)|"
        r"(?i:checkpoint\b.{0,120}\b(?:different|another) (?:TP|PP|DP|tensor|pipeline|data|world|parallel)"
        r"\w*.{0,80})(?i:not supported|unsupported|cannot|does not match|mismatch)|"
        r"(?i:(?:tensor|pipeline|data|expert|context)[ _-](?:model[ _-])?parallel[ _-]size[ =:(]+\d+.{0,60}"
        r"\b(?:into|but|current|with)\b.{0,60}parallel[ _-]size[ =:(]+\d+)|"
        r"(?i:load\w* checkpoint.{0,80}world size \d+.{0,60}(?:but|current|with).{0,40}\d+)",
        "deepspeed.runtime.zero.utils.ZeRORuntimeException: The checkpoint being loaded used a DP world "
        "size of 8 but the "
        "current world size is 16.",
        depth=19,
    ),
    # DCP prints every rank's failure on the coordinator; the key view lists whose they are.
    S(
        "fact:gathered_failures",
        "fact:gathered_failures",
        r"CheckpointException ranks: ?dict_keys\(\[(?P<failed>\d+(?:, ?\d+)*)\]\)",
        "[rank0]: torch.distributed.checkpoint.api.CheckpointException: CheckpointException ranks:dict_keys([5])",
    ),
    S(
        "ckpt.write_failed/stream",
        "ckpt.write_failed",
        r"PytorchStreamWriter failed writing|unexpected pos \d+ vs \d+|(?i:(?:failed|unable|error|could "
        r"not)(?: to)? (?:sav|writ)\w* (?:the |a |async |distributed |model )*checkpoint)|"
        r"(?i:checkpoint (?:save|write|saving|writing|upload|commit|flush|sync)\b.{0,60}\b(?:failed|error))|"
        r"(?i:(?:saving|writing)"
        r" (?:the )?checkpoint\b.{0,80}\bfailed)|basic_ios::clear: iostream error|"
        r"SafetensorError: Error while serializing|kind: StorageFull",
        "[rank5]: RuntimeError: [enforce fail at inline_container.cc:471] . PytorchStreamWriter failed "
        "writing file data/176: "
        "file write failed",
        blame="rank",
        depth=21,
        unless=r"(?i)will (?:be )?retr|retrying|retry succeeded|without failure|0 failed",
    ),
    S(
        "ckpt.write_failed/space",
        "ckpt.write_failed",
        r"(?i)no space left on device",
        "[rank5]: OSError: [Errno 28] No space left on device: '/ckpt/run1/iter_0012500'",
        blame="rank",
        depth=21,
        unless=r"/dev/shm|shm|/torch_\d|/tmp/|/var/|\.cache|/wandb|triton|inode|ibv_|NCCL",
    ),
    S(
        "ckpt.tracker_inconsistent/megatron",
        "ckpt.tracker_inconsistent",
        r"in the metadata while max iteration across the ranks|ERROR: Invalid metadata file|"
        r"error parsing metadata file|"
        # The iteration or tag in the name of the directory came out of the tracker.
        r"[Cc]heckpoint(?: directory)? \S*/"
        + _NUMBERED
        + r"/?['\",]? (?:does not exist|is missing|was not found)|No such file or directory: '\S*/"
        + _NUMBERED
        + r"/?'|checkpoint "
        r"tag(?: name)? .* is not consistent across all ranks|"
        r"(?i:(?:tracker|latest(?:_checkpointed_iteration(?:\.txt)?)?)(?: file)?\b.{0,80}\b(?:points? "
        r"to|names?|says|refers? to|lists?)\b.{0,120}\b(?:but|does not exist|missing|not found|while|unloadable)"
        r")|"
        r"(?i:loaded (?:iteration|step|tag) \S+.{0,60}\b(?:but|instead of|while|expected|requested)\b)",
        "WARNING: on rank 11 found iteration 15 in the metadata while max iteration across the ranks is 4160813071",
        depth=18,
        unless=r"(?i)does not exist.{0,12}\b(?:creat\w+|skipp\w+|ignor\w+|nothing)\b|will (?:be )?creat",
    ),
    S(
        "ckpt.silent_fresh_start/megatron",
        "ckpt.silent_fresh_start",
        r"(?i:\bno checkpoints?\b.{0,40}\bfound\b.{0,60}\brandom)|could not find the metadata file|will not load "
        r"any checkpoints and will start from random|Unable "
        r"to find latest file at|"
        r"(?i:(?:start(?:ing)?|continu(?:e|ing)|train(?:ing)?) (?:from|with) (?:random|randomly initiali[sz]ed)"
        r" (?:init\w*|weights|parameters).{0,80}(?:checkpoint|--load|resume))|"
        r"(?i:(?:checkpoint|resume).{0,120}(?:not found|missing|no such).{0,60}(?:random|from scratch|"
        r"step 0|iteration 0))",
        "WARNING: could not find the metadata file /ckpt/run1/latest_checkpointed_iteration.txt",
        depth=19,
    ),
    S(
        "fact:fresh_start",
        "fact:fresh_start",
        r"(?i)(?:training|starting|start) from scratch|no checkpoints? (?:was |were )?found|starting from "
        r"(?:iteration|step) 0\b",
        "No checkpoint found in /ckpt/run1, training from scratch",
    ),
    S(
        "fact:async_scheduled",
        "fact:async_scheduled",
        r"scheduled an async checkpoint save at iteration\s+(?P<iteration>\d+)",
        "  [2026-08-02 12:00:01.210000] scheduled an async checkpoint save at iteration   12000 to /ckpt/run1",
    ),
    S(
        "fact:async_saved",
        "fact:async_saved",
        r"successfully saved checkpoint from iteration\s+(?P<iteration>\d+)",
        " [2026-08-02 12:01:07.733000] successfully saved checkpoint from iteration   12000 to /ckpt/run1",
    ),
    S(
        "ckpt.async_overlap/text",
        "ckpt.async_overlap",
        r"(?i)\b(?:second|another|new|next) (?:async\w* )?(?:checkpoint )?save\b.{0,80}\b(?:in[- ](?:flight|"
        r"progress)|"
        r"still running|still active|outstanding)|"
        r"\b(?:previous|prior|earlier|another|preceding|unfinali[sz]ed|pending|outstanding|last async\w*)\b.{0,30}\b"
        + _SAVE
        + r"\b.{0,80}\b"
        + _OPEN
        + r"|\blast (?:save|saving|snapshot|checkpoint save)\b.{0,80}\b"
        + _OPEN
        + r"|\bsave\b.{0,30}\bskipped\b.{0,60}\b"
        + _OPEN
        + r"|unfinali[sz]ed (?:async\w* )?(?:checkpoint|save)|"
        r"(?:checkpoint|save|saving)s?\b.{0,60}\b(?:already|still)\b.{0,30}\b(?:in[- ](?:flight|progress)|running)|"
        r"\basync\w* (?:checkpoint )?save\b.{0,60}\b"
        + _OPEN
        + r"\b.{0,30}\b(?:when|while|before|as)\b.{0,40}\b(?:scheduled|requested|start\w*|next|due|beg[iau]n\w*)\b|"
        r"\bsave\b.{0,30}\bwhile (?:another|the (?:previous|last))\b.{0,60}\b"
        + _OPEN
        + r"|async\w* (?:checkpoint |save )*saves? (?:might be |may be |are |is )*not (?:yet )?finali[sz]ed|"
        r"(?:wait\w* (?:for|on)|blocked (?:on|by))\b.{0,20}\b(?:previous|last|prior|pending|earlier) "
        r"(?:async\w* )?(?:checkpoint|save)|async\w* (?:checkpoint |save )*saves? overlap|"
        r"skipp\w+ (?:the |this )?(?:checkpoint|save).{0,60}(?:in[- ](?:flight|progress)|still|another|previous)|"
        r"skips? (?:the |this )?(?:checkpoint|sav\w+)\b.{0,60}\b(?:since|because|as) it is (?:still )?saving\b",
        "WARNING: a previous async checkpoint save is still in progress, skipping the save at iteration 1200",
        depth=80,
        unless=r"(?i)evaluation|no (?:previous|async)",
    ),
)
