"""A first inventory for newcomers, from a list of hosts or from what a live Slurm says about its nodes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ..errors import ProvisionError
from ..hardware.catalog import find_gpu

_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9.-]*[A-Za-z0-9])?$")
_RANGE = re.compile(r"^(?P<head>[^\[\]]*)\[(?P<body>[0-9,\-]+)\](?P<tail>.*)$")
# More than Slurm was built for; more is a slip of a finger.
_MOST_HOSTS = 65_536
_MOST_DIGITS = 9


@dataclass(frozen=True)
class Host:
    """One node: name, address if it differs, GPUs as Slurm names them (``gpu:h100:8``)."""

    name: str
    address: str | None = None
    gres: str | None = None


def expand_hosts(text: str) -> list[str]:
    """Return the names of a host list such as ``gpu[01-04,07],login1``, in its order, padding kept.

    Raises:
        ProvisionError: for an unbalanced bracket, an empty range, or something that is no host name.
    """
    names: list[str] = []
    for part in _split(text):
        names += _expand(part, _MOST_HOSTS - len(names))
        if len(names) > _MOST_HOSTS:
            raise ProvisionError(f"host list {text!r} names more than {_MOST_HOSTS} hosts; shorten its ranges")
    wrong = [name for name in names if not _NAME.match(name)]
    if wrong:
        raise ProvisionError(f"{wrong[0]!r} in the host list {text!r} is not a host name")
    return names


def _split(text: str) -> list[str]:
    """Split at commas and white space outside of brackets."""
    parts, depth, word = [], 0, ""
    for character in text.strip() + ",":
        depth += {"[": 1, "]": -1}.get(character, 0)
        if depth not in (0, 1):
            raise ProvisionError(f"host list {text!r}: brackets do not match")
        if depth == 0 and (character == "," or character.isspace()):
            if word:
                parts.append(word)
            word = ""
        else:
            word += character
    if depth or word:
        raise ProvisionError(f"host list {text!r}: brackets do not match")
    return parts


def _expand(part: str, most: int) -> list[str]:
    """Return the names of a part; somewhat more than ``most`` of them at the most, so that a slip of a finger ends."""
    match = _RANGE.match(part)
    if match is None:
        return [part]
    tails = _expand(match["tail"], most)
    names: list[str] = []
    for piece in match["body"].split(","):
        low, dash, high = piece.partition("-")
        if not low.isdigit() or (dash and not high.isdigit()) or max(len(low), len(high)) > _MOST_DIGITS:
            raise ProvisionError(f"host list {part!r}: {piece!r} is no number or range of up to {_MOST_DIGITS} digits")
        if dash and int(high) < int(low):
            raise ProvisionError(f"host list {part!r}: {piece!r} is no ascending range")
        for number in range(int(low), int(high if dash else low) + 1):
            names += [f"{match['head']}{number:0{len(low)}d}{rest}" for rest in tails]
            if len(names) > most:
                return names
    return names


def parse_slurm_nodes(text: str) -> list[Host]:
    """Return the nodes of ``scontrol show node --oneliner``: name, address, GPUs.

    Raises:
        ProvisionError: if no node is in the text.
    """
    hosts = []
    for line in text.splitlines():
        fields = dict(re.findall(r"(?:^|\s)(NodeName|NodeAddr|Gres)=(\S+)", line))
        if "NodeName" not in fields:
            continue
        name, address, gres = fields["NodeName"], fields.get("NodeAddr"), fields.get("Gres")
        hosts.append(Host(name, None if address in (name, None) else address, None if gres == "(null)" else gres))
    if not hosts:
        raise ProvisionError(
            "scontrol show node --oneliner named no node; is slurmctld running, and is this its cluster?"
        )
    return hosts


def parse_slurm_controller(text: str) -> str:
    """Return the controller's host from ``scontrol show config``: ``SlurmctldHost[0] = ctl(10.0.0.1)`` -> ``ctl``."""
    match = re.search(r"^SlurmctldHost(?:\[0\])?\s*=\s*([^\s(]+)", text, re.MULTILINE)
    if match is None:
        raise ProvisionError("scontrol show config names no SlurmctldHost")
    return match.group(1)


def training_nodes(hosts: Sequence[Host], wanted: Sequence[str] = ()) -> list[Host]:
    """Return the nodes of a live Slurm that train: those with GPUs, or those asked for, which must be of one kind.

    Args:
        hosts: all nodes of the cluster.
        wanted: names to choose; all nodes with GPUs where it is empty.

    Raises:
        ProvisionError: for a name that the cluster lacks, a cluster without GPUs, or nodes of more than one kind.
    """
    known = {host.name: host for host in hosts}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise ProvisionError(f"{unknown[0]} of init_hosts is none of the {len(known)} nodes that Slurm names")
    chosen = [known[name] for name in wanted] or [host for host in hosts if gpus_of(host)]
    if not chosen:
        raise ProvisionError(
            f"none of the {len(known)} nodes that Slurm names has Gres=gpu; name those that train with init_hosts"
        )
    kinds: dict[tuple[tuple[str, int], ...], list[str]] = {}
    for host in chosen:
        kinds.setdefault(gpus_of(host), []).append(host.name)
    if len(kinds) > 1:
        texts = [
            f"{names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''}: {_gpu_words(kind)}"
            for kind, names in kinds.items()
        ]
        raise ProvisionError(
            f"the nodes have GPUs of {len(kinds)} kinds ({'; '.join(texts)}) and one job takes one kind: choose with "
            "init_hosts, and write an inventory for each"
        )
    return chosen


def gpus_of(host: Host) -> tuple[tuple[str, int], ...]:
    """Return the GPUs of a node by type and count, as Gres has them: ``gpu:h100:8(S:0-1)`` -> ``(("h100", 8),)``."""
    found = []
    for part in re.sub(r"\([^)]*\)", "", host.gres or "").split(","):
        words = part.split(":")
        if words[0] != "gpu":
            continue
        count = int(words.pop()) if len(words) > 1 and words[-1].isdecimal() else 1
        if count:
            found.append((":".join(words[1:]), count))
    return tuple(sorted(found))


def declared_gpus(hosts: Sequence[Host]) -> dict[str, object]:
    """Return what `rackweave_hardware_class` may hold of nodes of one kind: ``gpu`` and ``gpus_per_host``.

    Neither is there without GPUs in Gres, or with several types in one node; ``gpu`` is missing for a type that is no
    product of the catalog (``gpu:8``, or a name of the site's own).
    """
    gpus = gpus_of(hosts[0]) if hosts else ()
    if len(gpus) != 1:
        return {}
    ((kind, count),) = gpus
    product = find_gpu(kind) or find_gpu(kind.upper())
    return {**({"gpu": product.name} if product else {}), "gpus_per_host": count}


def _gpu_words(gpus: Sequence[tuple[str, int]]) -> str:
    return " and ".join(f"{count} {kind or 'without a type'}" for kind, count in gpus) or "none"


def inventory(
    compute: Sequence[Host], controller: Host, *, user: str | None = None, slurm_manage: bool = True
) -> dict[str, object]:
    """Return a YAML inventory as plain data: groups ``slurm_controller`` and ``gpu_nodes``, and what it is good for.

    Args:
        compute: nodes that train.
        controller: the host of slurmctld; may be a compute node too.
        user: login name for ssh; ``None`` leaves it to ssh's own configuration.
        slurm_manage: false for a cluster whose Slurm exists already.

    Raises:
        ProvisionError: if there is no compute node or a name appears twice.
    """
    names = Counter(host.name for host in compute)
    twice = sorted(name for name, count in names.items() if count > 1)
    if twice or not names:
        raise ProvisionError(f"{', '.join(twice)} appears more than once" if twice else "the host list is empty")
    variables: dict[str, object] = {"slurm_manage": slurm_manage}
    if user:
        variables["ansible_user"] = user
    return {
        "all": {
            "vars": variables,
            "children": {
                "slurm_controller": {"hosts": {controller.name: _host_variables(controller)}},
                "gpu_nodes": {"hosts": {host.name: _host_variables(host) for host in compute}},
            },
        }
    }


def _host_variables(host: Host) -> dict[str, str]:
    return {"ansible_host": host.address} if host.address else {}


def hosts_named(names: Iterable[str]) -> list[Host]:
    """Return plain hosts for a list of names."""
    return [Host(name) for name in names]
