"""torchrun's agents as the hosts of a weft-driver: a worker that dies, a host that is lost, and an agent
that waits as a spare."""

import installed

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import threading
import types
import unittest
import urllib.request
from unittest import mock

sys.path.append(str(installed.SOURCE / "tests/tools/run"))
from processes import until  # noqa: E402
import torch.distributed.elastic.rendezvous.registry  # noqa: E402, F401 (it loads weft.torch.driver)
from weft.store import StoreTimeout  # noqa: E402
from weft.torch.driver import DriverRendezvousHandler, end_text  # noqa: E402

BIN = pathlib.Path(os.environ["WEFT_BIN"])
SECRET = "5a" * 32
# Says where it is, and ends once the file "end" is there. Ranks meet in each round.
WORKER = r"""
import os, pathlib, sys, time
import torch, torch.distributed as dist
folder = pathlib.Path(sys.argv[1])
dist.init_process_group("gloo")
total = torch.ones(1)
dist.all_reduce(total)
me = f"{dist.get_rank()}"
(folder / ("new-" + me)).write_text(f"{os.getpid()} {int(total.item())} {os.environ['GROUP_RANK']} {sys.argv[2]}")
os.rename(folder / ("new-" + me), folder / ("rank-" + me))
while not (folder / "end").exists():
    if (folder / ("fail-" + me)).exists():
        raise SystemExit(1)
    time.sleep(0.05)
os._exit(0)  # Gloo's threads can end a process by std::terminate while a group or the interpreter ends
"""


@unittest.skipUnless((BIN / "weft-driver").exists(), "this build has no weft-driver")
class DrivenTorchrunTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "worker.py").write_text(WORKER)
        self.job = f"torchrun-{os.getpid()}-{self.id().rsplit('.', 1)[1]}"[:63]
        self.started = []
        self.addCleanup(self.stop)
        self.driver = self.start(
            "driver", BIN / "weft-driver", "--nodes", "2", "--ranks", "1", "--job", self.job,
            "--listen", "127.0.0.1:0", "--state-dir", self.folder / "state", "--page",
            "127.0.0.1:0", "--lease", "6s", "--no-self-tests", "--backoff", "50ms")
        self.address = self.until_said("driver", r"serving job '.*' at (\S+),")
        self.page = self.until_said("driver", r"page at (http://\S+)/,")
        self.agents = {}
        for node, host in enumerate("abc"):
            self.agents[host] = self.start(
                host, sys.executable, "-m", "torch.distributed.run", "--nnodes=2",
                "--nproc-per-node=1", "--max-restarts=100", "--monitor-interval=0.1",
                "--rdzv-backend=weft-driver", f"--rdzv-endpoint={self.address}",
                f"--rdzv-id={self.job}", f"--rdzv-conf=host={host},address=127.0.0.1",
                self.folder / "worker.py", self.folder, host)
            if node < 2:
                self.until_said("driver", f"(place node {node} on {host})")
        until(lambda: '"c"' in self.call("GET", "/job.json"), installed.LIMIT, "the spare")
        for rank in 0, 1:
            self.where(rank, "ab"[rank])

    def stop(self):
        for process in self.started:
            process.kill()
            process.wait()
        for rank in 0, 1:
            text = self.said(f"rank-{rank}").split()
            if text:
                try:
                    os.kill(int(text[0]), signal.SIGKILL)
                except ProcessLookupError:
                    pass

    def start(self, name: str, *command) -> subprocess.Popen:
        with open(self.folder / name, "w", encoding="utf-8") as log:
            process = subprocess.Popen([str(word) for word in command], stdout=log, stderr=log,
                                       env={**os.environ, "WEFT_JOB_SECRET": SECRET})
        self.started.append(process)
        return process

    def said(self, name: str) -> str:
        path = self.folder / name
        return path.read_text(encoding="utf-8") if path.exists() else ""

    def until_said(self, name: str, pattern: str) -> str:
        try:
            return until(lambda: re.search(pattern, self.said(name)), installed.LIMIT,
                         pattern).group(1)
        except AssertionError as error:
            raise AssertionError("\n".join(self.said(who) for who in ("driver", *"abc"))) from error

    def call(self, method: str, path: str) -> str:
        token = self.said("state/page-token").strip()
        request = urllib.request.Request(self.page + path, method=method,
                                         headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, timeout=installed.LIMIT) as answer:
            return answer.read().decode()

    def where(self, rank: int, host: str, but: int = 0) -> int:
        """Waits until that rank runs there, in another process than `but`; its process."""
        def found():
            words = self.said(f"rank-{rank}").split()
            return words if words and words[1:] == ["2", str(rank), host] \
                and int(words[0]) != but else None
        try:
            return int(until(found, installed.LIMIT, f"rank {rank} on {host}")[0])
        except AssertionError as error:
            raise AssertionError("\n".join(self.said(who) for who in ("driver", *"abc"))) from error

    def finish(self):
        (self.folder / "end").write_text("")
        self.assertEqual(self.driver.wait(installed.LIMIT), 0, self.said("driver"))

    def test_a_worker_that_is_killed_is_started_anew_by_the_drivers_decision(self):
        before = [self.where(rank, "ab"[rank]) for rank in (0, 1)]
        os.kill(before[1], signal.SIGKILL)
        self.until_said("driver", r"(start rank 1 \(generation 1\) on b: was killed by signal 9)")
        for rank in 0, 1:
            self.where(rank, "ab"[rank], before[rank])
        self.finish()
        self.assertEqual([self.agents[host].wait(installed.LIMIT) for host in "ab"], [0, 0])

    def test_a_host_that_is_lost_gives_its_place_to_the_spare(self):
        before = [self.where(rank, "ab"[rank]) for rank in (0, 1)]
        self.agents["b"].kill()
        os.kill(before[1], signal.SIGKILL)
        self.until_said("driver", "(evict b from node 1: nothing was heard of it)")
        here = self.where(1, "c")
        self.where(0, "a", before[0])
        self.assertIn("place node", self.until_said(
            "driver", "(place node 1 on c)"))
        self.assertEqual(json.loads(self.call("GET", "/job.json"))["nodes"], ["a", "c"])
        self.assertGreater(here, 0)
        self.finish()


class SlowStore:
    """Keys in memory; the next answer to a compare-and-set does not come in time."""

    def __init__(self):
        self.values, self.loses_next = {}, False

    def compare_set(self, key, expected, desired):
        if self.values.get(key, b"") == expected:
            self.values[key] = desired
        if self.loses_next:
            self.loses_next = False
            raise StoreTimeout("DEADLINE_EXCEEDED", "the store does not answer")
        return self.values.get(key, expected)


class EndTest(unittest.TestCase):
    def text(self, exit_code: int) -> str:
        failure = types.SimpleNamespace(exitcode=exit_code, timestamp=0, message="")
        return end_text(types.SimpleNamespace(failures={0: failure}))

    def test_by_a_signal_has_its_number_and_the_name_that_it_may_have(self):
        self.assertEqual(self.text(-9), "was killed by signal 9 (SIGKILL)")
        self.assertEqual(self.text(-40), "was killed by signal 40")


class ReportTest(unittest.TestCase):
    def setUp(self):
        self.store = SlowStore()
        self.host = object.__new__(DriverRendezvousHandler)
        self.host._client, self.host._host, self.host._told = self.store, "a", b""
        self.host._report = {"writer": "5a" * 16}

    def text(self, beat: int, writer: str | None = None) -> bytes:
        return json.dumps({"beat": beat, "writer": writer or "5a" * 16}).encode()

    def test_one_that_arrived_without_an_answer_in_time_is_not_taken_for_anothers(self):
        self.assertTrue(self.host._write(self.text(1)))
        self.store.loses_next = True
        with self.assertRaises(StoreTimeout):
            self.host._write(self.text(2))
        self.assertEqual(self.store.values["driver/host/a"], self.text(2))
        self.assertTrue(self.host._write(self.text(3)))
        self.assertEqual(self.store.values["driver/host/a"], self.text(3))

    def test_one_of_another_process_in_its_place_is_left_there(self):
        self.assertTrue(self.host._write(self.text(1)))
        other = self.text(1, "a5" * 16)
        self.store.values["driver/host/a"] = other
        self.assertFalse(self.host._write(self.text(2)))
        self.assertEqual(self.store.values["driver/host/a"], other)

    def test_a_replay_has_failed_at_once_in_each_group_of_the_host(self):
        self.host._urgent = False
        self.host._report.update(replay=2, digests=[])
        groups = [{"phase": phase, "hosts": hosts, "results": {}}
                  for phase, hosts in ((0, ["a", "b"]), (1, ["a", "c"]), (1, ["b", "a"]))]
        self.host._state = {"job": {"replay": {"task": 3, "phase": 1, "groups": groups}}}
        self.host._refuse_replay()
        self.assertEqual((self.host._report["replay"], self.host._report["digests"]), (3, ["", ""]))
        self.assertTrue(self.host._urgent)
        self.host._urgent = False
        self.host._refuse_replay()  # once
        self.assertFalse(self.host._urgent)

    def test_a_host_without_weft_executor_is_untested_and_has_not_failed(self):
        self.host._changed, self.host._urgent = threading.Condition(), False
        with mock.patch.dict(os.environ, PATH=""):
            self.host._test(3)
        self.assertEqual(
            {name: self.host._report[name] for name in ("test", "passed", "untested", "test_text")},
            {"test": 3, "passed": False, "untested": True,
             "test_text": "there is no weft-executor in PATH"})
        self.assertTrue(self.host._urgent)


if __name__ == "__main__":
    unittest.main(verbosity=2)
