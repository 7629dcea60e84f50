"""The path planner on MegaScale's fabric of 12,288 GPUs: worst link load against hashing and the bound.

`ours` and `peer` of "worst link" are the time that the most loaded link needs for what it carries; those
of "time to plan" are wall time against what is allowed.
"""

import os
import pathlib
import subprocess

if __name__ == "__main__":
    subprocess.run([pathlib.Path(os.environ["WEFT_BIN"]) / "tests/paths_bench"], check=True)
