"""``rackweave nccl``: environment, GID prediction and fleet differences from node documents, with no node reachable."""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import sys
from collections.abc import Sequence
from pathlib import Path

from ..errors import DocumentError, RackweaveError
from ..fabric.block import read_fabric
from ..fabric.environment import render_environments
from ..fabric.findings import Finding
from ..fabric.gate import GateVerdict, judge_fleet, read_waivers
from ..fabric.matrix_check import compare_with_matrix
from ..fabric.request import PROFILES, EnvironmentRequest, NodeEnvironment
from ..hardware.collect import collect_node
from ..hardware.compact import document_text
from ..hardware.difference import compare_documents, consequences
from ..hardware.node import NodeDocument, as_json
from ..hardware.order import natural_key
from ..hardware.scrub import Scrubber
from ..hardware.topo_matrix import parse_topo_matrix
from .documents import load_documents
from .inside import inspect_rank
from .json_files import read_json, stale_files, write_files
from .nvml import nvml_reader
from .system import LocalSystem

HELP = "NCCL environment per node with reasons, GID prediction, fleet differences, from node documents."
# Of the reference image nvcr.io/nvidia/pytorch:24.08-py3; said in the output where nothing else is given.
REFERENCE_NCCL = "2.22.3"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of the command."""
    parser.add_argument("--nodes", metavar="DIR", help="directory of node documents (<host>.json)")
    parser.add_argument("--fabric", metavar="FILE", help="fabric block as JSON (docs/fabric.md)")
    parser.add_argument("--nccl-version", metavar="VERSION", help=f"NCCL that the job loads (else {REFERENCE_NCCL})")
    parser.add_argument("--torch-version", metavar="VERSION", help="PyTorch of the job")
    parser.add_argument("--profile", choices=PROFILES, default="production")
    parser.add_argument(
        "--image-plugin", action="append", metavar="NAME", help="NCCL network plugin in the job's image"
    )
    parser.add_argument("--image", action="store_true", help="the job runs in an image (its plugins are unknown)")
    parser.add_argument("--log-directory", metavar="DIR", help="where ranks may write NCCL and flight recorder files")
    parser.add_argument("--collective-timeout", type=int, default=600, metavar="SECONDS")
    parser.add_argument("--waivers", metavar="FILE", help="waivers as JSON: [{kind, host, by, until, reason}]")
    parser.add_argument("--today", metavar="DATE", help="day on which waivers are judged (else the system's date)")
    parser.add_argument("--accepted", metavar="DIR", help="accepted documents to compare with")
    parser.add_argument(
        "--matrix",
        action="append",
        default=[],
        metavar="HOST=FILE",
        help="nvidia-smi topo -m of a host, to compare with",
    )
    parser.add_argument("--output", metavar="DIR", help="write <host>.conf and <host>.reasons.json there")
    parser.add_argument("--collect", metavar="HOST", help="print the document of this machine, named HOST, and stop")
    parser.add_argument("--scrub", action="store_true", help="with --collect: make up serials, UUIDs and addresses")
    parser.add_argument("--inside", metavar="FILE.conf", help="inside a rank: compare with its host's file, and stop")
    parser.add_argument("--before", metavar="FILE", help="with --inside: environments before ours, as JSON by origin")
    parser.add_argument("--root", default="/", metavar="DIR", help="with --collect: directory that stands for /")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace) -> int:
    """Print environments and findings; exit status 1 if a finding blocks the launch."""
    if arguments.collect:
        return _collect(arguments)
    if arguments.inside:
        return _inside(arguments)
    if not arguments.nodes or not arguments.fabric:
        raise RackweaveError("--nodes DIR and --fabric FILE.json are needed (or --collect HOST)")
    documents = _documents(arguments.nodes)
    request = _request(arguments)
    environments = render_environments(documents, request)
    verdict = _judge(arguments, documents, environments, request)
    differences = _differences(arguments, documents)
    if arguments.output:
        write_files(arguments.output, environment_files(environments, request))
    if arguments.json:
        _print(json.dumps(_as_dict(environments, request, verdict, differences), indent=1))
    else:
        _print(_as_text(environments, request, verdict, differences))
    return 1 if verdict.blocked else 0


def environment_files(environments: dict[str, NodeEnvironment], request: EnvironmentRequest) -> dict[str, str]:
    """Return ``<host>.conf`` and ``<host>.reasons.json`` of every host by file name."""
    files = {}
    for host, environment in environments.items():
        files[f"{host}.conf"] = environment.conf()
        files[f"{host}.reasons.json"] = as_json(environment.reasons(request))
    return files


def stale_environments(
    directory: str, environments: dict[str, NodeEnvironment], request: EnvironmentRequest
) -> dict[str, str]:
    """Return the files of the environments that are missing in a directory or differ there."""
    return stale_files(directory, environment_files(environments, request))


def _collect(arguments: argparse.Namespace) -> int:
    if not os.path.isdir(arguments.root):
        raise RackweaveError(f"--root {arguments.root} is no directory, so there is nothing to collect from")
    nvml = nvml_reader() if os.path.realpath(arguments.root) == "/" else None
    system = LocalSystem([arguments.root])
    document = collect_node(system, arguments.collect, "measured", platform.python_version(), nvml)
    shown = Scrubber().document(document) if arguments.scrub else document
    _print(document_text(shown).rstrip("\n"))
    return 0


def _inside(arguments: argparse.Namespace) -> int:
    report = inspect_rank(arguments.inside, arguments.before, LocalSystem(), arguments.waivers, _today(arguments.today))
    _print(json.dumps(report, indent=1))
    return 1 if report["blocked"] else 0


def _documents(directory: str) -> list[NodeDocument]:
    documents = load_documents(Path(directory))
    if not documents:
        raise DocumentError(f"{directory} has no node document (<host>.json)")
    return sorted(documents, key=lambda document: natural_key(document.host))


def _request(arguments: argparse.Namespace) -> EnvironmentRequest:
    plugins = arguments.image_plugin
    return EnvironmentRequest(
        fabric=read_fabric(read_json(arguments.fabric)),
        nccl_version=REFERENCE_NCCL if arguments.nccl_version is None else arguments.nccl_version,
        torch_version=arguments.torch_version,
        profile=arguments.profile,
        nccl_plugins=None if plugins is None else tuple(plugins),
        image=arguments.image,
        log_directory=arguments.log_directory,
        collective_timeout_s=arguments.collective_timeout,
    )


def _judge(
    arguments: argparse.Namespace,
    documents: Sequence[NodeDocument],
    environments: dict[str, NodeEnvironment],
    request: EnvironmentRequest,
) -> GateVerdict:
    waivers = read_waivers(read_json(arguments.waivers)) if arguments.waivers else ()
    more = _matrix_findings(arguments, documents)
    return judge_fleet(documents, environments, request, waivers, _today(arguments.today), more)


def _today(given: str | None) -> datetime.date:
    try:
        return datetime.date.fromisoformat(given) if given else datetime.date.today()
    except ValueError as error:
        raise RackweaveError(f"--today {given}: a date is written like 2027-01-31") from error


def _matrix_findings(arguments: argparse.Namespace, documents: Sequence[NodeDocument]) -> list[Finding]:
    by_host = {document.host: document for document in documents}
    findings: list[Finding] = []
    for pair in arguments.matrix:
        host, equals, path = pair.partition("=")
        if not equals or host not in by_host:
            raise RackweaveError(f"--matrix {pair}: HOST=FILE is expected, with one of {', '.join(by_host)}")
        try:
            text = Path(path).read_text(encoding="utf-8", errors="replace")
        except OSError as error:
            raise RackweaveError(f"{path}: {error.strerror}") from error
        findings += compare_with_matrix(by_host[host], parse_topo_matrix(text))
    return findings


def _differences(arguments: argparse.Namespace, documents: Sequence[NodeDocument]) -> dict[str, dict[str, object]]:
    if not arguments.accepted:
        return {}
    accepted = {document.host: document for document in _documents(arguments.accepted)}
    result: dict[str, dict[str, object]] = {}
    for document in documents:
        before = accepted.get(document.host)
        changes = compare_documents(before, document) if before else ()
        if before is None or changes:
            result[document.host] = {
                "first": before is None,
                "changes": [change.as_dict() for change in changes],
                "consequences": list(consequences(changes)),
            }
    return result


def _as_dict(
    environments: dict[str, NodeEnvironment],
    request: EnvironmentRequest,
    verdict: GateVerdict,
    differences: dict[str, dict[str, object]],
) -> dict[str, object]:
    hosts = {}
    for host, environment in environments.items():
        reasons = environment.reasons(request)
        hosts[host] = {"environment": environment.variables, **{k: v for k, v in reasons.items() if k != "host"}}
    return {
        "schema": "rackweave.nccl/1",
        "nccl_version": request.nccl_version,
        "profile": request.profile,
        "hosts": hosts,
        "expectations": request.fabric.expectations(),
        "fleet": verdict.as_dict(),
        "differences": differences,
    }


def _as_text(
    environments: dict[str, NodeEnvironment],
    request: EnvironmentRequest,
    verdict: GateVerdict,
    differences: dict[str, dict[str, object]],
) -> str:
    lines = [f"NCCL {request.nccl_version}, profile {request.profile}, fabric {request.fabric.kind}"]
    for host, environment in environments.items():
        lines.append(f"\n{host}")
        lines += [f"  {it.name}={it.value}\n      {it.reason} [{it.source}]" for it in environment.settings]
        lines += [f"  ({name} is not set: {reason})" for name, reason in environment.omitted]
        lines += [f"  {it.device}/{it.port}: GID row {it.index}, {it.gid}" for it in environment.gids]
        lines += [f"  {it.device} ({it.bdf}): {it.role}: {it.reason}" for it in environment.rails.verdicts]
    for host, difference in differences.items():
        lines.append(f"\n{host} differs from its accepted document:")
        changes = difference["changes"]
        lines += [f"  {change['message']}" for change in changes] if isinstance(changes, list) else []
    lines.append(
        f"\nFleet of {len(environments)}: {'launch is BLOCKED' if verdict.blocked else 'nothing blocks a launch'}"
    )
    lines += [f"  {it.severity:5} {it.host}: {it.kind}: {it.message}" for it in verdict.findings]
    lines += [f"  waived {it.host}: {it.kind}, by {waiver.by} until {waiver.until}" for it, waiver in verdict.waived]
    lines += [f"  expired waiver: {waiver.kind} by {waiver.by}, {waiver.until}" for waiver in verdict.expired]
    return "\n".join(lines)


def _print(text: str) -> None:
    sys.stdout.write(text + "\n")
