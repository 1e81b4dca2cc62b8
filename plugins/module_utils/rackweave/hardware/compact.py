"""The shorter file form of a node document: what most parts of a node share is written once.

A document stays under `LIMIT_BYTES`, so that a fleet of them can be read and reviewed. Where the plain form of a
machine with many devices is larger, its file has a key ``common`` with one object each for ``gpus``, ``nics``,
``ports`` and ``interfaces``: a part that lacks a key has the common value; one that states the key, null included, has
its own. GID rows and PCIe paths are then texts. Nothing is left out, and `expanded` gives the plain form back.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ..errors import DocumentError
from .node import NodeDocument, as_json

LIMIT_BYTES = 20_000
PARTS = ("gpus", "nics", "interfaces")
COMMON = (*PARTS, "ports")
# What tells the parts of a list apart, and the lists within them, is never shared.
_OWN = {"gpus": {"index"}, "nics": {"device", "ports"}, "interfaces": {"name"}, "ports": {"port"}}


def document_text(document: NodeDocument) -> str:
    """Return the content of a document's file: the plain form where it is small enough, else the shorter one."""
    values = document.as_dict()
    text = as_json(values)
    return text if len(text.encode()) < LIMIT_BYTES else _lines(compacted(values))


def compacted(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a document's plain values in the shorter form."""
    head = {key: values[key] for key in ("schema", "host", "origin")}
    result: dict[str, Any] = {**head, "common": {}, **values}
    result.update({name: [dict(part) for part in values[name]] for name in PARTS})
    for nic in result["nics"]:
        nic["ports"] = [{**port, "gids": _gid_texts(port)} for port in nic.get("ports", ())]
    for part in (*result["gpus"], *result["nics"]):
        if part.get("pcie_path"):
            part["pcie_path"] = _path_text(part["pcie_path"])
    lists = {name: result[name] for name in PARTS}
    lists["ports"] = [port for nic in result["nics"] for port in nic["ports"]]
    result["common"] = {name: _hoist(parts, _OWN[name]) for name, parts in lists.items()}
    return result


def expanded(mapping: object) -> object:
    """Return the plain form of parsed JSON; what is in it already, or no document at all, is returned as it is.

    Raises:
        DocumentError: if ``common`` is not what this module writes.
    """
    if not isinstance(mapping, Mapping) or "common" not in mapping:
        return mapping
    common = mapping["common"]
    if not isinstance(common, Mapping) or not all(isinstance(shared, Mapping) for shared in common.values()):
        raise DocumentError(f"node document: common={common!r} must be an object of objects")
    unknown = sorted(set(common) - set(COMMON))
    if unknown:
        raise DocumentError(
            f"node document: common has unknown key(s) {', '.join(unknown)}; known: {', '.join(COMMON)}"
        )
    result = {key: value for key, value in mapping.items() if key != "common"}
    for name in PARTS:
        result[name] = _each(mapping.get(name), lambda part, name=name: _plain_part(name, part, common))  # type: ignore[misc]
    return result


def _hoist(parts: list[dict[str, Any]], own: set[str]) -> dict[str, Any]:
    """Take the most common value of each key out of the parts and return those values."""
    shared: dict[str, str] = {}
    for key in sorted({key for part in parts for key in part} - own):
        text, count = Counter(json.dumps(part.get(key)) for part in parts).most_common(1)[0]
        if count > 1 and count * 2 > len(parts) and text != "null":
            shared[key] = text
    for part in parts:
        for key, text in shared.items():
            if json.dumps(part.setdefault(key, None)) == text:
                del part[key]
        for key in [key for key, value in part.items() if key not in shared and value in (None, [])]:
            del part[key]
    return {key: json.loads(text) for key, text in shared.items()}


def _lines(values: Mapping[str, Any]) -> str:
    """Return JSON with one line for each part: indentation would be a fifth of the file."""
    lines = []
    for key, value in values.items():
        if key in PARTS:
            parts = ",\n".join("  " + _flat(part) for part in value)
            lines.append(f' "{key}": [\n{parts}\n ]' if value else f' "{key}": []')
        else:
            lines.append(f' "{key}": {_flat(value)}')
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _flat(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


def _plain_part(name: str, part: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    result = {**common.get(name, {}), **part}
    if isinstance(result.get("pcie_path"), str):
        result["pcie_path"] = _path(result["pcie_path"])
    if name == "nics":
        result["ports"] = _each(result.get("ports"), lambda port: _plain_port(port, common))
    return result


def _plain_port(port: Mapping[str, Any], common: Mapping[str, Any]) -> dict[str, Any]:
    result = {**common.get("ports", {}), **port}
    if isinstance(result.get("gids"), (list, tuple)):
        result["gids"] = [_gid(row) if isinstance(row, str) else row for row in result["gids"]]
    return result


def _each(values: object, change: Callable[[Mapping[str, Any]], object]) -> object:
    """Change each object of a list; what is no list or no object is left to the reader, which refuses it."""
    if not isinstance(values, (list, tuple)):
        return values
    return [change(value) if isinstance(value, Mapping) else value for value in values]


def _gid_texts(port: Mapping[str, Any]) -> list[object]:
    return [_gid_text(row) or row for row in port.get("gids", ())]


def _gid_text(row: Mapping[str, Any]) -> str | None:
    """Return a row as text, None where the text would not say all of it."""
    plain = (
        row.get("type")
        and row["gid"]
        and row.get("netdev") is None
        and row["index"] >= 0
        and not set(row["gid"]) & set(" \t")
    )
    return f"{row['index']} {row['gid']} {row['type']}" if plain else None


def _gid(text: str) -> dict[str, object]:
    index, _, rest = text.partition(" ")
    gid, _, kind = rest.partition(" ")
    if not (index.isascii() and index.isdigit()) or not gid or not kind:
        raise DocumentError(f"node document: GID row {text!r} must be like '3 ::ffff:192.0.2.1 RoCE v2'")
    return {"index": int(index), "gid": gid, "type": kind}


def _path_text(path: Iterable[str]) -> str:
    """Return a path with its domain said once: ``pci0000:15 15:01.0 17:00.0``."""
    steps = list(path)
    domain = steps[0][len("pci") :].split(":")[0] + ":" if steps else ""
    return " ".join(step[len(domain) :] if step.startswith(domain) else step for step in steps)


def _path(text: str) -> list[str]:
    steps = text.split()
    domain = steps[0][len("pci") :].split(":")[0] if steps else ""
    return [step if step.startswith("pci") or step.count(":") > 1 else f"{domain}:{step}" for step in steps]
