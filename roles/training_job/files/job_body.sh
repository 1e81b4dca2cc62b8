# --- from here on the script is the same for every run -----------------------------------------------------------
# Makes the attempt directory, starts one launcher per node, maps how they ended to one exit status, and asks for
# a new start where that is allowed. The settings above come from the plan; nothing else is read from the outside.
set -uo pipefail
restart=${SLURM_RESTART_COUNT:-0}
attempt="$RACKWEAVE_RUN_DIR/attempts/$SLURM_JOB_ID.$restart"
export RACKWEAVE_RUN RACKWEAVE_RUN_DIR RACKWEAVE_VENV RACKWEAVE_COMMAND RACKWEAVE_STALL_S
export RACKWEAVE_ATTEMPT="$attempt" RACKWEAVE_RESTART="$restart" PYTHONDONTWRITEBYTECODE=1

say() { printf '%s rackweave: %s\n' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$*"; }

# Filled under a hidden name first: who watches the run sees an attempt with its plan, or none.
part="$RACKWEAVE_RUN_DIR/attempts/.$SLURM_JOB_ID.$restart.part"
if ! mkdir -p "$RACKWEAVE_RUN_DIR/attempts" || [ -e "$attempt" ] || ! mkdir "$part"; then
  say "the attempt directory $attempt (or $part, which a start that was cut off leaves) cannot be made, or exists" \
    "already; an attempt is never overwritten: where a new controller counts its jobs from 1 again, move the old" \
    "attempts away or give the run another name"
  exit 64
fi
mkdir "$part/logs" "$part/result" "$part/phase" "$part/placement"
if ! cp -R "$RACKWEAVE_RUN_DIR/plan/." "$part/" || ! mv -T "$part" "$attempt"; then
  rm -rf "$part"
  say "the run files of $RACKWEAVE_RUN_DIR/plan cannot be copied; launch the run again"
  exit 64
fi
tool="$attempt/launch.py"

if [ "$restart" -gt "$RACKWEAVE_MAX_RESTARTS" ]; then
  say "restart $restart exceeds the budget of $RACKWEAVE_MAX_RESTARTS; not starting again"
  python3 "$tool" close --code 75 --reason "the restart budget of $RACKWEAVE_MAX_RESTARTS is spent"
  exit 75
fi
# `open` compares allocated and planned hosts and writes attempt.json; its refusal is one sentence and status 64.
python3 "$tool" open || exit $?
say "attempt $SLURM_JOB_ID.$restart of run $RACKWEAVE_RUN on ${SLURM_JOB_NODELIST:-?}"

# Slurm sends USR1 to this shell alone, some time before the limit; the trainer looks for the file at every step.
save_and_exit() {
  say "the time limit is near: asking the job to save and exit"
  touch "$attempt/save-and-exit"
}
trap save_and_exit USR1

# Where Slurm itself starts the containers (pyxis), it gets the options for it, and each node first writes down what the
# container must show again. Elsewhere launch.sh enters the runtime.
container=()
while IFS= read -r option; do container+=("$option"); done < <(bash "$attempt/runtime.sh" srun-options)
if [ "${#container[@]}" != 0 ] && ! srun --ntasks-per-node=1 bash "$attempt/runtime.sh" record; then
  say "not every node could write down its own namespaces and limits; not starting"
  python3 "$tool" close --code 75 --reason "the record of the nodes' own namespaces failed"
  exit 75
fi

# One task per node; launch.sh is expanded there, not here. Without the kill switch a hung node keeps the allocation.
srun --kill-on-bad-exit=1 --wait=600 --ntasks-per-node=1 --label ${container[@]+"${container[@]}"} bash "$attempt/launch.sh" &
srun_pid=$!
# `wait` returns early when the trap has run, so it is asked again until srun itself is gone.
srun_code=0
while :; do
  wait "$srun_pid"
  srun_code=$?
  kill -0 "$srun_pid" 2>/dev/null || break
done

# A launcher that was killed outright could not clean up; this step ends what it left, a container included, and is quick
# where nothing is.
timeout --kill-after=5 40 srun --overlap --ntasks-per-node=1 bash -c \
  'bash "$RACKWEAVE_ATTEMPT/runtime.sh" sweep; exec python3 "$RACKWEAVE_ATTEMPT/launch.py" sweep' ||
  say "the closing sweep did not reach every node"

requeue=no
code=$(python3 "$tool" verdict --srun-code "$srun_code")
case "$code" in
  75 | 77)
    if [ "$RACKWEAVE_REQUEUE" = 1 ] && [ "$restart" -lt "$RACKWEAVE_MAX_RESTARTS" ]; then requeue=yes; fi
    ;;
esac
python3 "$tool" close --code "$code" --srun-code "$srun_code" --requeue "$requeue"
if [ "$requeue" = yes ]; then
  say "status $code: starting again ($((restart + 1)) of $RACKWEAVE_MAX_RESTARTS)"
  # Slurm ends this shell when the requeue takes effect; if it refuses, the true status is returned after all.
  if scontrol requeue "$SLURM_JOB_ID"; then sleep 60; else say "Slurm refused the requeue"; fi
fi
say "ended with status $code"
exit "$code"
