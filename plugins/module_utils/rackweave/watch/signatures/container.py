"""Containers: enroot and pyxis, docker, podman, apptainer, Kubernetes, the NVIDIA container toolkit."""

from __future__ import annotations

from ..signature import Signature as S

TABLE = (
    S(
        "container.import_failed/any",
        "container.import_failed",
        r"pyxis: failed to (?:import|download)|manifest (?:for \S+ not found|unknown)|pull access denied|"
        r"(?i:failed to pull (?:and unpack )?image)|toomanyrequests|unauthorized: (?:authentication|access)"
        r"|ErrImagePull|ImagePullBackOff|"
        r"(?i:(?:fatal|error):? .{0,80}(?:docker://|reading manifest|initializing source))|URL \S+ returned "
        r"error code: \d+|\[ERROR\].*(?:No such file or directory|Could not).*\.sqsh|(?:No such file or "
        r"directory|not found): \S+\.(?:sqsh|sif)\b|requested access to the resource is denied|failed "
        r"to resolve reference",
        "slurmstepd: error: pyxis: failed to import docker image",
        blame="host",
        depth=20,
    ),
    S(
        "container.start_failed/any",
        "container.start_failed",
        r"pyxis: container start failed|enroot-(?:switchroot|mount|nsenter|mksquashovlfs|aufs2ovlfs)\S*: "
        r"(?:failed|error)|spank_pyxis\.so: (?:init|task_init|init_post_opt)\w*\(\) failed|task \d+ launch "
        r"failed: Plugin initialization failed|pyxis: (?:couldn't mkdir|seccomp filter failed|mkdir: cannot "
        r"create)|nvidia-container-cli(?:\.real)?: .*(?:error|failed)|OCI runtime (?:(?:create|exec) )?(?:failed|"
        r"error)|"
        r"unresolvable CDI device|preparing container \S+ for attach|could not select device driver|failed to "
        r"create shim|"
        r"(?:executable file not found in \$PATH)|container creation failed|pyxis: couldn't start container|"
        r"(?i:(?:enroot|container|oci|prestart|createContainer|createRuntime|\.sh)\b.{0,60}\bhook\b.{0,60}\b(?:faile"
        r"d|exited|error))|hooks?(?:\.d)?/\S+ (?:exited with|returned|failed)|CreateContainerError|RunContainerError",
        "slurmstepd: error: pyxis: container start failed with error code: 1",
        blame="host",
        depth=21,
        unless=r"(?i)version mismatch",
    ),
)
