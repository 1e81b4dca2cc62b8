#!/bin/bash
# Start the ranks of one node. srun runs this file once on every node of the job (one task each), so everything below
# is expanded on the node itself. torchrun calls it again as `launch.sh rank PROGRAM…`, once for each rank.
set -uo pipefail
: "${RACKWEAVE_ATTEMPT:?is set by job.sbatch; this script runs inside a job}"
tool="$RACKWEAVE_ATTEMPT/launch.py"
export PYTHONDONTWRITEBYTECODE=1  # nothing but run files and outputs belongs into the attempt directory

if [ "${1:-}" = rank ]; then
  shift
  out="$RACKWEAVE_ATTEMPT/logs/$RACKWEAVE_HOST/$RANK"
  mkdir -p "$out"
  exec "$@" >>"$out/stdout.log" 2>>"$out/stderr.log"
fi

export RACKWEAVE_HOST="${SLURMD_NODENAME:-$(hostname -s)}"
log_dir="$RACKWEAVE_ATTEMPT/logs/$RACKWEAVE_HOST"
mkdir -p "$log_dir"
# The node's story goes to its own file; descriptor 3 stays on the job's log for the few lines that belong there.
exec 3>&1 >>"$log_dir/launch.log" 2>&1

# Node rank, master, port and number of local ranks, from the plan by this node's own name.
settings=$(python3 "$tool" node) || exit $?
eval "$settings"

# Every pair of this host's own file, exactly as written: the value runs from the first `=` to the end of the line.
environment="$RACKWEAVE_ATTEMPT/nccl/$RACKWEAVE_HOST.conf"
if [ ! -r "$environment" ]; then
  python3 "$tool" refuse --reason "the plan holds no environment for this host ($environment); make the plan again"
  exit 64
fi
while IFS= read -r line || [ -n "$line" ]; do
  case "$line" in '' | '#'*) continue ;; esac
  if [[ ! "$line" =~ ^[A-Za-z_][A-Za-z0-9_]*= ]]; then
    python3 "$tool" refuse --reason "line '$line' of $environment is no KEY=value"
    exit 64
  fi
  export "${line%%=*}=${line#*=}"
done <"$environment"

# Only the launcher knows the attempt: where the plan leaves it open, per-rank files of NCCL and PyTorch go there.
export TORCH_FR_DUMP_TEMP_FILE="${TORCH_FR_DUMP_TEMP_FILE:-$log_dir/flight_recorder_}"
export TORCH_NCCL_DEBUG_INFO_TEMP_FILE="${TORCH_NCCL_DEBUG_INFO_TEMP_FILE:-$log_dir/flight_recorder_}"
if [ "${NCCL_DEBUG:-}" = INFO ]; then export NCCL_DEBUG_FILE="${NCCL_DEBUG_FILE:-$log_dir/nccl.%h.%p.log}"; fi

export PATH="$RACKWEAVE_VENV/bin:$PATH" PYTHONUNBUFFERED=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# A rank must not find a package of the working directory or of the user's home before those of the environment.
export PYTHONNOUSERSITE=1
cd "$RACKWEAVE_ATTEMPT" || exit 64

# The supervisor starts torchrun, hands signals on, notices ranks that vanish or stand still, leaves no process
# behind, and returns 0, 64, 75, 76 or 77 from the ranks' own results.
exec python3 "$RACKWEAVE_ATTEMPT/supervise.py"
