"""Makes a fabric, says so, and waits to be killed: for cleanup_test.py."""

import sys
import time

sys.path.insert(0, sys.argv[1])
import netns  # noqa: E402

netns.enter()
netns.require_routers()
if sys.argv[2:] == ["probe"]:
    raise SystemExit(0)
with netns.Fabric(leaves=2, spines=2, hosts_per_leaf=2, mbit=10) as fabric:
    fabric.start(0, ["sleep", "1000"])
    print("up", flush=True)
    time.sleep(1000)
