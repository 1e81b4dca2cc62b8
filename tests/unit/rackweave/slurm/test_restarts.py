from rackweave.slurm.restarts import start_times, update_notes

LINES = (
    "NodeName=gpu01 Arch=x86_64 State=IDLE BootTime=2026-11-29T20:36:48 SlurmdStartTime=2026-11-29T20:40:00 X=1\n"
    "NodeName=gpu02 State=DOWN* BootTime=None SlurmdStartTime=None Reason=Not responding [slurm@2026-11-29T20:36:48]\n"
)
NODES = ["gpu01", "gpu02"]


def test_start_times_are_read_and_an_unknown_one_is_empty():
    assert start_times(LINES) == {"gpu01": "2026-11-29T20:40:00", "gpu02": ""}
    assert start_times("No nodes in the system\n") == {}


def test_a_change_makes_a_restart_due_everywhere():
    notes = update_notes({}, NODES, {"gpu01": "a", "gpu02": ""}, NODES)
    assert notes.due == ("gpu01", "gpu02")
    assert notes.keep == {"gpu01": "a", "gpu02": ""}


def test_a_node_that_was_restarted_since_owes_nothing():
    assert update_notes({"gpu01": "a", "gpu02": "b"}, [], {"gpu01": "c", "gpu02": "b"}, NODES).due == ("gpu02",)


def test_a_node_that_slurm_does_not_see_keeps_its_note():
    assert update_notes({"gpu01": "a"}, [], {"gpu01": ""}, NODES).due == ("gpu01",)
    assert update_notes({"gpu01": "a"}, [], {}, NODES).due == ("gpu01",)


def test_a_note_without_start_time_stays_until_the_restart_was_made():
    assert update_notes({"gpu02": ""}, [], {"gpu02": "later"}, NODES).due == ("gpu02",)


def test_a_node_that_left_the_cluster_is_dropped():
    assert update_notes({"gpu09": "a"}, ["gpu08"], {}, NODES).due == ()
