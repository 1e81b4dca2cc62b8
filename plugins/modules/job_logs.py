#!/usr/bin/python
"""Read what an attempt left in its logs and what was collected of it, and what Slurm says of its nodes, bounded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: job_logs
short_description: Read the logs of an attempt
description:
  - Runs on the Slurm submit host, which mounts the shared file system. Nothing is changed.
  - Of each file the end is read; where the sum exceeds the limit, ranks that wrote no result come first.
options:
  run_dir: {description: Directory of the run., type: path, required: true}
  attempt: {description: Name of the attempt., type: str, required: true}
  tail_bytes: {description: Most bytes of each file., type: int, default: 20000}
  max_bytes: {description: Most bytes of all files., type: int, default: 4000000}
attributes:
  check_mode: {support: full, description: Only reads.}
author: Rackweave
"""
EXAMPLES = r"""
- name: Read the logs of the first start of job 12
  rackweave.cluster.job_logs:
    run_dir: /mnt/shared/runs/demo
    attempt: "12.0"
  become: true
  become_user: hpc
"""
RETURN = r"""
logs: {description: End of each log by its path; the job's own log is C(slurm.out)., returned: success, type: dict}
nodes: {description: What Slurm says of each node of the job., returned: success, type: dict}
left_out: {description: Logs that did not fit., returned: success, type: list, elements: str}
"""
EVIDENCE_BYTES = 262_144
SPEC = {
    "run_dir": {"type": "path", "required": True},
    "attempt": {"type": "str", "required": True},
    "tail_bytes": {"type": "int", "default": 20_000},
    "max_bytes": {"type": "int", "default": 4_000_000},
}


def tail(path: Path, limit: int) -> str:
    """Return the last complete lines of a file, at most ``limit`` bytes."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        stream.seek(max(0, size - limit))
        piece = stream.read(limit)
    if size > limit:
        piece = piece[piece.find(b"\n") + 1 :]
    return piece.decode("utf-8", errors="replace")


def in_order(attempt: Path) -> Iterator[Path]:
    """Yield the logs of an attempt: launchers, ranks without a result, the other ranks."""
    yield from sorted(attempt.glob("logs/*/launch.log"))
    finished = {path.stem for path in (attempt / "result").glob("*.json")}
    ranks = [path for path in attempt.glob("logs/*/*") if path.is_dir() and path.name.isdigit()]
    for directory in sorted(ranks, key=lambda path: (path.name in finished, int(path.name))):
        yield from sorted(directory.glob("*.log"))
    # What was collected on the nodes, the newest collection of each last; then whose address is whose.
    yield from sorted(path for path in attempt.glob("evidence/**/*") if path.suffix in (".txt", ".json"))
    yield from sorted(attempt.glob("placement/*.json"))


def read_logs(attempt: Path, tail_bytes: int, max_bytes: int) -> tuple[dict[str, str], list[str]]:
    logs: dict[str, str] = {}
    left_out = []
    for path in in_order(attempt):
        name = str(path.relative_to(attempt))
        if max_bytes <= 0:
            left_out.append(name)
            continue
        # A listing is of use as a whole, and its collector bounded it already.
        wanted = EVIDENCE_BYTES if name.startswith("evidence/") else tail_bytes
        text = tail(path, min(wanted, max_bytes))
        max_bytes -= len(text)
        if text:
            logs[name] = text
    return logs, left_out


def ask_nodes(module: AnsibleModule, hosts: list[str]) -> dict[str, str]:
    """Return Slurm's line on each node; a controller that does not answer leaves them out."""
    if not hosts:
        return {}
    code, out, _ = module.run_command(["scontrol", "--oneliner", "show", "node", ",".join(hosts)])
    lines = out.splitlines() if code == 0 else []
    return {line.split()[0].partition("=")[2]: line for line in lines if line.startswith("NodeName=")}


def main() -> None:
    module = AnsibleModule(argument_spec=SPEC, supports_check_mode=True)
    run_dir = Path(module.params["run_dir"])
    attempt = run_dir / "attempts" / module.params["attempt"]
    if not attempt.is_dir():
        module.fail_json(msg=f"{attempt} does not exist")
    logs, left_out = read_logs(attempt, module.params["tail_bytes"], module.params["max_bytes"])
    if (attempt / "attempt.json").is_file():
        logs["attempt.json"] = tail(attempt / "attempt.json", module.params["tail_bytes"])
    job_log = run_dir / f"slurm-{module.params['attempt'].split('.')[0]}.out"
    if job_log.is_file():
        logs["slurm.out"] = tail(job_log, module.params["tail_bytes"])
    hosts = sorted(path.name for path in (attempt / "logs").glob("*") if path.is_dir())
    module.exit_json(changed=False, logs=logs, nodes=ask_nodes(module, hosts), left_out=left_out)


if __name__ == "__main__":
    main()
