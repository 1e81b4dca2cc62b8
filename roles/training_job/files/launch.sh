#!/bin/bash
# Start the ranks of one node. srun runs this file once on every node of the job (one task each), so everything below
# is expanded on the node itself. It calls itself again as `launch.sh supervise` inside the job's runtime (virtual
# environment or container), and torchrun calls it as `launch.sh rank PROGRAM…`, once for each rank.
set -uo pipefail
: "${RACKWEAVE_ATTEMPT:?is set by job.sbatch; this script runs inside a job}"
tool="$RACKWEAVE_ATTEMPT/launch.py"
export PYTHONDONTWRITEBYTECODE=1  # nothing but run files and outputs belongs into the attempt directory

if [ "${1:-}" = rank ]; then
  shift
  out="$RACKWEAVE_ATTEMPT/logs/$RACKWEAVE_HOST/$RANK"
  mkdir -p "$out"
  exec >>"$out/stdout.log" 2>>"$out/stderr.log"
  # Once for each host, where the program will run: what arrived of the plan, and can its devices be opened?
  # Only its refusal (64) counts: a fault of the check itself must not keep a job from running.
  if [ "${LOCAL_RANK:-}" = 0 ]; then
    python3 "$RACKWEAVE_ATTEMPT/inside.py"
    if [ $? = 64 ]; then exit 1; fi
  fi
  exec "$@"
fi

# shellcheck source=/dev/null
. "$RACKWEAVE_ATTEMPT/runtime.sh"
export RACKWEAVE_RUNTIME
export RACKWEAVE_HOST="${SLURMD_NODENAME:-$(hostname -s)}"
log_dir="$RACKWEAVE_ATTEMPT/logs/$RACKWEAVE_HOST"
environment="$RACKWEAVE_ATTEMPT/nccl/$RACKWEAVE_HOST.conf"

# Every pair of this host's own file, exactly as written: the value runs from the first `=` to the end of the line.
export_host_file() {
  local line
  while IFS= read -r line || [ -n "$line" ]; do
    case "$line" in '' | '#'*) continue ;; esac
    if [[ ! "$line" =~ ^[A-Za-z_][A-Za-z0-9_]*= ]]; then
      python3 "$tool" refuse --reason "line '$line' of $environment is no KEY=value"
      exit 64
    fi
    export "${line%%=*}=${line#*=}"
  done <"$environment"
}

if [ "${1:-}" = supervise ]; then
  # Standard output is the job's log, standard error this node's own; see below.
  exec 3>&1 >&2
  # An image may bring values, and its entry point may change ours: they are written down, then ours are set again.
  if [ "$RACKWEAVE_RUNTIME" = docker ]; then python3 "$tool" image; fi
  export_host_file
  # Only the launcher knows the attempt: where the plan leaves it open, per-rank files of NCCL and PyTorch go there.
  export TORCH_FR_DUMP_TEMP_FILE="${TORCH_FR_DUMP_TEMP_FILE:-$log_dir/flight_recorder_}"
  export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="${TORCH_NCCL_DEBUG_INFO_TEMP_FILE:-$log_dir/flight_recorder_}"
  if [ "${NCCL_DEBUG:-}" = INFO ]; then export NCCL_DEBUG_FILE="${NCCL_DEBUG_FILE:-$log_dir/nccl.%h.%p.log}"; fi
  # A container brings its own programs; the environment of the node's system would not even start there.
  if [ "$RACKWEAVE_RUNTIME" = venv ]; then export PATH="$RACKWEAVE_VENV/bin:$PATH"; fi
  # A rank must not find a package of the working directory or of the user's home before those of the environment.
  export PYTHONUNBUFFERED=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}" PYTHONNOUSERSITE=1
  cd "$RACKWEAVE_ATTEMPT" || exit 64
  # The supervisor starts torchrun, hands signals on, notices ranks that vanish or stand still, leaves no process
  # behind, and returns 0, 64, 75, 76 or 77 from the ranks' own results.
  exec python3 "$RACKWEAVE_ATTEMPT/supervise.py"
fi

mkdir -p "$log_dir"
# The node's story goes to its own file; descriptor 3 stays on the job's log for the few lines that belong there.
exec 3>&1 >>"$log_dir/launch.log" 2>&1

# Node rank, master, port and number of local ranks, from the plan by this node's own name.
settings=$(python3 "$tool" node) || exit $?
eval "$settings"
if [ ! -r "$environment" ]; then
  python3 "$tool" refuse --reason "the plan holds no environment for this host ($environment); make the plan again"
  exit 64
fi
export_host_file

# A container is handed the job's log as its standard output: it inherits no other descriptor.
runtime_exec bash "$RACKWEAVE_ATTEMPT/launch.sh" supervise >&3
status=$?
# Here only where the runtime is no plain process: a container that has ended, or one that did not start.
if [ ! -e "$log_dir/exit.json" ]; then
  case "$status" in
    64 | 126 | 127) code=64 ;; # refused by runtime.sh, or an image without the programs that are needed
    125) code=76 ;;            # the container engine of this node
    *) code=75 ;;
  esac
  python3 "$tool" refuse --code "$code" ${runtime_cancelled:+--terminated} --reason \
    "the $RACKWEAVE_RUNTIME container ended with status $status before its supervisor did: $(tail -n 1 "$log_dir/launch.log")"
  exit "$code"
fi
exit "$status"
