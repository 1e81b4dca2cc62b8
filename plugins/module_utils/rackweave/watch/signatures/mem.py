"""Memory: GPU, host, shared memory segments. The phase of a GPU shortage is a scene (``watch.phases``)."""

from __future__ import annotations

from ..signature import Signature as S

TABLE = (
    S(
        "mem.cuda_oom/torch",
        "mem.cuda_oom",
        r"(?:CUDA|HIP|XPU|NPU) out of memory\.? Tried|(?:CUDA|HIP) out of memory\b(?=\.|$)|\bOutOfMemoryError\b(?!.*"
        r"Java)|"
        r"(?:CUDA|HIP|Cuda|cuda)(?: driver| runtime)? ?(?:[Ff]ailure|error):?(?: \d+)? ?:?'?\(?(?:\d+ )?out of "
        r"memory|"
        r"CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|CU(?:BLAS|DNN|SOLVER|SPARSE)_STATUS_ALLOC_FAILED|"
        r"RESOURCE_EXHAUSTED: Out of memory",
        "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB. GPU 3 has a "
        "total capacity of 79.11 GiB",
        blame="both",
        depth=20,
        unless=r"(?i)NCCL INFO|java\.lang|skipp(?:ed|ing)|retry(?:ing)? with (?:a )?smaller|batch size "
        r"finder|will be retried|recovered from",
    ),
    S(
        "fact:nccl_alloc",
        "fact:nccl_alloc",
        r"(?:NCCL WARN|Last error|NCCL error|Cuda failure).*out of memory",
        "host1:5:5 [0] include/alloc.h:180 NCCL WARN Cuda failure 'out of memory'",
        blame="both",
    ),
    S(
        "mem.host_oom/kernel",
        "mem.host_oom",
        r"(?:^|[: ])(?:Memory cgroup out of memory|Out of memory)(?:: Kill(?:ed)? process| \(oom_kill_allocating_tas"
        r"k\))|^oom-kill:|^oom_reaper: reaped",
        "host7 kernel: Memory cgroup out of memory: Killed process 14750 (pt_main_thread) total-vm:412004512kB",
        blame="host",
        depth=12,
        unless=r"task_memcg=/(?:system|user)\.slice/(?!slurm)",
    ),
    S(
        "mem.host_oom/slurm",
        "mem.host_oom",
        r"(?i:detected [1-9]\d* oom[-_]kill event)|srun: error: (?P<host>[\w.-]+): tasks? [\d,-]+: Out Of Memory|"
        r"killed by the cgroup out-of-memory handler|exceeded (?:job |step |virtual )?memory limit.*(?:kill|"
        r"at some point)|"
        r"\bOOMKilled\b|\bOUT_OF_ME(?:MORY|\+)",
        "slurmstepd: error: Detected 1 oom_kill event in StepId=4412.0. Some of the step tasks have been OOM Killed.",
        blame="host",
        depth=13,
    ),
    S(
        "mem.host_oom/oomd",
        "mem.host_oom",
        r"\bKilled \S+ due to memory (?:pressure|used)|\bearlyoom\b.{0,80}\bsending SIG\w+ to process",
        "host3 systemd-oomd[7]: Killed /system.slice/slurmstepd.scope/job_9 due to memory pressure for /system.slice",
        blame="host",
        depth=13,
    ),
    S(
        "mem.host_oom/ray",
        "mem.host_oom",
        r"[1-9]\d* Workers \(tasks / actors\) killed due to memory pressure \(OOM\)(?:.*IP: (?P<host>[\w.:-]+?)\))?|"
        r"killed due to the node running low on memory",
        "(raylet) node_manager.cc:3064: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers "
        "crashed due to other reasons at node (ID: 201f, IP: 192.0.2.7) over the last time period.",
        blame="host",
        depth=13,
    ),
    S(
        "mem.host_oom/user",
        "mem.host_oom",
        r"^(?:\w+\.)*(?:_Array)?MemoryError\b|\[Errno 12\] Cannot allocate memory|DefaultCPUAllocator: "
        r"(?:can't allocate|not enough) memory|"
        r"what\(\): +std::bad_alloc",
        "[rank2]: RuntimeError: [enforce fail at alloc_cpu.cpp:117] err == 0. DefaultCPUAllocator: can't "
        "allocate memory: you "
        "tried to allocate 8589934592 bytes. Error code 12 (Cannot allocate memory)",
        blame="both",
        depth=22,
        unless=r"/torch_\d|shm|ibv_",
    ),
    S(
        "mem.shm_exhausted/nccl",
        "mem.shm_exhausted",
        r"failed to extend /dev/shm|Error while creating shared memory segment|(?:No space left on device|"
        r"Disk quota).*/dev/shm|/dev/shm.*No space left",
        "host1:9621:9691 [6] misc/shmutils.cc:71 NCCL WARN Error: failed to extend /dev/shm/nccl-fjwOOB "
        "to 5967876 bytes",
        blame="both",
        depth=18,
        unless=r"NCCL INFO",
    ),
    S(
        "mem.shm_exhausted/torch",
        "mem.shm_exhausted",
        r"insufficient shared memory|workers? are out of shared memory|shared memory object </?torch_[^>]*>.*(?:No "
        r"space|Cannot allocate|Too many)|"
        r"(?:unable to (?:allocate shared memory|write to file|mmap|resize)|could not (?:open|unlink)).*</?torch_\d|"
        r"out of shared memory\b(?!.*Required)|"
        r"[Nn]o space left on device: '?/torch_",
        "RuntimeError: DataLoader worker (pid 4242) is killed by signal: Bus error. It is possible that "
        "dataloader's workers "
        "are out of shared memory.",
        blame="both",
        depth=18,
    ),
)
