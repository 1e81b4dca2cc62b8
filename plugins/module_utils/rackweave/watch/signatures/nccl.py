"""Faults of the communication library itself."""

from __future__ import annotations

from ..signature import Signature as S

TABLE = (
    S(
        "nccl.duplicate_gpu/nccl",
        "nccl.duplicate_gpu",
        r"Duplicate GPU detected ?: rank (?P<rank>\d+) and rank (?P<rank2>\d+)",
        "host8:59522:59993 [0] init.cc:795 NCCL WARN Duplicate GPU detected : rank 6 and rank 4 both "
        "on CUDA device 31000",
        blame="host",
        depth=24,
    ),
    S(
        "nccl.version_mismatch/nccl",
        "nccl.version_mismatch",
        r"[Mm]ismatched NCCL version detected ?: rank (?P<rank>\d+)(?: version (?P<version>\d+) "
        r"rank (?P<rank2>\d+)(?: version (?P<version2>\d+))?)?|NCCL version mismatch",
        "host1:5:5 [0] init.cc:1100 NCCL WARN Mismatched NCCL version detected : rank 3 version 22803 "
        "rank 0 version 22005",
        blame="host",
        depth=24,
    ),
    S(
        "nccl.version_mismatch/bootstrap",
        "nccl.version_mismatch",
        r"(?<!peer )Message truncated ?: received \d+ bytes instead of \d+",
        "host1:5:5 [0] bootstrap.cc:87 NCCL WARN Bootstrap : Message truncated : received 256 bytes instead of 128",
        depth=33,
        unless=r"NET/Socket",
    ),
    S(
        "fact:nccl_version",
        "fact:nccl_version",
        r"NCCL (?:INFO )?NCCL version (?P<version>\d+\.\d+\.\d+)|^NCCL version (?P<version2>\d+\.\d+\.\d+)",
        "host1:5:5 [0] NCCL INFO NCCL version 2.21.5+cuda12.4",
        blame="host",
    ),
    S(
        "fact:communicates",
        "fact:communicates",
        r"ncclCommInit\w* .*Init COMPLETE|Connected all (?:rings|trees)|Connected (?:NVLS|binomial) tree",
        "host1:5:5 [0] NCCL INFO ncclCommInitRankConfig comm 0x1 rank 0 nranks 8 cudaDev 0 nvmlDev 0 - Init COMPLETE",
    ),
    S(
        "nccl.segfault/kernel",
        "nccl.segfault",
        r"(?:segfault at|general protection fault).*\bin lib(?:nccl|rccl)[\w.-]*",
        "host1 kernel: python3[4242]: segfault at 0 ip 00007f2a sp 00007f1b error 4 in libnccl.so.2.21.5[7f2a+1000]",
        blame="host",
        depth=40,
    ),
    S(
        "fact:segv",
        "fact:segv",
        r"Caught signal 11|!+ Segfault encountered|\bSegmentation fault\b|SIGSEGV|Signal: Segmentation",
        "[host1:4242 :0:4242] Caught signal 11 (Segmentation fault: address not mapped to object at address (nil))",
        blame="both",
    ),
    S(
        "fact:nccl_frame",
        "fact:nccl_frame",
        r"(?:libnccl|librccl)[\w.-]*\.so[\w.]*\s*\(|/(?:libnccl|librccl)[\w.-]*\.so[\w.]*\b|\bin p?nccl[A-Z]\w+ ?\(|"
        r"^\s*(?:#|\[)? ?\d+\]? .*\sp?nccl[A-Z]\w+ ?\(",
        " 2  /usr/lib/x86_64-linux-gnu/libnccl.so.2(+0x5a3f0) [0x7f2a]",
        unless=r"NCCL (?:INFO|WARN)|Plugin|plugin|[Ll]oad(?:ed|ing)|version|cannot open|ImportError|LD_PRELOAD",
    ),
)
