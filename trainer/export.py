"""`python -m trainer.export`: write a checkpoint's weights as Hugging Face safetensors.

A checkpoint of low-rank adapters becomes an adapter directory as PEFT reads it.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from .checkpoint.directory import STATE_FILE, read_small_json
from .checkpoint.storage import RestrictedReader
from .checkpoint.verify import check_published, read_tensor
from .config import LoraConfig, ModelConfig
from .errors import StopError
from .model.adapters import write_adapters
from .model.huggingface import hugging_face_config, scatter_tensor, write_safetensors
from .model.huggingface_check import require_llama_like
from .schema import parse

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
MASTER = "master."


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; return 0, or 64 with one sentence on stderr."""
    values = _parse(arguments)
    try:
        export(values.checkpoint, values.output, values.dtype, values.vocab_size, values.base)
    except (StopError, OSError) as error:
        sys.stderr.write(f"trainer.export: {error}\n")
        return 64
    return 0


def export(checkpoint: Path, output: Path, dtype: str, vocab_size: int | None, base: str | None = None) -> None:
    """Write config.json and safetensors; one whole tensor and one shard are in memory at a time.

    Of adapters only, which stay float32, adapter_config.json names `base`, the model that they belong to.

    Raises:
        StopError: if the checkpoint is damaged, or is of a model that Llama cannot hold.
    """
    check_published(checkpoint)
    state = read_small_json(checkpoint / STATE_FILE)
    model = parse(ModelConfig, state["model"], f"{checkpoint / STATE_FILE}: model")
    require_llama_like(model)
    if state.get("lora"):
        lora = parse(LoraConfig, state["lora"], f"{checkpoint / STATE_FILE}: lora")
        write_adapters(output, _masters(checkpoint), model, lora, base)
        return
    rows = vocab_size or model.vocab_size
    if rows > model.vocab_size:
        raise StopError(f"--vocab-size {rows} is above the model's vocab_size={model.vocab_size}")
    write_safetensors(output, _tensors(checkpoint, model, DTYPES[dtype], rows))
    epsilon = float(state.get("norm_epsilon", 1e-5))
    content = json.dumps(hugging_face_config(model, rows, epsilon, dtype), indent=2)
    (output / "config.json").write_text(content + "\n", encoding="utf-8")


def _masters(checkpoint: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield the whole fp32 weights by our names."""
    stored: dict[str, Any] = RestrictedReader(checkpoint).read_metadata().state_dict_metadata
    for key in sorted(name for name in stored if name.startswith(MASTER)):
        yield key.removeprefix(MASTER), read_tensor(checkpoint, key, stored[key])


def _tensors(checkpoint: Path, model: ModelConfig, dtype: torch.dtype, rows: int) -> Iterator[tuple[str, Tensor]]:
    for name, whole in _masters(checkpoint):
        kept = whole[:rows] if name in ("embedding.word_embeddings.weight", "output_layer.weight") else whole
        for theirs, part in scatter_tensor(name, kept, model):
            yield theirs, part.to(dtype).clone()


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m trainer.export", description=__doc__)
    parser.add_argument("--checkpoint", type=Path, required=True, metavar="DIR", help="a published step_N directory")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--dtype", choices=sorted(DTYPES), default="bfloat16")
    parser.add_argument("--base", metavar="NAME", help="of adapters: name or directory of the model they belong to")
    parser.add_argument("--vocab-size", type=int, help="drop the rows that pad the vocabulary")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
