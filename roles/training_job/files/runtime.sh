#!/bin/bash
# What the job runs in. `runtime.conf` beside this file says it: venv, docker or pyxis. Sourced by launch.sh for its
# functions, or called:  runtime.sh record | inside COMMAND… | sweep | srun-options
# record and sweep run on the node itself, inside runs in the container and refuses what it did not inherit.
set -uo pipefail
runtime_directory=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=/dev/null
. "$runtime_directory/runtime.conf"

runtime_docker=${RACKWEAVE_DOCKER:-docker}
runtime_name="rackweave-${SLURM_JOB_ID:-none}"
runtime_host=${RACKWEAVE_HOST:-${SLURMD_NODENAME:-$(hostname -s)}}
runtime_note="${RACKWEAVE_ATTEMPT:-$runtime_directory}/runtime/$runtime_host.host"

# The node's own namespaces and locked-memory limit, as the container must show them again.
runtime_facts() {
  printf 'ipc %s\nnet %s\nmemlock %s\n' \
    "$(readlink /proc/self/ns/ipc)" "$(readlink /proc/self/ns/net)" "$(ulimit -H -l)"
}

runtime_record() {
  mkdir -p "$(dirname "$runtime_note")" && runtime_facts >"$runtime_note"
}

# Compare inside with outside. A private network or IPC namespace would not stop the job, only make it slow or fail
# late in NCCL, so it is refused here.
runtime_check() {
  local what outside inside status=0
  if [ ! -r "$runtime_note" ]; then
    echo "rackweave: $runtime_host has no record of its own namespaces ($runtime_note)" >&2
    return 64
  fi
  if [ "$(ulimit -H -l)" != unlimited ]; then
    echo "rackweave: memlock on $runtime_host ends at $(ulimit -H -l) kB; RDMA registration of large buffers can fail" >&2
  fi
  # A refusal comes last: it is the line that names the end of the node.
  while read -r what outside; do
    inside=$(runtime_facts | sed -n "s/^$what //p")
    [ "$inside" = "$outside" ] && continue
    if [ "$what" = memlock ] && [ "$inside" = unlimited ]; then continue; fi
    echo "rackweave: the container on $runtime_host has $what $inside, the node has $outside:" \
      "it did not inherit the node's; check the runtime's options and default limits" >&2
    status=64
  done <"$runtime_note"
  return "$status"
}

# Look for what the image must hold, without importing it; each rank would otherwise end with an error of its own.
runtime_modules() {
  local missing
  [ -n "${RACKWEAVE_MODULES[*]-}" ] || return 0
  missing=$(python3 - "${RACKWEAVE_MODULES[@]}" <<'PYTHON'
import importlib.util, sys
def held(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ImportError:
        return False
print(", ".join(name for name in sys.argv[1:] if not held(name)))
PYTHON
  ) || missing="python3"
  [ -z "$missing" ] && return 0
  echo "rackweave: the image $RACKWEAVE_IMAGE lacks $missing: build the job's image with Containerfile of the checkout" \
    "(docs/upgrade.md) and name it in training_job_image" >&2
  return 64
}

# Names of the variables that go into the container: the job's families, every one of the node's own file, and those that
# the operator gave the job by name.
# Values follow by themselves and stay out of the process list.
runtime_environment() {
  local name prefix
  {
    while read -r name; do
      for prefix in "${RACKWEAVE_ENVIRONMENT_PREFIXES[@]}"; do
        case "$name" in "$prefix"*) echo "$name" && break ;; esac
      done
    done < <(compgen -e)
    sed -n 's/^\([A-Za-z_][A-Za-z0-9_]*\)=.*/\1/p' "${RACKWEAVE_ATTEMPT:-}/nccl/$runtime_host.conf" 2>/dev/null
    printf '%s\n' "${RACKWEAVE_ENVIRONMENT_NAMES[@]}"
  } | sed '/^$/d' | sort -u
}

# Remove the job's container of this node; quiet where there is none. Also what the epilog does after a killed launcher.
runtime_sweep() {
  [ "$RACKWEAVE_RUNTIME" = docker ] || return 0
  "$runtime_docker" rm -f "$runtime_name" >/dev/null 2>&1 || true
}

runtime_exec_docker() {
  local words=() name status
  while read -r name; do words+=(--env "$name"); done < <(runtime_environment)
  runtime_record || return 64
  runtime_sweep
  # Not `exec`: a cancelled launcher must still be there to remove the container, which is no child of ours.
  trap 'runtime_cancelled=yes; trap "" TERM INT HUP; "$runtime_docker" stop -t "${RACKWEAVE_STOP_S:-20}" "$runtime_name" >/dev/null 2>&1; runtime_sweep' TERM INT HUP
  "$runtime_docker" run --name "$runtime_name" --label "rackweave.job=${SLURM_JOB_ID:-none}" \
    --user "$(id -u):$(id -g)" "${RACKWEAVE_RUNTIME_OPTIONS[@]}" "${words[@]}" --env HOME=/tmp --workdir /workspace \
    "$RACKWEAVE_IMAGE" bash "$runtime_directory/runtime.sh" inside "$@" &
  wait $!
  status=$?
  # A trap ends `wait` early: ask again until the client itself is gone.
  while kill -0 $! 2>/dev/null; do wait $!; status=$?; done
  runtime_sweep
  return "$status"
}

# Run the command in the job's runtime; the last thing launch.sh does.
runtime_exec() {
  case "$RACKWEAVE_RUNTIME" in
    venv) exec "$@" ;;
    docker) runtime_exec_docker "$@" ;;
    pyxis) runtime_check && runtime_modules && exec "$@" ;;
    *) echo "rackweave: unknown runtime $RACKWEAVE_RUNTIME" >&2 && return 64 ;;
  esac
}

if [ "${BASH_SOURCE[0]}" = "$0" ]; then
  case "${1:-}" in
    record) runtime_record ;;
    inside) shift && runtime_check && runtime_modules && exec "$@" ;;
    sweep) runtime_sweep ;;
    srun-options) [ "${#RACKWEAVE_SRUN_OPTIONS[@]}" = 0 ] || printf '%s\n' "${RACKWEAVE_SRUN_OPTIONS[@]}" ;;
    *) echo "usage: runtime.sh record | inside COMMAND… | sweep | srun-options" >&2 && exit 64 ;;
  esac
fi
