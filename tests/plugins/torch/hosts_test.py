"""The PyTorch backend between two hosts: network namespaces behind routers, two ranks each."""

import installed

import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(installed.SOURCE, "tests/fabric")))
import netns  # noqa: E402

PROGRAM = r"""
import json, os
import torch, torch.distributed as dist

backend = os.environ["BACKEND"]
dist.init_process_group(backend)
rank, size = dist.get_rank(), dist.get_world_size()
large = torch.arange(1 << 18, dtype=torch.float64) * (rank + 1)
dist.all_reduce(large)
right = torch.arange(1 << 18, dtype=torch.float64) * (size * (size + 1) // 2)
rows = [torch.empty(3) for _ in range(size)]
dist.all_gather(rows, torch.full((3,), float(rank)))
torch.manual_seed(1)
module = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(64, 64))
optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
losses = []
for step in range(4):
    inputs = torch.randn(8, 64, generator=torch.Generator().manual_seed(100 * step + rank))
    loss = (module(inputs) - inputs).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    losses.append(loss.item())
links = []
if backend == "weft":
    import weft.torch
    links = [link for group in weft.torch.statistics() for link in group["links"]]
print("result " + json.dumps({"rank": rank, "sum": torch.equal(large, right),
                              "rows": [row[0].item() for row in rows], "losses": losses,
                              "links": links}), flush=True)
dist.barrier()
""" + installed.LEAVE


def run(fabric: netns.Fabric, backend: str, **environment) -> list[dict]:
    """What each of four ranks says, two on each of two hosts."""
    with tempfile.TemporaryDirectory(prefix="weft-hosts-") as folder:
        script = pathlib.Path(folder, "program.py")
        script.write_text(PROGRAM)
        port = installed.free_port()
        ranks = [subprocess.Popen(
            ["ip", "netns", "exec", f"h{rank // 2}", sys.executable, script],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "BACKEND": backend, "RANK": str(rank), "WORLD_SIZE": "4",
                 "LOCAL_RANK": str(rank % 2), "LOCAL_WORLD_SIZE": "2",
                 "GLOO_SOCKET_IFNAME": "eth0", "MASTER_ADDR": fabric.address(0), "MASTER_PORT": str(port), **environment})
            for rank in range(4)]
        results = []
        try:
            for rank in ranks:
                printed, errors = rank.communicate(timeout=installed.LIMIT)
                if rank.returncode != 0:
                    raise AssertionError(f"{backend}: status {rank.returncode}\n{errors}")
                line = next(line for line in printed.splitlines() if line.startswith("result "))
                results.append(json.loads(line.removeprefix("result ")))
        finally:
            for rank in ranks:
                rank.kill()
                rank.communicate()
    return results


class Hosts(unittest.TestCase):
    def check(self, results: list[dict], gloo: list[dict], between: str, inside: str) -> None:
        for rank, (ours, theirs) in enumerate(zip(results, gloo, strict=True)):
            self.assertTrue(ours["sum"], rank)
            self.assertEqual(ours["rows"], [0.0, 1.0, 2.0, 3.0])
            for ours_loss, their_loss in zip(ours["losses"], theirs["losses"], strict=True):
                self.assertAlmostEqual(ours_loss, their_loss, delta=1e-5 * abs(their_loss))
            for link in ours["links"]:
                same_host = rank // 2 == link["peer"] // 2
                self.assertEqual(link["transport"], inside if same_host else between, link)
                self.assertEqual(link["outstanding"], 0, link)
            moved = [link for link in ours["links"] if link["bytes"] > 0]
            self.assertTrue({True, False} <= {link["sends"] for link in moved}, ours["links"])

    def test_tcp_and_multipath_between_them(self):
        with netns.Fabric(leaves=2, spines=2, hosts_per_leaf=1) as fabric:
            gloo = run(fabric, "gloo")
            self.check(run(fabric, "weft"), gloo, "tcp", inside="shm")
            self.check(run(fabric, "weft", WEFT_TRANSPORT="multipath"), gloo, "multipath",
                       inside="multipath")


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    unittest.main()
