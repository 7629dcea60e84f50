"""The driver acts on the diagnosis of the whole job: each host's records are in a folder of its own, so
that no host alone can tell a culprit from its victims. Ranks are those of weft-fault's emulated job."""

import os
import re
import signal
import sys
import unittest

sys.path.insert(0, os.path.join(os.environ["WEFT_SOURCE"], "tests/tools/run"))
from processes import program, until  # noqa: E402
from driven_job import PATIENCE, DrivenTest  # noqa: E402


class DiagnosisTest(DrivenTest):
    def begin(self, fault: str, tests: dict[str, str]):
        """Rank 2, on host b, has the fault."""
        driver = self.drive("--still", "2s", lease="20s")
        for node, host in enumerate("abc"):
            self.execute(host, "--address", "127.0.0.1", "--test", tests.get(host, "true"),
                         "--set", f"records.folder={self.folder}/records-{host}",
                         command=[program("weft-fault"), "run", "--fault", fault, "--rank", "2",
                                  "--step", "10", "--steps", "1000000", "--step-time", "20ms"])
            if node < 2:
                self.until_said("driver", f"place node {node} on {host}")
        until(lambda: "c" in self.hosts(), PATIENCE)
        return driver

    def end(self, driver):
        driver.send_signal(signal.SIGINT)
        self.assertEqual(driver.wait(PATIENCE), 128 + signal.SIGINT)

    def test_a_rank_for_which_all_wait_is_started_anew(self):
        self.begin("stop", {})
        # The others end because it is killed, and later.
        first = r"start rank \d \(generation 1\) on .*"
        self.until_said("driver", first)
        self.assertRegex(re.search(first, self.said("driver")).group(),
                         r"rank 2 \(generation 1\) on b: diagnosis: stopped rank \(process\) of 2")

    def test_the_host_whose_nic_is_down_is_evicted(self):
        driver = self.begin("nic-down", {"b": "false"})
        self.until_said("driver", "test b: diagnosis: NIC down")
        self.until_said("driver", "evict b from node 1: it failed its self-test: 'false' ended")
        self.until_said("c", "this host is node 1 of 2")
        self.assertNotRegex(self.said("driver"), "test a|evict a")
        self.end(driver)


if __name__ == "__main__":
    unittest.main()
