"""Who printed a line and when: the prefixes that schedulers, loggers and kernels put in front of a message."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from .records import read_record

_MONTHS = {
    name: number
    for number, name in enumerate(
        ["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"], 1
    )
}
# Glog and classic syslog print no year; such times are placed in this year until a dated line tells the real one.
YEARLESS = 1904


@dataclass(frozen=True)
class Line:
    """One line, taken apart.

    Attributes:
        text: the message without the prefixes that were understood.
        full: the whole line.
        host, rank: who printed it, where the line itself says so.
        local_rank: from torchrun's ``[defaultN]:`` tee.
        time: naive UTC or naive local; year YEARLESS where the line has no year.
        kernel: the line comes from the kernel.
        position: counts lines over all evidence, the order where no clock helps.
    """

    text: str
    full: str
    host: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    time: datetime | None = None
    kernel: bool = False
    position: int = 0
    source: int = 0


_ISO = (
    r"(?P<Y>\d{4})[-/](?P<M>\d\d)[-/](?P<D>\d\d)[T _](?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)(?:[.,](?P<f>\d{1,9})"
    r")?(?P<z>Z|[+-]\d\d:?\d\d)?"
)
ISO_TIME = re.compile(_ISO)
_CTIME = (
    r"(?:(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun),? +)(?P<b>[A-Z][a-z]{2}) +(?P<D>\d{1,2}) (?P<h>\d\d):(?P<m>\d\d)"
    r":(?P<s>\d\d)(?: [A-Z]{3,4})?(?: (?P<Y>\d{4}))?"
)
_HOST = r"[A-Za-z0-9](?:[\w.-]{0,62}[A-Za-z0-9])?"

_STEPS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("time", re.compile(r"<\d{1,3}>(?:1 )?(?=\d{4}-)")),
    ("time", re.compile(r"\s*\[?\s*" + _ISO + r"\s*\]?(?:UTC)?[ ,:]*(?:- )?")),
    ("time", re.compile(r"\[?" + _CTIME + r"\]?[ :]*")),
    (
        "time",
        re.compile(
            r"(?:<\d{1,3}>)?(?P<b>[A-Z][a-z]{2}) +(?P<D>\d{1,2}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
            r"(?:\.(?P<f>\d+))? "
        ),
    ),
    ("time", re.compile(r"\[?\d\d:\d\d:\d\d(?:[.,]\d+)?\]?:? (?=\S)")),
    ("time", re.compile(r"\[ *(?P<up>\d{1,9}\.\d{3,6})\] ?(?:\[ ?[TC]\d+\] ?)?")),
    ("rank", re.compile(r"\[rank ?(?P<rank>\d+)\] ?:? ?")),
    ("rank", re.compile(r"\[\d+,(?P<rank>\d+)\](?:<std(?:out|err|diag)>)?: ?")),
    ("local", re.compile(r"\[(?:default|trainer|worker)(?P<local>\d+)\]: ?")),
    (
        "glog",
        re.compile(
            r"\[?(?P<lv>[IWEF])(?P<M>\d\d|\d)(?P<D>\d\d) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)"
            r"(?:\.(?P<f>\d+))? (?:\d+ )?(?P<file>[\w./<>-]+:\d+)\] ?"
        ),
    ),
    ("file", re.compile(r"\[(?P<lv>[IWEF]) (?P<file>[\w./-]+\.(?:cpp|hpp|cc|py)(?::\d+)?)\] ?")),
    ("kernel", re.compile(r"(?P<host>" + _HOST + r") kernel(?:\[\d+\])?: ?")),
    ("kernel", re.compile(r"\s?kernel(?:\[\d+\])?: ?")),
    ("label", re.compile(r"std(?:out|err) [FP] ")),
    ("kernel", re.compile(r"kern: +\w+: +\[" + _ISO + r"\]: ?")),
    ("logger", re.compile(r"(?:[\w.-]+ - )?(?:INFO|WARNING|ERROR|DEBUG|CRITICAL) - ")),
    (
        "logger",
        re.compile(r"\| *(?:TRACE|DEBUG|INFO|SUCCESS|WARNING|ERROR|CRITICAL) *\|(?: *[\w.<>]+:[\w.<>]+:\d+ +-)? *"),
    ),
    (
        "daemon",
        re.compile(
            r"(?P<host>" + _HOST + r") (?=(?:slurmstepd|slurmd|slurmctld|srun|systemd|nvidia-[\w-]+|"
            r"dockerd|containerd|nvsm[\w-]*|nv-hostengine|torchrun|python3?|"
            r"automount|lnetd?|mmfs\w*)(?:\[\d+\])?: ?|[\w./@-]{1,40}\[\d+\]: )"
        ),
    ),
    ("daemon", re.compile(r"slurm(?:stepd|d)-(?P<host>" + _HOST + r"): (?=error|fatal|task|debug)")),
    ("daemon", re.compile(r"(?:slurmd|slurmctld|systemd|dockerd|containerd|torchrun|python3?)\[\d+\]: ?")),
    ("daemon", re.compile(r"(?!mmfs|slurm|systemd)[a-z][\w./@-]{0,39}\[\d+\]: (?=\S)")),
    (
        "nccl",
        re.compile(
            r"(?P<host>" + _HOST + r"):\d+:\d+ \[(?P<dev>-?\d+)\] (?=NCCL |[\w./+-]+:\d+ NCCL |graph|"
            r"misc|transport|init|proxy|plugin|\S)"
        ),
    ),
    ("nccl", re.compile(r"\[(?P<host>" + _HOST + r"):\d+(?: *:\d+:\d+)?\] *(?:\*\*\* )?")),
    ("nccl", re.compile(r"\[\w+@(?P<host>" + _HOST + r")\] *")),
    ("alert", re.compile(r"(?:ALERT|WARN(?:ING)?|ERROR|INFO|CRIT(?:ICAL)?|NOTICE|FATAL|DEBUG):?\s+(?=\S+: )")),
    ("tagged", re.compile(r"(?P<host>[a-z][a-z0-9.-]*[a-z0-9]) (?=[A-Za-z][\w./-]{0,40}(?:\[\d+\])?: )")),
    ("word", re.compile(r"(?P<host>[a-z][a-z0-9.]*-[a-z0-9.-]*[a-z0-9]) (?=\S)")),
    ("bracket", re.compile(r"\[(?P<host>" + _HOST + r")\]:? (?=\S| )")),
    (
        "table",
        re.compile(r"(?P<host>" + _HOST + r") +\| *(?:DEBUG|INFO|NOTICE|WARN(?:ING)?|ERROR|CRITICAL|FATAL) *\| ?"),
    ),
    ("label", re.compile(r"[\w.-]+-\d+ +\| ")),
    ("label", re.compile(r"\[\d{0,3}m ?")),
    ("label", re.compile(r"[\w.-]{1,40}/\d{1,6} (?=\[(?:default|trainer|worker|rank)\d+\]:)")),  # torchx: role/replica
    ("label", re.compile(r"\[\d{1,6}\] (?=\S+:\d+:\d+ \[|\[rank)")),
    ("label", re.compile(r" *\d{1,6}: +(?=\S)|\d{1,6}: ?(?=\[)")),
    ("host", re.compile(r"(?P<host>[A-Za-z](?:[\w-]*[\w])?(?:\.[\w-]+)*|\d{1,3}(?:\.\d{1,3}){3}):[ \t]+(?=\S)")),
    ("ray", re.compile(r"\((?:[\w.: ]+ )?pid=\d+(?:, ip=(?P<host>[\w.:]+))?\) ")),
    (
        "level",
        re.compile(
            r"\[(?:INFO|WARN(?:ING)?|ERROR|DEBUG|CRITICAL|FATAL)\] ?(?:\[[\w./-]+:\d+:\w+\] "
            r"?)?(?:\[(?:Global )?Rank (?P<grank>\d+)\] ?)?"
        ),
    ),
    ("level", re.compile(r"\[(?:Global )?[Rr]ank[ :=](?P<grank>\d+)\]:? ?")),
)

_ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789 \t[<({|"
# A prefix that can begin with this character, found once by asking each pattern's own first set.
_STARTS = {
    "time": "0123456789 \t[<" + "JFMASONDTW",
    "rank": "[",
    "local": "[",
    "glog": "[IWEF",
    "file": "[",
    "ray": "(",
    "level": "[",
    "bracket": "[",
    "alert": "ACDEFINW",
    "tagged": "abcdefghijklmnopqrstuvwxyz",
    "word": "abcdefghijklmnopqrstuvwxyz",
}


def _dispatch() -> dict[str, tuple[tuple[str, re.Pattern[str]], ...]]:
    """Which patterns to try for each first character, in their order."""
    return {
        character: tuple((kind, pattern) for kind, pattern in _STEPS if character in _STARTS.get(kind, _ALPHABET))
        for character in _ALPHABET
    }


_BY_FIRST = _dispatch()
_OTHER: tuple[tuple[str, re.Pattern[str]], ...] = ()

# A word before a colon is a host only if it looks like one: it has a digit or a dash and names no device or library.
_NOT_A_HOST = re.compile(
    r"(?:mlx\d|irdma|bnxt|nvidia-nv|nvidia\d|eth\d|en[pso]\d|ens\d|eno\d|ib\d|bond\d|lo\d?$|gpu\d$|cuda\d?$|"
    r"lib\w+\.|python|"
    r"c\d+d$|[bft]f?p?\d{1,2}$|int\d+$|h\d00|a100|b\d00|gpt|llama|zero-?\d|p2p|step|iter|rank\d|tp\d|pp\d|"
    r"dp\d|stage|layer|phase|epoch|rc-?\d|sha\d|md5|utf-?8|slurm(?:step)?d-|slurmctld|"
    r"xid|sxid|srun|sbatch|error|warn|info|torch|nccl|hf-|pre-|post-|non-|multi-|re-|ipv\d|oom-|out-of|"
    r"note|\w+\.py$|\w+\.cc?$|"
    r"\w+\.cpp$|nv-fabricmanager|nvidia-smi|nvidia-container|enroot|pyxis|docker|soft-|hard-|runtime|level\d|"
    r"worker\d|gen\d|port\d|link\d|lane\d|dev\d|ost\d|mdt\d|cpu\d|numa\d|socket\d|channel\d|bucket\d|shard\d|"
    r"device\d|local_rank|attempt\d|job\d)",
    re.IGNORECASE,
)


# What a machine prints of its own, so that the word in front is the label of pdsh, clush or an orchestrator: a row of
# torchrun's table, a kernel line, a rank.
_OWN_OUTPUT = re.compile(
    r"(?:time|host|rank|exitcode|error_file|traceback) +: |\[\d+\]:\s*$|Root Cause \(first observed|"
    r"\[?[IWEF]\d{4} \d\d:\d\d:\d\d\.|\[ *\d{1,9}\.\d{3,6}\] |NVRM: |[A-Z][a-z]{2} +\d{1,2} \d\d:\d\d:\d\d \S+ kernel: "
)
# Files and commands whose name a collector puts in front of their lines.
_COLLECTED = re.compile(r"(?:dmesg|kern|kmsg|syslog|messages|journal|console|stdout|stderr|agent|launcher|std)\b")

# The name of a tool in front of a host: ``health-check: node01: ...``.
_TAG = re.compile(r"[a-z][a-z-]*: ")


def looks_like_host(word: str) -> bool:
    """Tell ``node01`` and ``gpu-a-12.example`` from ``RuntimeError`` and ``mlx5_0``."""
    if _NOT_A_HOST.match(word) or len(word) > 63 or "_" in word:
        return False
    return any(character.isdigit() for character in word) and word == word.lower()


def is_label(word: str) -> bool:
    """Whether a word may be a host in a place where only hosts stand: ``rack-b`` may, ``summary`` may not."""
    return looks_like_host(word) or ("-" in word and word.islower() and not _NOT_A_HOST.match(word))


def take_apart(full: str, position: int = 0, source: int = 0) -> Line:
    """Strip the known prefixes of one cleaned line, in whatever order they come."""
    return lines_of(full, position, source)[0]


def lines_of(full: str, position: int = 0, source: int = 0) -> list[Line]:
    """The lines that one cleaned line holds: itself, or those of the message in a JSON record."""
    record = read_record(full) if full.startswith("{") else None
    if record is None:
        return [_strip(full, position, source)]
    lines = [_strip(text, position, source) for text in record.lines]
    moment = parse_time(record.time) if record.time else None
    return [
        replace(
            line,
            full=f"[{record.level}] {line.full}" if record.level else line.full,
            host=line.host or record.host,
            rank=line.rank if line.rank is not None else record.rank,
            time=line.time or moment,
            kernel=line.kernel or record.kernel,
        )
        for line in lines
    ]


def _strip(full: str, position: int, source: int) -> Line:
    found: dict[str, object] = {}
    at = 0
    for _ in range(10):
        step = _match_one(full, at, found)
        if step == at:
            break
        at = step
    text = full[at:]
    return Line(
        text=text,
        full=full,
        host=_text(found.get("host")),
        rank=_number(found.get("rank")),
        local_rank=_number(found.get("local")),
        time=found.get("time"),  # type: ignore[arg-type]
        kernel=bool(found.get("kernel")) or text.startswith(("NVRM:", "mlx5_core ", "nvidia-nvswitch")),
        position=position,
        source=source,
    )


_LABELLED = re.compile(r"std(?:out|err) |[\w.-]{1,40} +\| ")


def _match_one(full: str, at: int, found: dict[str, object]) -> int:
    first = full[at : at + 1]
    if first.isalpha() and "time" not in found and full.find(":", at, at + 100) < 0 and not _LABELLED.match(full, at):
        return at
    for kind, pattern in _BY_FIRST.get(first, _OTHER):
        match = pattern.match(full, at)
        if not match or match.end() == at:
            continue
        groups = match.groupdict()
        if kind == "host":
            verdict = _host_label(full, at, match, pattern, found)
            if verdict is None:
                continue
            if not verdict:
                return match.end()
        if kind in ("tagged", "word", "table") and ("host" in found or not looks_like_host(groups["host"] or "")):
            continue
        if kind == "word" and "time" not in found:
            continue
        if kind == "alert" and not _before_host(full, match.end()):
            continue
        if kind == "bracket" and (at or not looks_like_host(groups["host"] or "")):
            continue
        if kind == "label" and at and "time" not in found:
            continue
        _take(kind, groups, found)
        return match.end()
    return at


def _before_host(full: str, at: int) -> bool:
    """Whether the next word is a host and its colon."""
    word = full[at : full.find(":", at)]
    return looks_like_host(word)


def _host_label(
    full: str, at: int, match: re.Match[str], pattern: re.Pattern[str], found: dict[str, object]
) -> bool | None:
    """Whether a word before a colon is a host (True), a tool's name in front of one (False) or text (None)."""
    if "host" in found:
        return None
    name = match["host"]
    if looks_like_host(name) or full.startswith("[rank", match.end()):
        return True  # whatever stands in front of a rank is the label that a launcher gives to a host
    if _OWN_OUTPUT.match(full, match.end()) and name.islower() and "_" not in name:
        return not (_NOT_A_HOST.match(name) or _COLLECTED.match(name)) or None
    follows = pattern.match(full, match.end()) if _TAG.match(full, at) else None
    return False if follows is not None and looks_like_host(follows["host"]) else None


def _take(kind: str, groups: dict[str, str | None], found: dict[str, object]) -> None:
    if kind in ("time", "glog"):
        moment = _moment(groups)
        if moment is not None:
            found.setdefault("time", moment)
    if kind == "kernel":
        found["kernel"] = True
    if groups.get("host"):
        # The innermost host is the one that printed: srun labels and collectors stand in front of it.
        found["host"] = groups["host"]
    if groups.get("rank") is not None:
        found["rank"] = groups["rank"]
    if groups.get("grank") is not None:
        found.setdefault("rank", groups["grank"])
    if groups.get("local") is not None:
        found["local"] = groups["local"]


def _moment(groups: dict[str, str | None]) -> datetime | None:
    if groups.get("D") is None:
        return None
    month = groups.get("M")
    if month is None:
        number = _MONTHS.get((groups.get("b") or "").lower())
        if number is None:
            return None
    else:
        number = int(month)
    try:
        moment = datetime(
            int(groups.get("Y") or YEARLESS),
            number,
            int(groups["D"] or 0),
            int(groups["h"] or 0),
            int(groups["m"] or 0),
            int(groups["s"] or 0),
            int(((groups.get("f") or "0") + "000000")[:6]),
        )
    except ValueError:
        return None
    return _shift(moment, groups.get("z"))


def _shift(moment: datetime, zone: str | None) -> datetime:
    if not zone or zone == "Z":
        return moment
    offset = datetime.strptime(zone.replace(":", ""), "%z").tzinfo
    try:
        return moment.replace(tzinfo=offset).astimezone(timezone.utc).replace(tzinfo=None)
    except OverflowError:
        return moment


def parse_time(text: str) -> datetime | None:
    """Read an ISO 8601 time (with or without zone) into naive UTC; None if it is none."""
    match = ISO_TIME.search(text)
    return _moment(match.groupdict()) if match else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _number(value: object) -> int | None:
    return int(value) if isinstance(value, str) else None
