"""Documents that were collected on real machines (`rackweave nccl --collect NAME --scrub`)."""

import json
from pathlib import Path

import pytest
from rackweave.hardware.document import read_document

MEASURED = sorted((Path(__file__).parents[3] / "fixtures/nodes/measured").glob("*.json"))


@pytest.mark.skipif(not MEASURED, reason="no document of a real machine is recorded yet")
@pytest.mark.parametrize("path", MEASURED, ids=lambda path: path.stem)
def test_a_document_of_a_real_machine_is_complete(path):
    text = path.read_text()
    document = read_document(json.loads(text))

    assert document.origin == "measured"
    assert document.collection.gpu_source in ("nvml", "nvidia-smi")
    assert document.gpus
    for gpu in document.gpus:
        assert gpu.bdf == gpu.pcie_path[-1]
        assert gpu.uuid.startswith("GPU-00000000-")
        assert gpu.memory_bytes > 1 << 30
    assert document.versions.nvidia_driver == document.versions.nvidia_userspace
    assert len(text) < 20_000
