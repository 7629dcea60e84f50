"""Hosts with two NICs, from a fabric that nobody described to a job over both: weft-topo discover and learn-hash with
--interfaces, weft-plan paths, weft-run --plan with a rank for each NIC."""

import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import netns  # noqa: E402
import planned  # noqa: E402

SIZE = 4 << 20  # bytes of an all-reduce
NICS = ["--interfaces", "eth0,eth1"]
SHARE = 0.9  # of what the plan has a spine carry


def sent(fabric, host, nic) -> int:
    return int(fabric.run(host, ["cat", f"/sys/class/net/eth{nic}/statistics/tx_bytes"]))


class TwoNicsTest(unittest.TestCase):
    def everywhere(self, fabric, *words, port):
        ranks = planned.on_all_hosts(fabric, *words, *NICS, port=port, limit=120)
        for host, (status, output, errors) in enumerate(ranks):
            self.assertEqual(status, 0, (words, host, output, errors))
        print(ranks[0][1], flush=True)

    def test_a_job_over_two_rails_takes_the_planned_ways(self):
        with tempfile.TemporaryDirectory(prefix="weft-nics-") as name, \
                netns.Fabric(leaves=2, spines=2, hosts_per_leaf=2, nics=2, seeds=[71001, 82002]) as fabric:
            found, plan = pathlib.Path(name) / "fabric", pathlib.Path(name) / "plan"
            self.everywhere(fabric, "weft-topo", "discover", "--out", found, port=29700)
            self.everywhere(fabric, "weft-topo", "learn-hash", found, port=29701)
            hashes = (found / "hashes.txt").read_text()
            for host in range(fabric.hosts):
                for nic in range(2):
                    self.assertIn(f"address h{host} {nic} {fabric.address(host, nic=nic)}\n", hashes)
            # All-reduces over the ranks of one NIC each, as of data parallelism beside tensor parallelism.
            planned.run("weft-plan", "paths", "--fabric", found / "fabric.toml", "--hash", found / "hashes.txt", "--transport",
                        "tcp", "--layout", "tp=2,dp=4", "--node", "gpus=2", "--order", "random", "--traffic",
                        f"name=dp,axes=dp,collective=all_reduce,bytes={SIZE}", "--out", plan)
            flows = re.findall(r"^flow \d+ \d+ h(\d):(\d) h(\d):(\d) \S+(.*)$", (plan / "paths.txt").read_text(), re.MULTILINE)
            self.assertEqual({nic for _, nic, _, _, _ in flows}, {"0", "1"})
            crossing = [way.split(">")[-1] for _, _, _, _, way in flows if way.strip()]
            self.assertGreater(len(crossing), 0)
            nics = [[sent(fabric, host, nic) for nic in range(2)] for host in range(fabric.hosts)]
            spines = fabric.counters()
            self.run_job(fabric, plan)
            for host in range(fabric.hosts):
                for nic in range(2):
                    self.assertGreater(sent(fabric, host, nic) - nics[host][nic], SIZE, (host, nic))
            went = [sum(after[spine] - before[spine] for after, before in zip(fabric.counters(), spines)) for spine in range(2)]
            for spine in range(2):
                share, wanted = went[spine] / sum(went), crossing.count(f"spine{spine}") / len(crossing)
                print(f"spine {spine} carries {share:.3f} of all, planned {wanted:.3f}")
                self.assertGreaterEqual(share, SHARE * wanted)

    def test_without_a_plan_a_rank_sends_by_the_interface_that_it_names(self):
        with netns.Fabric(leaves=2, spines=1, hosts_per_leaf=1, nics=2) as fabric:
            nics = [[sent(fabric, host, nic) for nic in range(2)] for host in range(fabric.hosts)]
            self.run_job(fabric)
            for host in range(fabric.hosts):
                for nic in range(2):
                    self.assertGreater(sent(fabric, host, nic) - nics[host][nic], SIZE, (host, nic))

    def run_job(self, fabric, plan=None):
        """A rank for each NIC, which its number on the host chooses."""
        numbers = list(range(fabric.hosts))
        if plan is not None:
            numbers = [int(name[1:]) for name in dict.fromkeys(planned.Plan(plan).host_of_rank.values())]
        script = f"WEFT_TCP_INTERFACE==eth$LOCAL_RANK exec {planned.BIN}/weft-bw --transport tcp " \
                 f"--groups tp=2,dp={len(numbers)} --algorithm ring -b {SIZE} -n 2 -w 1 --set tcp.sockets=1"
        programs = []
        for node, number in enumerate(numbers):
            words = [planned.BIN / "weft-run", *(["--plan", plan] if plan else []), "-n", 2, "--nnodes", len(numbers), "--node-rank", node,
                     "--master-addr", fabric.address(numbers[0]), "--master-port", 29702, "--no-prefix", "--", "sh", "-c", script]
            programs.append(fabric.start(number, words, env=dict(os.environ, WEFT_JOB_SECRET="11" * 32), text=True,
                                         stdout=subprocess.PIPE, stderr=subprocess.PIPE))
        print(planned.wait_all(programs), flush=True)


if __name__ == "__main__":
    netns.enter()
    netns.require_routers()
    unittest.main(verbosity=2)
