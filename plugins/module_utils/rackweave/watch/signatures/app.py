"""Exceptions of user code: whatever ends a traceback and no other table knows."""

from __future__ import annotations

from ..signature import Signature as S

# Exceptions that are the echo of something else, or that belong to another family.
_NOT_APP = (
    r"ChildFailedError|SignalException|Rendezvous\w*|DistBackendError|DistNetworkError|DistStoreError|"
    r"DistError|KeyboardInterrupt|SystemExit|"
    r"CalledProcessError|BrokenPipeError|ConnectionResetError|ConnectionRefusedError|ConnectionError|ConnectionAbort"
    r"edError|EOFError|OutOfMemoryError|c10::|"
    r"GeneratorExit|StopIteration|ProcessRaisedException|ProcessExitedException|TimeoutError|CancelledError|"
    r"ncclRemoteError|nccl\w+Error|ActorDiedError|RayActorError"
)

TABLE = (
    S(
        "fact:ignored_exception",
        "fact:ignored_exception",
        r"Exception ignored in",
        "Exception ignored in: <function _MultiProcessingDataLoaderIter.__del__ at 0x7f>",
    ),
    S(
        "app.exception/python",
        "app.exception",
        r"^(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception|Interrupt|Failure|Exit)(?: \(.{0,40}\))?(?::\s|"
        r":?$)|^(?:Exception|AssertionError)(?::|$)|device-side assert triggered",
        "[rank2]: ValueError: tokenizer returned 0 tokens for document 1822",
        blame="both",
        depth=37,
        unless=r"^(?:[A-Za-z_]\w*\.)*(?:" + _NOT_APP + r")|^\w*Warning\b|gloo/|ProcessGroup|NCCL error|\[c10d\]|"
        r"Timed "
        r"out waiting|store based barrier|TCPStore|Connection (?:reset|"
        r"closed|refused)|communicator was aborted|process group|NCCL "
        r"|failed to pass monitoredBarrier",
    ),
)
