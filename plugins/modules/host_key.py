"""Documentation of the action plugin of the same name, which runs on the controller."""

DOCUMENTATION = r"""
---
module: host_key
short_description: Replace the SSH host key of one rebuilt node in the known_hosts file of the inventory
description:
  - Compares the keys that the node presents with those the file has of it. Equal keys change nothing; a new key is
    shown with its fingerprint and written only with consent. No other host's lines are touched.
options:
  host: {description: "Inventory name of the node.", type: str, required: true}
  address: {description: "Name or address that ssh connects to.", type: str, required: true}
  port: {description: "Port of its SSH server.", type: int, default: 22}
  known_hosts: {description: "File; else the one named in O(ssh_arguments), or the user's.", type: str, default: ""}
  ssh_arguments: {description: "Arguments of ssh that the inventory sets.", type: str, default: ""}
  expected:
    description: "Fingerprint (SHA256:...) or public key that is known from elsewhere, such as the node's console."
    type: str
    default: ""
  accept_ok: {description: "Consent to the key that the node presents.", type: bool, default: false}
  timeout_s: {description: "Seconds to wait for the SSH server.", type: int, default: 30}
attributes:
  check_mode: {support: full, description: Says what would be replaced.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Check the host key of the node
  rackweave.cluster.host_key:
    host: gpu02
    address: 192.0.2.22
    expected: SHA256:abc
"""
RETURN = r"""
fingerprints: {description: Fingerprints that the node presents., returned: success, type: list, elements: str}
file: {description: The known_hosts file., returned: success, type: str}
"""
