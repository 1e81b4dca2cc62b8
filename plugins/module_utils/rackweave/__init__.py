"""The pure package of Rackweave: standard library only, no I/O outside ``cli``.

It has two addresses (``rackweave`` and Ansible's ``module_utils``), so imports inside it are relative.
"""

__version__ = "0.1.0"
