"""Errors that carry one clear sentence for the user: they name the quantities involved and the way out."""


class RackweaveError(Exception):
    """Base of every error that a user can cause and mend; ``str()`` of it is shown as it is."""


class PlanError(RackweaveError):
    """A parallel layout, a batch or a model description that cannot work."""


class DocumentError(RackweaveError):
    """A document (node, plan, run file) that does not follow its schema."""


class ParseError(RackweaveError):
    """Output of a tool or a file of the system that cannot be read without guessing."""


class FabricError(RackweaveError):
    """A network that cannot carry the job as described."""


class ProvisionError(RackweaveError):
    """A node change that would not work or must not happen: packages, versions, mounts, runtimes, consent."""
