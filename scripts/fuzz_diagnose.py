"""Coverage-guided fuzzing of everything that reads foreign bytes; needs `pip install atheris` (not a dependency).

python scripts/fuzz_diagnose.py -max_total_time=300
"""

from __future__ import annotations

import sys
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "module_utils"))

with atheris.instrument_imports(include=["rackweave"]):
    from rackweave.errors import RackweaveError
    from rackweave.watch.flight import analyse, read_dump
    from rackweave.watch.scanner import Source
    from rackweave.watch.strikes import from_json
    from rackweave.watch.transport import gate
    from rackweave.watch.verdict import diagnose

KINDS = ("log", "events", "result", "phase", "attempt", "flight")


def one_input(data: bytes) -> None:
    """The first byte chooses the reader; only our own errors may come out."""
    if not data:
        return
    choice, body = data[0] % 9, data[1:]
    try:
        if choice < len(KINDS):
            diagnose([Source("x", body, kind=KINDS[choice])], now="2026-08-02T07:41:00").as_dict()
        elif choice == 6:
            gate(body)
        elif choice == 7:
            dump = read_dump(body)
            analyse({0: dump, 1: dump})
        else:
            from_json(body.decode("utf-8", "replace"))
    except RackweaveError:
        pass


if __name__ == "__main__":
    corpus = Path(__file__).parents[1] / "tests" / "fixtures" / "watch"
    dictionary = [str(path) for path in sorted((corpus / "flight").iterdir())] if len(sys.argv) == 1 else []
    atheris.Setup([*sys.argv, *dictionary], one_input)
    atheris.Fuzz()
