#!/bin/bash
# Start one program with the job's Python in the job's runtime; every pair of this host's own file is exported first.
set -uo pipefail
export RACKWEAVE_HOST="${SLURMD_NODENAME:-$(hostname -s)}"
environment="$RACKWEAVE_ACCEPTANCE/nccl/$RACKWEAVE_HOST.conf"
while IFS= read -r line || [ -n "$line" ]; do
  case "$line" in '' | '#'*) continue ;; esac
  export "${line%%=*}=${line#*=}"
done <"$environment"
export PYTHONDONTWRITEBYTECODE=1 PYTHONNOUSERSITE=1 PYTHONUNBUFFERED=1 OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"
# shellcheck source=/dev/null
. "$RACKWEAVE_ACCEPTANCE/runtime.sh"
runtime_exec "$RACKWEAVE_PYTHON" "$@"
