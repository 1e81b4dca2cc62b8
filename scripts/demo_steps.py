"""Print the step at which the demonstration shall end, or nothing where the inventory's own number holds.

A run that reached its end is trained further by the steps asked for; one that did not is resumed to the same end.
"""

import json
import sys
from pathlib import Path


def end_step(status_text, further):
    """Return the end step for `training_job_steps`, or None for the inventory's number (no run so far)."""
    status = json.loads(status_text) if status_text else {}
    done, target = status.get("step") or 0, status.get("target_step") or 0
    if not target:
        return None
    return target if done < target else done + further


def main():
    path, further = Path(sys.argv[1]), sys.argv[2]
    if not further.isdigit() or int(further) < 1:
        sys.exit(f"demo: DEMO_STEPS={further!r} must be a whole number of steps of at least 1")
    found = end_step(path.read_text() if path.is_file() else None, int(further))
    sys.stdout.write("" if found is None else f"{found}\n")


if __name__ == "__main__":
    main()
