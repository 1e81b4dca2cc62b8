"""Headings that say whose lines follow: ``==> node07/dmesg.log <==``, ``===== node07 =====``, ``node07 | CHANGED``."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from .prefix import Line, is_label, looks_like_host
from .text import clean

_HEADINGS = (
    re.compile(r"^==> (?P<path>\S+) <==\s*$"),
    re.compile(
        r"^(?:={3,}|-{3,}|#{2,}|\*{3,})\s*(?:(?:host|node|from)\b:? *)?(?P<host>[\w.-]+)\b[^=#*]{0,40}?(?:={3,}|-{3,}|"
        r"#+|\*{3,})?\s*$"
    ),
    re.compile(r"^(?P<host>[\w.-]+) \| (?:CHANGED|SUCCESS|FAILED|UNREACHABLE!?)\b"),
    re.compile(r"^\[\d+\] \d\d:\d\d:\d\d \[(?:SUCCESS|FAILURE)\] (?:\w+@)?(?P<host>[\w.-]+)"),
    re.compile(r"^# ?(?:host(?:name)?|node)[ :=]+(?P<host>[\w.-]+)\s*$"),
    # The prompt of a pasted shell session: a command that shows the machine's own state names the host, any other
    # (on a login node, of a file) nobody.
    re.compile(
        r"^\[?[a-z][\w.-]*@(?:(?P<host>[\w.-]+)(?=[ :]~ ?\]?[%$#] (?:sudo )?"
        r"(?:dmesg|nvidia-smi|journalctl|ibstat|ibstatus|ibv_devinfo|lspci|dcgmi|ethtool)\b)|[\w.-]+)[ :]~ ?\]?[%$#] \S"
    ),
    re.compile(r"^Message from syslogd@(?P<host>[\w.-]+) at "),
)
_RULE = re.compile(r"-{8,}\s*$")
_NODES = re.compile(
    r"(?:(?P<host>[a-z](?:[\w-]*\w)?(?:\.[\w-]+)*)(?! *,)|[a-z][\w.-]*[\[,][\w\[\],.-]*)(?: \(\d+\))?\s*$"
)
# The last part of a path is often a kind of log, a job or a rank.
_KINDS = re.compile(r"(?:rank|job|log|out|err|nccl|run|step|slurm|attempt|dmesg|train|worker_)", re.IGNORECASE)

LITERALS = ("==> ", "====", "----", "## ", "****", " | CHANGED", " | SUCCESS", " | FAILED", "[SUCCESS]", "[FAILURE]",
            " | UNREACHABLE", "Message from syslogd@", "# host",
            "# node", "#host", "#node", "~ % ", "~$ ", "~]$ ", "~# ", "~]# ")  # fmt: skip


@dataclass
class Sections:
    """The host of the section that is being read, for each source."""

    hosts: dict[int, str] = field(default_factory=dict)
    before: bytes = b""
    _rules: dict[int, int] = field(default_factory=dict)

    def feed(self, line: Line) -> bool:
        """Take one line that may be a heading; True if it is one."""
        if _RULE.match(line.full):
            self._between_rules(line)
            return True
        for pattern in _HEADINGS:
            match = pattern.match(line.full)
            if match is None:
                continue
            groups = match.groupdict()
            host = _in_path(groups["path"]) if "path" in groups else groups["host"]
            if host is not None and not looks_like_host(host):
                continue
            self.hosts.pop(line.source, None)
            if host is not None:
                self.hosts[line.source] = host
            return True
        return False

    def _between_rules(self, line: Line) -> None:
        """A host between two rules of dashes, as dshbak and clush write it; of several none is the one."""
        start = self._rules.pop(line.source, None)
        named = _NODES.match(clean(self.before)) if start == line.position - 2 else None
        if named is None:
            self._rules[line.source] = line.position
            return
        self.hosts.pop(line.source, None)
        if named["host"] and is_label(named["host"]):
            self.hosts[line.source] = named["host"]


def _in_path(path: str) -> str | None:
    """The part of a path that names a host."""
    *above, last = path.split("/")
    named = [part for part in above if looks_like_host(part) and not _KINDS.match(part)]
    if named:
        return named[-1]
    stem = last.rsplit(".", 1)[0]
    return stem if looks_like_host(stem) and not _KINDS.match(stem) else None
