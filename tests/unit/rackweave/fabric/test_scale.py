"""Cost per node is constant: counted exactly for reading, environments and gate; printed as figures on request."""

import json
import sys
import time
from dataclasses import replace

import pytest
from rackweave.fabric.environment import render_environments
from rackweave.fabric.gate import judge_fleet
from rackweave.hardware.document import read_document

from tests.support.documents import reference, request, with_port


def texts(count):
    """Return documents as JSON; every tenth node has a slow link, so that the gate has something to say."""
    documents = []
    for number in range(count):
        document = replace(reference(f"trn0{number % 4 + 1}"), host=f"n{number:04d}")
        documents.append(with_port(document, "mlx5_3", rate_gbps=200.0) if number % 10 == 0 else document)
    return [json.dumps(document.as_dict()) for document in documents]


def judge(given):
    documents = [read_document(json.loads(text)) for text in given]
    asked = request()
    return judge_fleet(documents, render_environments(documents, asked), asked)


def calls(function, argument):
    """Count the calls that a function makes: the same each time, whatever else the machine does."""
    count = 0

    def counted(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(counted)
    try:
        function(argument)
    finally:
        sys.setprofile(None)
    return count


def test_four_times_the_nodes_cost_four_times_the_calls():
    judge(texts(8))  # fills the caches
    small, large = calls(judge, texts(40)), calls(judge, texts(160))

    assert large / small < 4.1


@pytest.mark.benchmark
def test_benchmark_of_1024_documents(capsys, pytestconfig):
    if "benchmark" not in pytestconfig.option.markexpr:
        pytest.skip("figures on request: pytest -m benchmark")
    rows = []
    for count in (128, 256, 512, 1024):
        given = texts(count)
        start = time.process_time()
        verdict = judge(given)
        rows.append((count, time.process_time() - start))
        assert len(verdict.blocked_hosts) == -(-count // 10)
    slope = (rows[-1][1] - rows[0][1]) / (rows[-1][0] - rows[0][0])
    with capsys.disabled():
        shown = ", ".join(f"{n}: {s:.2f}" for n, s in rows)
        sys.stdout.write(f"\nread + environments + gate, processor seconds: {shown}\n")
        sys.stdout.write(f"slope: {slope * 1000:.2f} ms a node\n")
