"""A scrubbed document says the same of the machine, and nothing of who it is."""

import json
import re

from rackweave.fabric.rails import plan_rails
from rackweave.hardware.document import read_document
from rackweave.hardware.scrub import Scrubber

from tests.support.documents import fabric, reference


def identities(document):
    text = json.dumps(document.as_dict())
    patterns = (
        r"EXAMPLE-[A-Z0-9a-z]+",
        r"(?<![\d.])\d+\.\d+\.\d+\.\d+(?![\d.])",
        r"(?:[0-9a-f]{2}:){5}[0-9a-f]{2}",
        r"GPU-[0-9a-f-]{36}",
    )
    return {match for pattern in patterns for match in re.findall(pattern, text)}


def test_no_identity_is_left():
    document = reference()

    assert not {it for it in identities(document) & identities(Scrubber().document(document)) if "00:00:5e" not in it}
    assert len(identities(Scrubber().document(document))) >= 8 + 8 + 8


def test_the_machine_stays_the_same():
    document = reference()
    scrubbed = Scrubber().document(document)
    block = fabric(rail_subnets=None, management_subnets=None)

    assert read_document(scrubbed.as_dict()) == scrubbed
    assert plan_rails(scrubbed, block).rails == plan_rails(document, block).rails
    assert [len(nic.ports[0].gids) for nic in scrubbed.nics] == [4] * 8


def test_equal_values_stay_equal():
    scrubbed = Scrubber().document(reference())

    for nic in scrubbed.nics:
        assert nic.node_guid == nic.sys_image_guid
        assert nic.ports[0].gids[2].gid == nic.ports[0].gids[3].gid
