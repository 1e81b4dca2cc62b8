"""Shared file systems as values: mount table lines, systemd unit names, NVMe-oF targets and Lustre striping."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import cast

from ..errors import ProvisionError

# Options that a shared file system gets when the operator names none. `_netdev` and `nofail` keep a node bootable while
# the server is away; `hard` makes NFS wait instead of handing an I/O error to the trainer in the middle of a save.
_DEFAULT_OPTIONS = {
    "nfs": "vers=4.2,hard,noatime,nconnect=8,_netdev,nofail",
    "nfs4": "vers=4.2,hard,noatime,nconnect=8,_netdev,nofail",
    "lustre": "flock,noatime,_netdev,nofail",
    "xfs": "noatime,_netdev,nofail",
    "ext4": "noatime,_netdev,nofail",
}
TYPES = (*_DEFAULT_OPTIONS, "gpfs")
_MOUNT_KEYS = {"path", "type", "source", "options"}
_SOURCES = {
    "nfs": re.compile(r"^(\[[0-9a-fA-F:]+\]|[^\s:/]+):/\S*$"),
    "lustre": re.compile(r"^[^\s]+@[a-z0-9]+(?:[:,][^\s]+@[a-z0-9]+)*:/\S+$"),
}
_MOST_NAMED = 16
_WORD = re.compile(r"[^\s]+$")
_NVME_KEYS = {"transport", "address", "port", "subsystem"}
_DIRECTORY_KEYS = {"path", "owner", "group", "mode", "stripe"}
_MODE = re.compile(r"^0?[0-7]{3,4}$")
_SIZE = re.compile(r"^\d+[KMG]?$")


def mounts(rows: Sequence[Mapping[str, object]]) -> list[dict[str, str]]:
    """Return the mounts with their options filled in, ordered so that a parent comes before what lies below it.

    Raises:
        ProvisionError: naming the mount and what is wrong with it, or the path that two mounts claim.
    """
    result = []
    for row in rows:
        result.append(_mount(row))
    paths = [mount["path"] for mount in result]
    twice = sorted({path for path in paths if paths.count(path) > 1})
    if twice:
        raise ProvisionError(f"shared_storage_mounts: {', '.join(twice)} is the path of more than one mount")
    return sorted(result, key=lambda mount: mount["path"])


def _mount(row: Mapping[str, object]) -> dict[str, str]:
    unknown = sorted(set(row) - _MOUNT_KEYS)
    missing = sorted({"path", "type", "source"} - set(row))
    if unknown or missing:
        complaint = f"unknown key {', '.join(unknown)}" if unknown else f"no {', '.join(missing)}"
        raise ProvisionError(f"shared_storage_mounts: {dict(row)!r} has {complaint}")
    path, kind, source = str(row["path"]), str(row["type"]), str(row["source"])
    if kind not in TYPES:
        raise ProvisionError(f"shared_storage_mounts: type {kind!r} of {path} is none of {', '.join(TYPES)}")
    if not re.match(r"^/[^\s,]+$", path) or path != "/" + path.strip("/") or "/../" in path + "/":
        raise ProvisionError(f"shared_storage_mounts: {path!r} is not a plain absolute path")
    form = _SOURCES.get("nfs" if kind == "nfs4" else kind)
    if re.search(r"\s", source) or not source or (form is not None and not form.match(source)):
        raise ProvisionError(f"shared_storage_mounts: source {source!r} of {path} is not of the form that {kind} takes")
    return {"path": path, "type": kind, "source": source, "options": _options(row, kind, path)}


def _options(row: Mapping[str, object], kind: str, path: str) -> str:
    """Return the mount options as one word: a second one would be another field of the mount table."""
    value = row.get("options") or None
    parts = value if isinstance(value, (list, tuple)) else [value or _DEFAULT_OPTIONS.get(kind, "")]
    options = ",".join(str(part) for part in parts)
    readable = value is None or isinstance(value, (str, list, tuple))
    if not readable or re.search(r"\s", options) or (options and "" in options.split(",")):
        raise ProvisionError(
            f"shared_storage_mounts: options {value!r} of {path} are neither a list nor one text with commas and "
            "without spaces"
        )
    return options


def fstab_lines(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return the lines of ``/etc/fstab``; GPFS is left out, because ``mmmount`` keeps its own table."""
    return [f"{m['source']} {m['path']} {m['type']} {m['options']} 0 0" for m in mounts(rows) if m["type"] != "gpfs"]


def mounted_wrongly(wanted: Mapping[str, str], table: str) -> str | None:
    """Return what is wrong with a mount: ``"absent"``, a sentence, or ``None`` if it is right.

    Args:
        wanted: one element of :func:`mounts`.
        table: text of ``/proc/mounts``; the last mount of a path is the visible one.
    """
    visible = None
    for line in table.splitlines():
        fields = line.split()
        if len(fields) >= 4 and _unescape(fields[1]) == wanted["path"]:
            visible = (_unescape(fields[0]), fields[2])
    if visible is None:
        return "absent"
    source, kind = visible
    same_kind = kind == wanted["type"] or {kind, wanted["type"]} == {"nfs", "nfs4"}
    # The kernel shows an NFS directory without the slash at its end.
    if same_kind and (source.rstrip("/") == wanted["source"].rstrip("/") or wanted["type"] == "gpfs"):
        return None
    return f"{wanted['path']} is mounted from {source} ({kind}), wanted {wanted['source']} ({wanted['type']})"


def absent_mounts(wanted: Sequence[Mapping[str, str]], table: str) -> list[str]:
    """Return the paths of mounts that are wanted and not there; see :func:`mounted_wrongly`."""
    return [mount["path"] for mount in wanted if mounted_wrongly(mount, table) == "absent"]


def directories_ready(rows: Sequence[Mapping[str, object]], absent: Sequence[str]) -> bool:
    """Return whether no directory lies below a mount that is not there: it would be made on the node's own disk."""
    return not any(f"{row['path']}/".startswith(f"{path}/") for row in rows for path in absent)


def _unescape(field: str) -> str:
    """Return a field of /proc/mounts with its octal escapes (``\\040`` for a space) resolved."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), field)


def check_same_view(submitted: str, seen: Mapping[str, str | None], submit_host: str, path: str) -> list[str]:
    """Return the hosts, if each reads in a file what the submit host wrote into it.

    Args:
        submitted: text of the file on the submit host.
        seen: host to the text of the file there; ``None`` where there is no such file.
        submit_host: its name.
        path: of the file.

    Raises:
        ProvisionError: naming the hosts that have another file system there, or none.
    """
    absent = sorted(host for host, text in seen.items() if text is None)
    other = sorted(host for host, text in seen.items() if text is not None and text != submitted)
    if absent or other:
        parts = [f"{_few(absent)} cannot read it"] if absent else []
        parts += [f"{_few(other)} read another one"] if other else []
        raise ProvisionError(
            f"{submit_host}, which submits the jobs, wrote {path}, and {' and '.join(parts)}: mount one file system on "
            "all of them (shared_storage_mounts in group_vars/all, then provision), or correct training_job_shared_dir"
        )
    return sorted(seen)


def _few(hosts: Sequence[str]) -> str:
    more = len(hosts) - _MOST_NAMED
    return ", ".join(hosts[:_MOST_NAMED]) + (f" and {more} more" if more > 0 else "")


def discovery_lines(rows: Sequence[Mapping[str, object]]) -> list[str]:
    """Return lines of ``/etc/nvme/discovery.conf`` for the NVMe-oF targets.

    Each row has ``transport`` (``rdma`` or ``tcp``), ``address``, optionally ``port`` (4420) and ``subsystem``.
    """
    lines = []
    for row in rows:
        unknown = sorted(str(key) for key in set(row) - _NVME_KEYS)
        if unknown or row.get("transport") not in ("rdma", "tcp") or not _WORD.match(str(row.get("address") or "")):
            raise ProvisionError(
                f"shared_storage_nvme_targets: {dict(row)!r} needs transport (rdma or tcp) and address, and knows "
                f"{', '.join(sorted(_NVME_KEYS))}"
            )
        port = str(row.get("port", 4420))
        if not port.isdecimal() or not 0 < int(port) < 65536 or not _WORD.match(str(row.get("subsystem") or "none")):
            raise ProvisionError(
                f"shared_storage_nvme_targets: port {port!r} of {row['address']} must be a number up to 65535, and a "
                "subsystem has no spaces"
            )
        line = f"--transport={row['transport']} --traddr={row['address']} --trsvcid={port}"
        lines.append(line + (f" --nqn={row['subsystem']}" if row.get("subsystem") else ""))
    return lines


def directories(rows: Sequence[Mapping[str, object]]) -> list[dict[str, object]]:
    """Return the directories, if each can be made as it is written.

    Raises:
        ProvisionError: naming the directory and what is wrong with it.
    """
    for row in rows:
        if not isinstance(row, Mapping) or set(row) - _DIRECTORY_KEYS or "path" not in row:
            raise ProvisionError(
                f"shared_storage_directories: {row!r} must have path, and may have "
                f"{', '.join(sorted(_DIRECTORY_KEYS - {'path'}))}"
            )
        path, mode = str(row["path"]), row.get("mode", "0755")
        if not re.match(r"^/[^\s]+$", path) or "/../" in path + "/":
            raise ProvisionError(f"shared_storage_directories: {path!r} is not a plain absolute path below /")
        if not isinstance(mode, str) or not _MODE.match(mode):  # 755 without quotes would be 01363
            raise ProvisionError(
                f"shared_storage_directories: mode {mode!r} of {path} must be octal digits in quotes, such as '0755'"
            )
        if "stripe" in row:
            stripe_arguments(cast("Mapping[str, object]", row["stripe"]))
    return [dict(row) for row in rows]


def stripe_arguments(stripe: Mapping[str, object]) -> list[str]:
    """Return the arguments of ``lfs setstripe`` for a checkpoint directory.

    Keys: ``count`` (-1 is all targets) and ``size`` (``16M``). Many ranks write one large file each, so a count of -1
    suits few ranks; with as many ranks as targets, 1 avoids contention.

    Raises:
        ProvisionError: for another key, or a value that ``lfs`` would refuse.
    """
    if not isinstance(stripe, Mapping) or set(stripe) - {"count", "size"}:
        raise ProvisionError(f"shared_storage_directories: a stripe has count and size, not {stripe!r}")
    count, size = stripe.get("count", -1), str(stripe.get("size", "16M"))
    if isinstance(count, bool) or not isinstance(count, int) or count < -1 or count == 0:
        raise ProvisionError(f"shared_storage: stripe count {count!r} is neither -1 nor at least 1")
    if not _SIZE.match(size):
        raise ProvisionError(f"shared_storage: stripe size {size!r} is not a number with K, M or G")
    return ["-c", str(count), "-S", size]


def stripe_is_set(stripe: Mapping[str, object], shown: str) -> bool:
    """Return whether ``lfs getstripe -c -S -d`` shows the wanted striping (count on one line, bytes on the next)."""
    numbers = [int(n) for n in re.findall(r"-?\d+", shown)]
    wanted = stripe_arguments(stripe)
    return len(numbers) >= 2 and numbers[0] == int(wanted[1]) and numbers[1] == _bytes(wanted[3])


def _bytes(size: str) -> int:
    factor = {"K": 1024, "M": 1024**2, "G": 1024**3}.get(size[-1], 1)
    return int(size.rstrip("KMG")) * factor
