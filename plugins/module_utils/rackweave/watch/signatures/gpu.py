"""GPU faults: NVRM Xid and NVSwitch SXid of the kernel log, CUDA error texts, NVML and container texts."""

from __future__ import annotations

from ..signature import FINE, report
from ..signature import Signature as S


def _xid(codes: str) -> str:
    """The driver's line for one of these numbers, its echo on another channel (Xid 45, "caused by previous Xid"), or
    the number alone, as device plug-ins, DCGM and health checks print it."""
    kernel = rf" \(PCI:(?P<bdf>[0-9a-fA-F:.]+)\): (?:(?:{codes})\b|45\b.{{0,120}}\bprevious Xid (?:{codes})\b)"
    number = rf"(?:(?: error| code)?[=:] ?|(?: error| code) )(?:{codes})\b(?! *[,/|] *\d)"
    told = rf" (?:{codes}) (?:on|at|was|detected|seen|reported|occurred)\b"
    return rf"\bX[Ii][Dd](?:{kernel}|{number}|{told})"


TABLE = (
    S(
        "gpu.fallen_off_bus/xid",
        "gpu.fallen_off_bus",
        _xid(r"79"),
        "host1 kernel: NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        blame="host",
        depth=10,
    ),
    S(
        "gpu.fallen_off_bus/text",
        "gpu.fallen_off_bus",
        r"fallen off the bus|\bGPU is lost\b|GPU_IS_LOST",
        "host6 kernel: NVRM: fallen off the bus and is not responding to commands.",
        blame="both",
        depth=10,
    ),
    # What nvidia-smi says of a GPU that does not answer: the kernel's line, where there is one, tells why.
    S(
        "gpu.fallen_off_bus/handle",
        "gpu.fallen_off_bus",
        r"Unable to determine the device handle for (?:gpu|GPU).*(?:Unknown Error|lost|Not Found)",
        "host6 nvidia-smi: Unable to determine the device handle for GPU0000:3B:00.0: Unknown Error",
        blame="both",
        depth=12,
    ),
    S(
        "gpu.ecc_uncorrectable/xid",
        "gpu.ecc_uncorrectable",
        _xid(r"48|63|94|95|140|171|172"),
        "host2 kernel: NVRM: Xid (PCI:0000:52:00): 48, pid='<unknown>', name=<unknown>, An uncorrectable "
        "double bit error",
        blame="host",
        depth=11,
        unless=r"(?i)failed|failure",
    ),
    S(
        "gpu.ecc_uncorrectable/cuda",
        "gpu.ecc_uncorrectable",
        r"(?i)uncorrectable ECC error encountered|cudaErrorECCUncorrectable|CUDA_ERROR_ECC_UNCORRECTABLE|"
        r"double[- ]bit ECC error",
        "[rank11]: RuntimeError: CUDA error: uncorrectable ECC error encountered",
        blame="both",
        depth=14,
    ),
    S(
        "gpu.row_remap_failure/xid",
        "gpu.row_remap_failure",
        _xid("64") + r"|Remapping Failure Occurred\s*: Yes",
        "host2 kernel: NVRM: Xid (PCI:0000:52:00): 64, Row remapping failure",
        blame="host",
        depth=9,
    ),
    S(
        "gpu.gsp_timeout/xid",
        "gpu.gsp_timeout",
        _xid(r"61|62|119|120|122|123"),
        "host11 kernel: NVRM: Xid (PCI:0000:9b:00): 119, pid=2, name=nvidia-smi, Timeout after 6s of "
        "waiting for RPC response "
        "from GPU4 GSP!",
        blame="host",
        depth=11,
    ),
    S(
        "gpu.gsp_timeout/text",
        "gpu.gsp_timeout",
        r"waiting for RPC (?:response )?from (?:GPU\d* ?)?GSP|GSP (?:task|firmware) (?:crash|timeout|error|"
        r"halt)|RmInitAdapter failed.*GSP",
        "NVRM: _kgspLogXid119: Timeout after 45s of waiting for RPC response from GPU0 GSP!",
        blame="host",
        depth=11,
    ),
    S(
        "gpu.nvlink_error/xid",
        "gpu.nvlink_error",
        _xid(r"74|137|14[4-9]|150"),
        "host9 kernel: NVRM: Xid (PCI:0000:3b:00): 74, pid='<unknown>', name=<unknown>, NVLink: fatal "
        "error detected on link 14",
        blame="host",
        depth=11,
        unless=r"(?i)\bnon-?fatal\b",
    ),
    S(
        "gpu.nvlink_error/cuda",
        "gpu.nvlink_error",
        r"(?i)uncorrectable NVLink error|CUDA_ERROR_NVLINK_UNCORRECTABLE|cudaErrorNvlinkUncorrectable|"
        r"NVLink (?:training|initiali[sz]ation) (?:error|fail)|link \d+: <inactive>.*expected",
        "[rank4]: RuntimeError: CUDA error: uncorrectable NVLink error detected during the execution",
        blame="both",
        depth=14,
    ),
    S(
        "gpu.nvswitch_fatal/sxid",
        "gpu.nvswitch_fatal",
        r"SXid \(PCI:[0-9a-fA-F:.]+\): \d+, (?!Non-?[Ff]atal)(?:Fatal|FATAL)\b",
        "host9 kernel: nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 30 LTSSM Fault Up",
        blame="host",
        depth=10,
    ),
    S(
        "gpu.nvswitch_fatal/fabric",
        "gpu.nvswitch_fatal",
        r"system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY|cudaErrorSystemNotReady|(?i:fatal error.{0,40}NVSwi"
        r"tch)|"
        r"NVSwitch.{0,60}(?:fatal|in reset required)",
        "[rank0]: RuntimeError: CUDA error: system not yet initialized",
        blame="both",
        depth=14,
        unless=r"(?i)non-?fatal",
    ),
    # NCCL itself points at fabric manager here. Error 2 is another thing: the switches have no multicast group left.
    S(
        "gpu.nvswitch_fatal/multicast",
        "gpu.nvswitch_fatal",
        r"ailed to bind NVLink SHARP \(NVLS\) Multicast memory(?!.{0,120}CUDA error 2\b)|"
        r"nvls\.cc.{0,60}(?i:CUDA failure) 401\b",
        "[rank5]: Failed to bind NVLink SHARP (NVLS) Multicast memory of size 2097152 : CUDA error 401 'the operation "
        "cannot be performed in the present state'.",
        blame="both",
        depth=14,
    ),
    S(
        "gpu.app_fault/xid",
        "gpu.app_fault",
        _xid(r"8|13|31|32|43|68|69|109"),
        "host2 kernel: NVRM: Xid (PCI:0000:cb:00): 31, pid=626486, name=pt_main_thread, Ch 00000008, "
        "intr 00000000. MMU Fault",
        blame="host",
        depth=15,
    ),
    S(
        "gpu.app_fault/cuda",
        "gpu.app_fault",
        r"an illegal memory access was encountered|unspecified launch failure|an illegal instruction was "
        r"encountered|misaligned address|"
        r"CUDA_ERROR_(?:ILLEGAL_ADDRESS|LAUNCH_FAILED|MISALIGNED_ADDRESS|ILLEGAL_INSTRUCTION)|cudaErrorIllegalAddres"
        r"s|invalid program counter|hardware stack error",
        "[rank2]:[E814 02:11:40.118 ProcessGroupNCCL.cpp:1895] [PG ID 0 PG GUID 0(default_pg) Rank 2] "
        "Process group watchdog "
        "thread terminated with exception: CUDA error: an illegal memory access was encountered",
        blame="both",
        depth=19,
        severity="fatal",
    ),
    S(
        "gpu.driver_mismatch/nvml",
        "gpu.driver_mismatch",
        r"(?i)driver/library version mismatch|NVRM: API mismatch|CUDA driver version is insufficient for CUDA "
        r"runtime|"
        r"cudaErrorSystemDriverMismatch|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|unsupported display driver / "
        r"cuda driver combination|NVIDIA driver on your system is too old|LIB_RM_VERSION_MISMATCH",
        "host4: Failed to initialize NVML: Driver/library version mismatch",
        blame="both",
        depth=9,
    ),
    S(
        "gpu.ecc_uncorrectable/report",
        "gpu.ecc_uncorrectable",
        report(
            r"\b(?:uncorrect\w*|double[- ]bit|DBE)\b.{0,40}\b(?:ECC|SRAM|DRAM|HBM)|"
            r"ECC\b.{0,40}\b(?:uncorrect\w*|double[- ]bit)"
        ),
        "host3 health: GPU 2: FAIL: volatile uncorrectable ECC errors: 3",
        blame="both",
        depth=14,
        whole=True,
        unless=FINE,
    ),
    S(
        "gpu.nvlink_error/report",
        "gpu.nvlink_error",
        report(r"\bNV-?Link\b(?! *SHARP).{0,40}\b(?:down|inactive|errors?|fail\w*|fault|not active)\b"),
        "host3 health: GPU 6: FAIL: NvLink 5 is currently down",
        blame="both",
        depth=14,
        whole=True,
        unless=FINE + r"|NVLS|Xid|SXid",
    ),
    S(
        "gpu.fallen_off_bus/report",
        "gpu.fallen_off_bus",
        report(r"\bGPU\b.{0,30}\b(?:is |was )?(?:lost|disappeared|gone|dropped off|off the bus)\b"),
        "host3 health: ERROR GPU 4 is gone from the bus",
        blame="both",
        depth=14,
        whole=True,
        unless=FINE + r"|memory|utili[sz]ation|packet",
    ),
    S(
        "gpu.nvswitch_fatal/report",
        "gpu.nvswitch_fatal",
        report(
            r"\bNVSwitch\b.{0,40}\b(?:fatal|fail\w*|down)\b|"
            r"\bfabric-?manager\b.{0,60}\b(?:fail\w*|not running|dead|crash\w*)\b"
        ),
        "host3 health: CRITICAL nvidia-fabricmanager is not running",
        blame="both",
        depth=14,
        whole=True,
        unless=FINE + r"|non-?fatal|NV_WARN_NOTHING_TO_DO",
    ),
    # What fabric manager says on a node without switches, before it ends with an error.
    S(
        "fact:no_switches",
        "fact:no_switches",
        r"NVSwitch.{0,120}\bNV_WARN_NOTHING_TO_DO",
        "Jan 02 10:00:00 host3 nv-fabricmanager[812]: request to query NVSwitch device information from NVSwitch "
        "driver failed with error:WARNING Nothing to do [NV_WARN_NOTHING_TO_DO]",
    ),
)
