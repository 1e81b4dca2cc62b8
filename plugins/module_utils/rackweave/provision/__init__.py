"""What provisioning decides before it changes a node: versions, package sets, consent, QoS values, mounts, runtimes.

Pure: text and plain data in, plain data out. The roles call it through the filters of ``plugins/filter/provision.py``.
"""
