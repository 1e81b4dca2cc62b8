"""What a rank of a job would find, printed as JSON. Runs inside a job step with the node's own Python; stands alone.

step_facts.py SHARED_DIR VENV
"""

import importlib.metadata
import json
import os
import pwd
import re
import resource
import socket
import sys
from pathlib import Path


def limit(kind):
    return [-1 if value == resource.RLIM_INFINITY else value for value in resource.getrlimit(kind)]


def shared_write(directory):
    """Return why the directory of runs cannot be written here, "" if it can; None before the first launch makes it."""
    if not (Path(directory) / "runs").exists():
        return None
    path = Path(directory) / "runs" / f".rackweave-verify-{socket.gethostname()}-{os.getpid()}"
    try:
        path.write_text(socket.gethostname())
        back = path.read_text()
        path.unlink()
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    return "" if back == socket.gethostname() else "another text was read than was written"


def packages(venv):
    """Return package to version; names as PEP 503 normalises them, since wheels spell them either way."""
    path = [str(found) for found in Path(venv).glob("lib/python*/site-packages")]
    found = importlib.metadata.distributions(path=path)
    return {re.sub(r"[-_.]+", "-", it.metadata["Name"]).lower(): it.version for it in found}


def main():
    shm = os.statvfs("/dev/shm")
    facts = {
        "host": os.environ["SLURMD_NODENAME"],
        "user": pwd.getpwuid(os.getuid()).pw_name,
        "memlock": limit(resource.RLIMIT_MEMLOCK),
        "shm_bytes": shm.f_frsize * shm.f_blocks,
        "shared_write": shared_write(sys.argv[1]),
        "packages": packages(sys.argv[2]),
    }
    sys.stdout.write(json.dumps(facts) + "\n")


main()
