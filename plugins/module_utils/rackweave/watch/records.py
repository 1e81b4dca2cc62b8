"""Messages inside JSON lines: container runtimes, the journal, Kubernetes collectors, structured loggers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

_MESSAGE = ("log", "MESSAGE", "message", "msg", "text", "line")
_TIME = ("time", "@timestamp", "timestamp", "ts", "asctime", "_SOURCE_REALTIME_TIMESTAMP")
_HOST = ("_HOSTNAME", "hostname", "host", "node", "nodeName", "node_name")
_RANK = ("rank", "global_rank", "RANK")
# A traceback in one record is long, but not endless.
MAX_LINES = 400


@dataclass(frozen=True)
class Record:
    """The lines of one message and what its record says of them; ``time`` is text as it stands."""

    lines: tuple[str, ...]
    host: str | None = None
    rank: int | None = None
    time: str | None = None
    kernel: bool = False
    level: str = ""


def read_record(full: str, nested: bool = False) -> Record | None:
    """Take a JSON line apart; None if it is none, or if it is the record of a step, which is read as a whole."""
    if not full.startswith("{") or not full.rstrip().endswith("}"):
        return None
    if not any(f'"{key}"' in full for key in _MESSAGE):
        return None
    try:
        record = json.loads(full)
    except (ValueError, RecursionError):
        return None
    message = next((record[key] for key in _MESSAGE if isinstance(record.get(key), str)), None)
    if message is None or "loss" in record:
        return None
    inner = None if nested else read_record(message.strip(), nested=True)
    return Record(
        lines=inner.lines if inner else tuple(message.rstrip("\n").split("\n")[:MAX_LINES]),
        host=(inner.host if inner else None) or _host(record),
        rank=inner.rank if inner and inner.rank is not None else _rank(record),
        time=(inner.time if inner else None)
        or next((record[k] for k in _TIME if isinstance(record.get(k), str)), None),
        level=(inner.level if inner else "") or _level(record),
        kernel=record.get("_TRANSPORT") == "kernel" or record.get("SYSLOG_IDENTIFIER") == "kernel",
    )


def _host(record: Mapping[str, object]) -> str | None:
    places = [record, *(record[key] for key in ("kubernetes", "labels", "host") if isinstance(record.get(key), dict))]
    for place in places:
        for key in (*_HOST, "name"):
            value = place.get(key) if isinstance(place, dict) else None
            if isinstance(value, str) and value and (key != "name" or place is not record):
                return value
    return None


def _level(record: Mapping[str, object]) -> str:
    value = record.get("level", record.get("severity", record.get("levelname")))
    return value if isinstance(value, str) and value.lower() not in ("info", "debug", "trace", "notice") else ""


def _rank(record: Mapping[str, object]) -> int | None:
    for key in _RANK:
        value = record.get(key)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
        if isinstance(value, str) and value.isdigit() and len(value) < 9:
            return int(value)
    return None
