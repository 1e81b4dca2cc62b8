"""What health checks, monitors and operators' scripts report in words of their own, for every family.

Each entry asks for an alarm word anywhere in the line (``whole``) and for nothing that says all is well.
"""

from __future__ import annotations

from ..signature import FINE, report
from ..signature import Signature as S


def _dcgm(names: str) -> str:
    """Error codes of DCGM as monitors report them, not as settings list them."""
    words = r"(?i:codes?|errors?|watch|condition|reason|message)"
    return words + r"\b.{0,24}\bDCGM_FR_(?:" + names + r")\b(?!\"? ?[=:] ?\"?[\dA-Z_]+\b)"


# What has a port, in the words of a report.
_PORT = (
    r"(?:\b(?:port|(?<!NV)(?<!NV-)link|NIC|HCA|interface|cable|uplink)\b|\bmlx\d_\w+|\ben[psoi]\d\w*|\beth\d+|"
    r"\bib[ps]?\d+|\bbnxt_re\d+)"
)
_DCGM_ERRORS = (
    ("gpu.nvlink_error", "NVLINK_DOWN|NVLINK_CRC_ERROR_THRESHOLD|NVLINK_ERROR_CRITICAL|NVLINK_ERROR_THRESHOLD", 14),
    ("gpu.ecc_uncorrectable", "VOLATILE_DBE_DETECTED|UNCONTAINED_ERROR|FAULTY_MEMORY|DBE_PENDING_PAGE_RETIREMENTS", 14),
    ("gpu.row_remap_failure", "ROW_REMAP_FAILURE", 9),
    ("gpu.nvswitch_fatal", "NVSWITCH_FATAL_ERROR|FABRIC_MANAGER_TRAINING_ERROR", 14),
    ("gpu.fallen_off_bus", "FALLEN_OFF_BUS|GPU_LOST|DEVICE_COUNT_MISMATCH", 14),
    ("perf.straggler", "CLOCK_THROTTLE_THERMAL|CLOCK_THROTTLE_POWER|CLOCKS_EVENT_THERMAL|CLOCKS_EVENT_POWER", 84),
)
_WELL = r"(?i)\b(?:pass(?:ed)?|ok|healthy|recovered|restored|cleared)\b|\bthresholds?\b"

TABLE = (
    *(
        S(
            f"{diagnosis}/dcgm",
            diagnosis,
            _dcgm(names),
            f"host3 watch: ErrorCode:DCGM_FR_{names.split('|', maxsplit=1)[0]} GPU:3 PCI:0000:9d:00.0",
            blame="both",
            depth=depth,
        )
        for diagnosis, names, depth in _DCGM_ERRORS
    ),
    S(
        "gpu.row_remap_failure/report",
        "gpu.row_remap_failure",
        report(
            r"\b(?:spare rows?|row remap\w*|remap\w*(?: resources?)?)\b.{0,40}\b(?:exhausted|used up|ran out|depleted|"
            r"unavailable|fail(?:ed|ure|ures)?)\b|\b(?:row[ _]?)?remap\w*[ _]fail(?:ed|ure)\b|\bno (?:more "
            r")?(?:spare|free) (?:rows|remapping)"
        ),
        "host3 health: CRITICAL GPU 4: row remapping resources exhausted",
        blame="both",
        depth=9,
        whole=True,
        unless=_WELL + r"|[=:] ?(?:0|false|no)\b(?! (?:more|spare|free))|\bfail\w* 0\b|(?<![\w.:])0 (?:\w+ "
        r")?(?:pending|fail)",
    ),
    S(
        "gpu.ecc_uncorrectable/memory",
        "gpu.ecc_uncorrectable",
        report(r"\bGPU\b.{0,60}\b(?:uncorrectable|double[- ]bit|unrecoverable) (?:memory )?errors?\b"),
        "host3 health: FAIL GPU 4 has uncorrectable memory errors (aggregate 2)",
        blame="both",
        depth=14,
        whole=True,
        unless=FINE + r"|NV-?Link|PCIe|AER",
    ),
    S(
        "gpu.gsp_timeout/report",
        "gpu.gsp_timeout",
        report(
            r"\bGSP\b.{0,40}\b(?:time-?out|timed out|hang|hung|unresponsive|not respond\w*|dead|crash\w*|heartbeat)\b"
        ),
        "host3 gpu-agent: ERROR GPU 2: GSP firmware is not responding",
        blame="both",
        depth=14,
        whole=True,
        unless=_WELL,
    ),
    S(
        "gpu.driver_mismatch/report",
        "gpu.driver_mismatch",
        report(
            r"\bdriver\b.{0,60}\bversions?\b.{0,60}\b(?:mismatch\w*|differs?|do(?:es)? not match)\b|"
            r"\b(?:libcuda|libnvidia-ml|NVML|user[- ]?space)\b.{0,60}\b(?:mismatch\w*|differs?|do(?:es)? not match)\b"
            r".{0,60}\b(?:kernel|driver|module)\b|\bkernel module\b.{0,40}\b(?:mismatch\w*|differs?|does not match)\b"
            r".{0,60}\b(?:driver|libcuda|NVML|user[- ]?space)"
        ),
        "host3 prolog: ERROR driver version 570.158 of the kernel module differs from libcuda 570.172",
        blame="both",
        depth=14,
        whole=True,
        unless=_WELL + r"|NCCL|OFED|mlx\d|nvme|firmware",
    ),
    S(
        "mem.host_oom/report",
        "mem.host_oom",
        report(r"\bOOM[- ]kill(?:er|ed)\b.{0,60}\b(?:invoked|killed|triggered|terminated|struck|python\w*|pt_\w+)"),
        "host3 job-monitor: ALERT OOM killer invoked, killed python3 (pid 4121)",
        blame="both",
        depth=14,
        whole=True,
        unless=FINE,
    ),
    S(
        "mem.shm_exhausted/report",
        "mem.shm_exhausted",
        report(r"/dev/shm\b.{0,40}(?:\b(?:full|exhausted|too small|out of space)\b|\b100 ?%)"),
        "host3 prolog: ERROR /dev/shm is full (64G of 64G)",
        blame="both",
        depth=18,
        whole=True,
        unless=_WELL,
    ),
    S(
        "net.link_flap/report",
        "net.link_flap",
        report(
            _PORT + r".{0,60}\b(?:flap(?:s|ped|ping)?|bounc(?:ed|ing))\b|"
            r"\b(?:flap(?:s|ped|ping)?|bounc(?:ed|ing))\b.{0,40}" + _PORT
        ),
        "host3 fabric-watch: WARN port mlx5_4/1 flapped 6 times in the last 10 minutes",
        blame="both",
        depth=13,
        whole=True,
        unless=FINE + r"|\b0 flaps|NV-?Link",
    ),
    S(
        "net.ib_init_failed/report",
        "net.ib_init_failed",
        report(
            r"\b(?:no|0|missing)\b.{0,12}\b(?:IB device|InfiniBand (?:device|HCA|NIC)|RDMA (?:device|HCA|NIC)|"
            r"verbs device|RoCE (?:device|NIC)|uverbs device)s?\b|"
            r"\b(?:IB|InfiniBand|RDMA|verbs|HCAs?)\b.{0,24}\b(?:devices?|HCAs?|NICs?)?\b.{0,24}"
            r"\b(?:expected|want(?:ed)?)\b\D{0,16}(?P<n>\d+)\b\D{0,16}\b(?:found|got|see|have)\b\D{0,8}(?!(?P=n)\b)\d+|"
            r"/dev/infiniband\b.{0,40}\b(?:missing|absent|not (?:found|present|mounted|visible))"
        ),
        "host3 prolog: ERROR /dev/infiniband is missing in the container",
        blame="both",
        depth=57,
        whole=True,
        unless=_WELL,
    ),
    S(
        "net.gdr_inactive/report",
        "net.gdr_inactive",
        report(
            r"\b(?:nvidia[-_]peermem|nv_peer_mem|peermem|GPUDirect(?: RDMA)?|GDR)\b.{0,50}"
            r"\b(?:not (?:loaded|active|available|in use|working|enabled)|missing|inactive|disabled|unavailable)\b"
        ),
        "host3 prolog: WARNING nvidia_peermem is not loaded",
        blame="both",
        depth=81,
        whole=True,
        unless=_WELL + r"|NCCL INFO|NCCL_|instead|not needed|gdrcopy|GPUDirect Storage|\bcuFile\b",
    ),
    S(
        "storage.quota/report",
        "storage.quota",
        report(r"\b(?:over|above|out of) quota\b|\bquota\b.{0,40}(?:\bfull\b|\bexhausted\b|\b100 ?%)"),
        "host3 prolog: ERROR project quota of /scratch/team is full (100 TB of 100 TB)",
        blame="both",
        depth=18,
        whole=True,
        unless=_WELL,
    ),
    S(
        "slurm.node_fail/report",
        "slurm.node_fail",
        r"(?i)\b(?:node|host|server)[ =:']+(?P<host>[a-z][\w.-]*\d[\w.-]*)\b.{0,40}\b(?:unreachable|stopped "
        r"respond\w*|does not (?:answer|respond)|no longer (?:answers|responds|reachable)|lost (?:contact|power)|"
        r"went (?:down|offline|away)|is (?:now )?(?:down|offline|dead)|powered off|power(?:ed)? loss|no heartbeat)\b|"
        r"\b(?:lost contact (?:with|to)|no heartbeat from|no answer from|no ping from) (?:node |host )?"
        r"(?P<host2>[a-z][\w.-]*\d[\w.-]*)\b|\b(?P<host3>[a-z][\w.-]*\d[\w.-]*): (?:node|host) (?:does not (?:answer|"
        r"respond)|is (?:unreachable|down|offline|dead)|unreachable|down|lost)\b",
        "cluster-monitor: CRITICAL node host7 is unreachable (ping and ssh) since 03:11:02",
        depth=29,
        whole=True,
        unless=r"(?i)\b(?:recovered|reachable again|back|test|maintenance|planned|rdzv|rendezvous|store|port \d+|"
        r"registry|proxy)\b",
    ),
    S(
        "hang.no_progress/report",
        "hang.no_progress",
        report(
            r"\b(?:job|training|run|trainer|rank \d+)\b.{0,40}\b(?:is |seems |appears |looks )?(?:to be )?"
            r"(?:stalled|hung|stuck|frozen|wedged)\b|"
            r"\b(?:no new (?:training )?(?:steps?|iterations?|log|output|lines?)|no training steps?|no steps?|"
            r"no iterations?|no log (?:lines?|output)|no output|no progress)\b.{0,30}"
            r"\b(?:for|in|since|within|during)\b.{0,24}\d"
        ),
        "job-monitor: ALERT no new iteration in the last 1200 s, job 4412 seems hung",
        blame="rank",
        depth=66,
        whole=True,
        unless=r"(?i)not (?:hung|stalled|stuck)|stuck for \d+s!|\bif\b|threshold|monitoring|GSP|GPU \d|CPU",
    ),
    S(
        "fact:counter",
        "fact:counter",
        r"(?i)\b(?P<name>link_down\w*|carrier_changes|link_error_recovery|symbol_err\w*|port_rcv_err\w*|"
        r"local_link_integrity_err\w*)\b.{0,40}?\b(?:from )(?P<was>\d+) to (?P<is>\d+)\b",
        "host3 fabric-watch: WARN link_downed of mlx5_2/1 went from 3 to 9 since the job began",
        blame="both",
    ),
    S(
        "fact:lanes",
        "fact:lanes",
        r"(?i)\b(?:lanes?|width)\b[^\d]{0,12}\b(?P<is>\d+)x? ?(?:of|/|out of|instead of) ?(?P<was>\d+)x?\b|"
        r"\b(?P<is2>\d+) (?:of|out of) (?P<was2>\d+) lanes\b",
        "host3 fabric-watch: WARN mlx5_2/1: 2 of 4 lanes active",
        blame="both",
        unless=r"(?i)NV-?Link|\bGPU\b|nvme",
    ),
    S(
        "fact:clock",
        "fact:clock",
        r"(?i)\bclocks?\b[^\d]{0,30}\b(?P<is>\d{2,5}) ?MHz\b[^\d]{0,40}\b(?:expected|below|instead of|vs|max|of|"
        r"median|base|nominal|should be)\b[^\d]{0,16}(?P<was>\d{2,5}) ?MHz",
        "host3 gpu-check: WARN GPU 5 SM clock 345 MHz, expected 1980 MHz",
        blame="both",
    ),
)
