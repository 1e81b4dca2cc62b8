"""The restricted reader of checkpoint metadata, against how different Python versions pickle it."""

import io
import pickle

import pytest
from torch.distributed.checkpoint.metadata import _MEM_FORMAT_ENCODING

from trainer.checkpoint.storage import _MetadataUnpickler
from trainer.errors import StopError


class Attribute:
    """Pickles as a call of getattr, as Python 3.11.0 to 3.11.3 pickle the member of an enumeration."""

    def __init__(self, owner, name):
        self.owner, self.name = owner, name

    def __reduce__(self):
        return getattr, (self.owner, self.name)


def read(value):
    return _MetadataUnpickler(io.BytesIO(pickle.dumps(value))).load()


def test_a_member_pickled_by_attribute_is_read():
    assert (
        read(Attribute(_MEM_FORMAT_ENCODING, "TORCH_CONTIGUOUS_FORMAT")) is _MEM_FORMAT_ENCODING.TORCH_CONTIGUOUS_FORMAT
    )


@pytest.mark.parametrize("name", ["__class__", "mro", "_missing_"])
def test_no_other_attribute_can_be_reached(name):
    with pytest.raises(StopError, match="wants the attribute"):
        read(Attribute(_MEM_FORMAT_ENCODING, name))
