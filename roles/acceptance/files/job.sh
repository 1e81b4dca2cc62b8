#!/bin/bash
# The acceptance job: one Slurm step after the other on all its nodes, so that nodes are measured at the same time and
# phases are not. Called with the stages to run. A node that fails leaves no result; the others go on.
set -uo pipefail
directory=$RACKWEAVE_ACCEPTANCE
export RACKWEAVE_ATTEMPT=$directory  # where runtime.sh finds the files of each node
step_s=${RACKWEAVE_STEP_S:-300}

finish() {
  rm -f "$RACKWEAVE_STORAGE"/.rackweave-acceptance-"$SLURM_JOB_ID"-*
}
trap finish EXIT

# All CPUs of the node for its one task, which starts the ranks itself.
on_every_node() {
  timeout --kill-after=10 "$step_s" \
    srun --ntasks-per-node=1 --cpu-bind=none --no-kill --kill-on-bad-exit=0 --wait=0 "$@" ||
    echo "rackweave: step '$*' ended with $?"
}

# In the runtime of the training job; where Slurm itself starts the containers, each node first writes down what the
# container must show again.
collective() {
  local container=() option
  while IFS= read -r option; do container+=("$option"); done < <(bash "$directory/runtime.sh" srun-options)
  [ "${#container[@]}" = 0 ] || on_every_node bash "$directory/runtime.sh" record
  on_every_node ${container[@]+"${container[@]}"} bash "$directory/start.sh" "$directory/collective.py" "$directory"
}

for stage in "$@"; do
  echo "rackweave: stage $stage at $(date +%T)"
  case "$stage" in
    collective) collective ;;
    *) on_every_node /usr/bin/python3 "$directory/probe.py" "$directory" "$stage" ;;
  esac
done
