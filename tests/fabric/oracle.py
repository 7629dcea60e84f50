"""The library's predictions: bin/tests/fabric_oracle, asked a question a line."""

import json
import os
import pathlib
import subprocess


def ask(*, prefix=(), **question) -> dict:
    """`prefix`: a command that runs it somewhere else."""
    program = pathlib.Path(os.environ["WEFT_BIN"]) / "tests/fabric_oracle"
    done = subprocess.run([*prefix, program], input=json.dumps(question) + "\n", text=True,
                          capture_output=True)
    if done.returncode != 0:
        raise RuntimeError(f"fabric_oracle: {done.stderr.strip()}")
    return json.loads(done.stdout)


def describe(fabric, host_mbit=10_000) -> dict:
    """A fabric of netns.py as the oracle wants it."""
    return {"leaves": fabric.leaves, "spines": fabric.spines,
            "hosts_per_leaf": fabric.hosts_per_leaf, "mbit": fabric.mbit or 10_000,
            "host_mbit": host_mbit, "seeds": fabric.seeds,
            "addresses": [fabric.address(host) for host in range(fabric.hosts)]}
