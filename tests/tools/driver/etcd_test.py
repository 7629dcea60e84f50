"""weft-driver --etcd with a real etcd: a driver that is started elsewhere, with a store of its own, goes on
with the job's state, and the executors find it."""

import os
import re
import shutil
import signal
import subprocess
import sys
import unittest
import urllib.error
import urllib.request
import base64
import json

SOURCE = os.environ["WEFT_SOURCE"]
sys.path[:0] = [os.path.join(SOURCE, "tests"), os.path.join(SOURCE, "tests/tools/run")]
from processes import until  # noqa: E402
from driven_job import PATIENCE, DrivenTest  # noqa: E402
from ports import free_port  # noqa: E402

RANK = """
echo "$RANK ${WEFT_GENERATION:-0} $GROUP_RANK $WEFT_STORE" > DIR/rank-$RANK.new
mv DIR/rank-$RANK.new DIR/rank-$RANK
while [ ! -e DIR/end ]; do sleep 0.05; done
"""


class EtcdTest(DrivenTest):
    def setUp(self):
        super().setUp()
        self.port, peer = free_port(), free_port()
        self.etcd = f"etcd://127.0.0.1:1,127.0.0.1:{self.port}/jobs"  # one member is always down
        self.server = self.start_etcd(peer)

    def start_etcd(self, peer: int) -> subprocess.Popen:
        client, between = f"http://127.0.0.1:{self.port}", f"http://127.0.0.1:{peer}"
        with open(self.folder / "etcd", "a", encoding="utf-8") as log:
            server = subprocess.Popen(
                [shutil.which("etcd"), "--data-dir", str(self.folder / "etcd.data"), "--name", "one",
                 "--listen-client-urls", client, "--advertise-client-urls", client,
                 "--listen-peer-urls", between, "--initial-advertise-peer-urls", between,
                 "--initial-cluster", f"one={between}"], stdout=log, stderr=log,
                # Platforms that etcd does not know well need to be asked for.
                env=dict(os.environ, ETCD_UNSUPPORTED_ARCH="arm64"))
        self.addCleanup(lambda: (server.kill(), server.wait()))

        def answers():
            try:
                return "true" in urllib.request.urlopen(client + "/health", timeout=5).read().decode()
            except OSError:
                return server.poll() is not None
        until(answers, PATIENCE)
        self.assertIsNone(server.poll(), self.said("etcd"))
        return server

    def put(self, key: str, value: str):
        body = {name: base64.b64encode(text.encode()).decode()
                for name, text in (("key", f"jobs/{self.job}/{key}"), ("value", value))}
        urllib.request.urlopen(f"http://127.0.0.1:{self.port}/v3/kv/put",
                               data=json.dumps(body).encode(), timeout=PATIENCE).read()

    def drive_as(self, name: str, *arguments: str) -> subprocess.Popen:
        """A driver of its own host: no folder, and another address."""
        driver = self.start(name, "weft-driver", "--nodes", "2", "-n", "2", "--job", self.job,
                            "--listen", "127.0.0.1:0", "--lease", "20s", "--etcd", self.etcd,
                            "--page", "127.0.0.1:0", "--token-file",
                            str(self.folder / "page-token"), *arguments)
        until(lambda: "page at" in self.said(name) or driver.poll() is not None, PATIENCE)
        if driver.poll() is None:
            self.page = re.search(r"page at (http://\S+)/,", self.said(name)).group(1)
        return driver

    def token(self) -> str:
        return (self.folder / "page-token").read_text(encoding="utf-8").strip()

    def join(self, driver: str):
        for node, host in enumerate("abc"):
            self.start(host, "weft-executor", "--driver", self.etcd, "--job", self.job, "--host",
                       host, "--", "sh", "-c", RANK.replace("DIR", str(self.folder)))
            if node < 2:
                self.until_said(driver, f"place node {node} on {host}")
        until(lambda: "c" in self.hosts(), PATIENCE)

    def where(self, rank: int, generation: int) -> str:
        """The store of that rank's process in that generation."""
        return until(lambda: re.fullmatch(rf"{rank} {generation} {rank // 2} (\S+)\n",
                                          self.said(f"rank-{rank}")), PATIENCE).group(1)

    def test_a_driver_on_another_host_goes_on_with_the_jobs_state(self):
        first = self.drive_as("first")
        self.join("first")
        stores = {self.where(rank, 0) for rank in range(4)}
        self.call("POST", "/evict/a", self.token())
        for rank in 0, 1:
            self.where(rank, 1)
        first.kill()
        first.wait(PATIENCE)
        second = self.drive_as("second")
        self.assertIn("incarnation 2", self.said("second"))
        # All ranks start anew at the new store, on the hosts that had them.
        moved = {self.where(rank, 2 if rank < 2 else 1) for rank in range(4)}
        self.assertFalse(stores & moved)
        self.assertIn("ending all ranks, and joining where it is now", self.said("b"))
        job = self.state()
        self.assertEqual(job["nodes"], ["c", "b"])
        self.assertEqual([host["state"] for host in job["hosts"]],
                         ["evicted: by hand", "runs", "runs"])
        (self.folder / "end").write_text("")
        self.assertEqual(second.wait(PATIENCE), 0, self.said("second"))
        third = self.drive_as("third")
        self.assertEqual(third.wait(PATIENCE), 5)
        self.assertRegex(self.said("third"), rf"jobs/{self.job}/state of etcd, is over since .* "
                                             r"with status 0: all ranks are done")

    def test_an_executor_that_looks_for_its_driver_again_ends_by_a_signal(self):
        driver = self.drive_as("first")
        executor = self.start("a", "weft-executor", "--driver", self.etcd, "--job", self.job, "--host",
                              "a", "--store-patience", "1s", "--", "sleep", "1000")
        self.until_said("first", "place node 0 on a")
        driver.kill()
        driver.wait(PATIENCE)
        self.until_said("a", "ending all ranks: ")
        # It has begun anew once it blocks none of the signals that it had taken for its ranks.
        taken = 1 << (signal.SIGTERM - 1)

        def begins_anew() -> bool:
            with open(f"/proc/{executor.pid}/status", encoding="utf-8") as status:
                return not any(int(line.split()[1], 16) & taken for line in status
                               if line.startswith("SigBlk:"))
        until(begins_anew, PATIENCE)
        executor.send_signal(signal.SIGTERM)
        self.assertEqual(executor.wait(PATIENCE), -signal.SIGTERM)

    def test_a_driver_that_another_has_replaced_changes_nothing_and_ends(self):
        first = self.drive_as("first")
        first.send_signal(signal.SIGSTOP)
        self.drive_as("second")
        first.send_signal(signal.SIGCONT)
        first.send_signal(signal.SIGINT)  # stops the job, where it may
        self.assertEqual(first.wait(PATIENCE), 1)
        self.assertIn("another driver (incarnation 2) has taken this one's place", self.said("first"))
        self.assertIsNone(self.state()["outcome"])

    def test_a_state_that_an_unauthenticated_client_has_written_is_refused(self):
        self.put("state", "0" * 64 + "\n{}")
        self.assertEqual(self.drive_as("first").wait(PATIENCE), 1)
        self.assertIn(f"etcd's key jobs/{self.job}/state was not written with this job's secret",
                      self.said("first"))


if __name__ == "__main__":
    if shutil.which("etcd") is None:
        print("skipped: no etcd (Debian's etcd-server)")
        sys.exit(77)
    unittest.main()
