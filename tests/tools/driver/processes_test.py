"""weft-driver and weft-executor with small programs as ranks: faults of each kind, and
unauthenticated clients.

Two nodes of two ranks and a spare host, all on this machine under names of their own. A rank says
where it is in a file of its own, and ends once the file "end" is there.
"""

import os
import re
import signal
import socket
import subprocess
import sys
import time
import unittest
import urllib.error
import urllib.request

sys.path.insert(0, os.path.join(os.environ["WEFT_SOURCE"], "tests/tools/run"))
from processes import is_zombie, of_job, program, until  # noqa: E402
from driven_job import PATIENCE, DrivenTest  # noqa: E402
RANK = """
echo "$RANK ${WEFT_GENERATION:-0} $GROUP_RANK $$" > DIR/rank-$RANK.new
mv DIR/rank-$RANK.new DIR/rank-$RANK
while [ ! -e DIR/end ]; do
  if [ -e DIR/fail-$RANK ]; then line=$(cat DIR/fail-$RANK); rm DIR/fail-$RANK; echo "$line" >&2; exit 1; fi
  sleep 0.05
done
"""


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as probe:
            probe.bind(("::1", 0))
    except OSError:
        return False
    return True


class DriverTest(DrivenTest):
    def run_on(self, host: str, *arguments: str, command=None, environment=None):
        rank = ["sh", "-c", RANK.replace("DIR", str(self.folder))]
        return self.execute(host, *arguments, command=command or rank, environment=environment)

    def begin(self, *arguments: str, lease: str = "20s") -> subprocess.Popen:
        driver = self.drive(*arguments, lease=lease)
        self.join(command=["sh", "-c", RANK.replace("DIR", str(self.folder))])
        for rank in range(4):
            self.where(rank, 0, rank // 2)
        return driver

    def where(self, rank: int, generation: int, node: int) -> int:
        """Waits until that rank runs so; its process."""
        def found():
            words = self.said(f"rank-{rank}").split()
            return words if words[:3] == [str(rank), str(generation), str(node)] else None
        try:
            return int(until(found, PATIENCE)[3])
        except AssertionError as error:
            raise AssertionError(f"rank {rank} does not run in generation {generation}: "
                                 + self.said("driver")) from error

    def fail_rank(self, rank: int, line: str):
        """That rank ends with this line: it finds the whole of it, or nothing."""
        (self.folder / f"fail-{rank}.new").write_text(line)
        (self.folder / f"fail-{rank}.new").rename(self.folder / f"fail-{rank}")

    def end(self, driver: subprocess.Popen, status: int = 0):
        """Every program ends with that status."""
        (self.folder / "end").write_text("")
        self.assertEqual(driver.wait(PATIENCE), status, self.said("driver"))

    # ---- Faults

    def test_a_killed_rank_is_started_anew_on_its_host(self):
        driver = self.begin()
        os.kill(self.where(3, 0, 1), signal.SIGKILL)
        self.where(3, 1, 1)
        self.until_said("driver", r"start rank 3 \(generation 1\) on b: was killed by signal 9")
        self.end(driver)
        for executor in self.executors.values():
            self.assertEqual(executor.wait(PATIENCE), 0)

    def test_a_host_that_is_lost_is_replaced_by_the_spare(self):
        driver = self.begin(lease="6s")
        ranks = [self.where(rank, 0, 0) for rank in (0, 1)]
        self.executors["a"].kill()
        for rank in 0, 1:
            self.where(rank, 1, 0)
        self.assertTrue(all(is_zombie(pid) for pid in ranks))
        self.until_said("c", "this host is node 0 of 2")
        self.where(2, 0, 1)  # the others stay
        self.end(driver)

    def test_a_driver_that_dies_and_returns_loses_nothing(self):
        driver = self.begin()
        os.kill(self.where(0, 0, 0), signal.SIGKILL)
        pid = self.where(0, 1, 0)
        driver.kill()
        driver.wait(PATIENCE)
        os.kill(self.where(2, 0, 1), signal.SIGKILL)
        os.kill(pid, 0)  # ranks go on without a driver
        driver = self.drive("--recover", "50", lease="60s")
        self.until_said("driver", r"from here on --recover 50 \(was 100\)")
        self.until_said("driver", r"from here on --lease 1m \(was 20s\)")
        self.where(2, 1, 1)
        self.assertEqual(self.where(0, 1, 0), pid)
        job = self.state()
        self.assertEqual((job["incarnation"], job["restarts"]), (2, 2))
        self.end(driver)

    def test_a_driver_goes_on_where_nobody_reads_what_it_says(self):
        driver = subprocess.Popen(
            [program("weft-driver"), "--nodes", "2", "-n", "2", "--job", self.job, "--listen",
             self.address], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE, text=True, env=self.environment)
        self.started.append(driver)
        self.address = re.search(r"serving job '.*' at (\S+),", driver.stderr.readline()).group(1)
        driver.stderr.close()
        for host in "ab":
            self.run_on(host)
        for host in "ab":
            self.until_said(host, "this host is node")
        os.kill(int(until(lambda: self.said("rank-3"), PATIENCE).split()[3]), signal.SIGKILL)
        until(lambda: self.said("rank-3").split()[1] == "1", PATIENCE)
        self.end(driver)

    def test_a_job_that_is_over_is_not_run_again_unless_that_is_asked_for(self):
        self.end(self.begin())
        for executor in self.executors.values():
            executor.wait(PATIENCE)
        self.assertNotIn("does not answer", self.said("driver"))
        again = self.start("again", "weft-driver", "--nodes", "2", "-n", "2", "--job", self.job,
                           "--listen", "127.0.0.1:0", "--state-dir", str(self.folder / "state"))
        self.assertEqual(again.wait(PATIENCE), 5)
        self.assertRegex(self.said("again"), r"is over since 20.* UTC, with status 0: all ranks are "
                                             r"done\. Nothing is run: give another --state-dir")
        (self.folder / "end").unlink()
        for rank in range(4):
            (self.folder / f"rank-{rank}").unlink()
        self.end(self.begin("--anew"))
        self.assertIn("beginning it anew (--anew)", self.said("driver"))

    def test_a_driver_that_dies_before_the_site_knows_of_a_lost_host_tells_it_once_back(self):
        told = self.folder / "told"
        # The first hook kills the driver that runs it; the driver after it runs it again.
        hook = (f'if mkdir {self.folder}/first; then kill -9 $PPID; exit 1; fi; '
                f'echo "$WEFT_EVICTED_HOST: $WEFT_EVICTED_REASON" >> {told}')
        driver = self.begin("--on-evict", hook, lease="6s")
        self.executors["a"].kill()
        self.assertEqual(driver.wait(PATIENCE), -signal.SIGKILL)
        driver = self.drive("--on-evict", hook, lease="6s")
        until(told.exists, PATIENCE)
        until(lambda: not self.state()["notices"], PATIENCE)
        driver.kill()
        driver.wait(PATIENCE)
        driver = self.drive("--on-evict", hook, lease="6s")
        for rank in 0, 1:
            self.where(rank, 1, 0)
        self.end(driver)
        self.assertEqual(told.read_text(encoding="utf-8"),
                         "a: nothing was heard of it for too long\n")

    def test_an_executor_that_is_cut_off_ends_its_ranks_and_joins_again(self):
        driver = self.begin(lease="6s")
        ranks = [self.where(rank, 0, rank // 2) for rank in range(4)]
        os.kill(driver.pid, signal.SIGSTOP)  # and with it the store
        until(lambda: all(is_zombie(pid) for pid in ranks), PATIENCE)
        self.assertIn("was not reached for 6s", self.said("a"))
        os.kill(driver.pid, signal.SIGCONT)
        for rank in range(4):
            until(lambda rank=rank: not self.said(f"rank-{rank}").startswith(f"{rank} 0 "), PATIENCE)
        self.end(driver)

    def test_without_self_tests_a_device_fault_evicts_the_host(self):
        driver = self.begin("--no-self-tests", "--on-evict", f'echo "$WEFT_EVICTED_HOST" >> {self.folder}/evicted')
        self.fail_rank(1, "mlx5_0 has failed [device rank=1 device=mlx5_0]")
        for rank in 0, 1:
            self.where(rank, 1, 0)
        self.until_said("driver", "evict a from node 0: rank 1 exited with status 1: mlx5_0")
        self.assertEqual(self.executors["a"].wait(PATIENCE), 3)
        until(lambda: (self.folder / "evicted").exists() and self.said("evicted") == "a\n", PATIENCE)
        self.end(driver)

    def test_a_host_that_passes_its_self_test_stays_and_one_that_fails_is_evicted(self):
        driver = self.drive()
        # Host b's links do not work; the others' do.
        broken = {"a": (), "b": ("--set", "tcp.interface=none7"), "c": ()}
        for node, (host, settings) in enumerate(broken.items()):
            self.run_on(host, *settings, "--test-limit", f"{PATIENCE}s")
            if node < 2:
                self.until_said("driver", f"place node {node} on {host}")
        until(lambda: "c" in self.hosts(), PATIENCE)
        self.where(2, 0, 1)
        self.fail_rank(1, "mlx5_0 has failed [device rank=1 device=mlx5_0]")
        # With b and the spare: that b's links fail does not make a suspect.
        self.until_said("a", "self-test passed: 3 tests passed, 1 of them with 2 hosts near it")
        self.where(1, 1, 0)
        self.fail_rank(2, "mlx5_0 has failed [device rank=2 device=mlx5_0]")
        self.until_said("driver", "evict b from node 1: it failed its self-test: links ended with "
                                  'status 1: .* no interface fits "none7"')
        for rank in 2, 3:
            self.where(rank, 1, 1)
        self.until_said("c", "this host is node 1 of 2")
        self.where(0, 0, 0)
        self.end(driver)

    def test_without_a_spare_a_suspected_host_tests_itself(self):
        driver = self.drive()
        tests = ("--test", "true", "--test", f"test ! -e {self.folder}/broken")
        for node, host in enumerate("ab"):
            self.run_on(host, *tests)
            self.until_said("driver", f"place node {node} on {host}")
        self.where(2, 0, 1)
        fault = "mlx5_0 has failed [device rank=2 device=mlx5_0]"
        self.fail_rank(2, fault)
        self.until_said("b", "self-test passed: 3 tests passed, 1 of them with 1 hosts near it")
        self.where(2, 1, 1)
        self.where(3, 0, 1)
        (self.folder / "broken").write_text("")
        self.fail_rank(2, fault)
        self.until_said("driver", "evict b from node 1: it failed its self-test: 'test ! -e")
        self.run_on("d")
        for rank in 2, 3:
            until(lambda rank=rank: self.said(f"rank-{rank}").split()[1] != "0", PATIENCE)
        self.until_said("d", "this host is node 1 of 2")
        self.end(driver)

    def test_a_host_that_helps_with_a_test_tests_itself_once_it_has_helped(self):
        driver = self.drive()
        waits = self.folder / "waits-a"
        waits.write_text("")
        for node, host in enumerate("ab"):
            self.run_on(host, "--test-limit", f"{PATIENCE}s", "--test",
                        f"while test -e {self.folder}/waits-{host}; do sleep 0.05; done")
            self.until_said("driver", f"place node {node} on {host}")
        self.where(2, 0, 1)
        self.fail_rank(1, "mlx5_0 has failed [device rank=1 device=mlx5_0]")
        self.until_said("a", "testing this host")
        pair = self.job[:63 - len(".test-1")] + ".test-1.0"
        until(lambda: of_job(pair), PATIENCE)  # b waits for a, whose test has begun
        self.fail_rank(2, "mlx5_0 has failed [device rank=2 device=mlx5_0]")
        self.until_said("driver", "test b: rank 2")
        # Were its help cut off, it would be within this time.
        end = time.monotonic() + 3
        while time.monotonic() < end and "testing this host" not in self.said("b"):
            time.sleep(0.05)
        waits.unlink()
        self.until_said("a", "self-test passed: 2 tests passed, 1 of them with 1 hosts near it")
        self.until_said("b", "self-test passed: 1 tests passed")
        self.where(1, 1, 0)
        self.where(2, 1, 1)
        self.end(driver)

    def test_a_pair_tells_a_helper_that_fails_from_one_that_does_not_come(self):
        self.start("store", "weft-store", "--listen", "127.0.0.1:0")
        store = self.until_said("store", r"serving at (\S+)").group(1)

        def pair(name: str, limit: str, *broken: int) -> list[subprocess.Popen]:
            """The processes of the pair that are given; those that are 1 have no interface."""
            return [self.start(f"{name}-{rank}", "weft-executor", "--self-test-part", "group",
                               "--test-limit", limit, environment=dict(
                                   self.environment, WEFT_STORE=store, WEFT_JOB_ID=self.job + name,
                                   RANK=str(rank), WORLD_SIZE="2", LOCAL_RANK="0",
                                   LOCAL_WORLD_SIZE="1",
                                   **{"WEFT_TCP_INTERFACE": "none7"} if no_interface else {}))
                    for rank, no_interface in enumerate(broken)]
        self.assertEqual([process.wait(PATIENCE) for process in pair("alone", "6s", 0)], [3])
        self.assertEqual([process.wait(PATIENCE) for process in pair("met", "20s", 0, 1)], [1, 1])
        self.assertIn("bytes between the processes", self.said("met-0"))
        self.assertIn('no interface fits "none7"', self.said("met-1"))
        self.assertEqual([process.wait(PATIENCE) for process in pair("right", "20s", 0, 0)], [0, 0])

    def test_a_drained_host_gives_its_ranks_to_the_spare(self):
        driver = self.begin()
        self.executors["b"].send_signal(signal.SIGTERM)
        for rank in 2, 3:
            self.where(rank, 1, 1)
        self.assertEqual(self.executors["b"].wait(PATIENCE), 128 + signal.SIGTERM)
        self.end(driver)

    def test_what_starting_anew_does_not_mend_ends_the_job_everywhere(self):
        driver = self.drive()
        for host in "ab":
            self.run_on(host, command=["sh", "-c", "[ $RANK = 3 ] && exit 7; sleep 1000"])
        self.assertEqual(driver.wait(PATIENCE), 7)
        for executor in self.executors.values():
            self.assertEqual(executor.wait(PATIENCE), 7)
        self.assertIn("rank 3 exited with status 7: starting it anew does not help",
                      self.said("driver"))

    def test_a_program_that_is_not_there(self):
        driver = self.drive()
        for host in "ab":
            self.run_on(host, command=["/no/such/program"])
        self.assertEqual(driver.wait(PATIENCE), 127)
        self.assertIn("start '/no/such/program'", self.said("driver"))

    def test_an_interrupted_driver_ends_the_job(self):
        driver = self.begin()
        driver.send_signal(signal.SIGINT)
        self.assertEqual(driver.wait(PATIENCE), 128 + signal.SIGINT)
        for executor in self.executors.values():
            self.assertEqual(executor.wait(PATIENCE), 128 + signal.SIGINT)

    # ---- Replay

    def begin_with_replays(self) -> subprocess.Popen:
        """Host b computes 41 once the file "flips" is there; the others, and b before, 42."""
        driver = self.drive("--replay-hosts", "1")
        right, flips = 'echo "replay: $((42 * WORLD_SIZE))"', f"test -e {self.folder}/flips"
        for node, (host, replay) in enumerate({
                "a": right, "b": f'{flips} && echo "replay: 41" || {right}', "c": right}.items()):
            self.run_on(host, "--replay", replay)
            if node < 2:
                self.until_said("driver", f"place node {node} on {host}")
        until(lambda: "c" in self.hosts(), PATIENCE)
        self.where(3, 0, 1)
        return driver

    def ask_for_replay(self) -> subprocess.CompletedProcess:
        return subprocess.run(
            [program("weft-driver"), "replay", "--page", self.page.removeprefix("http://"),
             "--token-file", str(self.folder / "state" / "page-token")],
            capture_output=True, text=True, timeout=PATIENCE, check=False)

    def test_a_replay_names_the_host_that_computes_wrongly(self):
        driver = self.begin_with_replays()
        asked = self.ask_for_replay()
        self.assertEqual(asked.returncode, 0, asked.stderr)
        self.assertIn("replay: phase 1 of 2, groups a | b | c", asked.stdout)
        self.until_said("driver", "replay: no host computes otherwise than the others \\(84\\)")
        for rank in range(4):
            self.where(rank, 1, rank // 2)
        (self.folder / "flips").write_text("")
        self.assertEqual(self.ask_for_replay().returncode, 0)
        self.until_said("driver", "evict b from node 1: it computes wrongly: all groups with b ")
        for rank in 0, 1:
            self.where(rank, 2, 0)
        for rank in 2, 3:
            until(lambda rank=rank: self.said(f"rank-{rank}").split()[1:3] == ["2", "1"], PATIENCE)
        self.until_said("c", "this host is node 1 of 2")
        self.end(driver)

    def test_a_fault_that_comes_twice_is_replayed_before_the_job_stops(self):
        driver = self.begin_with_replays()
        fault = "the loss is nan"
        (self.folder / "flips").write_text("")
        self.fail_rank(2, fault)
        self.where(2, 1, 1)
        self.fail_rank(2, fault)
        self.until_said("driver", "evict b from node 1: it computes wrongly")
        self.until_said("c", "this host is node 1 of 2")
        until(lambda: self.said("rank-2").split()[1] == "2", PATIENCE)
        for _ in range(2):
            generation = int(self.said("rank-2").split()[1])
            self.fail_rank(2, fault)
            until(lambda: self.said("rank-2").split()[1] != str(generation)
                  or driver.poll() is not None, PATIENCE)
        self.assertEqual(driver.wait(PATIENCE), 1)
        self.assertIn("no host computes otherwise than the others", self.said("driver"))

    # ---- Who may join, and who may look

    def test_a_second_executor_of_a_name_takes_the_place_of_the_first(self):
        driver = self.begin()
        first = self.executors["a"]
        self.run_on("a")
        for rank in 0, 1:
            self.where(rank, 1, 0)
        self.assertEqual(first.wait(PATIENCE), 4)
        self.end(driver)

    def test_an_executor_whose_heartbeats_are_further_apart_than_the_lease_is_refused(self):
        self.drive(lease="2s")
        self.assertEqual(self.run_on("a", "--period", "3s").wait(PATIENCE), 2)
        self.assertIn("--period 3s is not below the driver's --lease, 2s", self.said("a"))
        self.assertEqual(self.hosts(), [])

    def test_unauthenticated_clients_are_turned_away(self):
        driver = self.begin()
        other = self.run_on("z", environment=dict(self.environment, WEFT_JOB_SECRET="77" * 32))
        self.assertEqual(other.wait(PATIENCE), 1)
        self.assertIn("secret", self.said("z"))
        nobody = dict(self.environment)
        del nobody["WEFT_JOB_SECRET"]
        self.assertEqual(self.run_on("y", environment=nobody).wait(PATIENCE), 2)
        for method, path, token in (("GET", "/job.json", None), ("POST", "/evict/a", None),
                                    ("POST", "/evict/a", "5a" * 32), ("POST", "/stop", "")):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.call(method, path, token)
            self.assertEqual(refused.exception.code, 401)
        # The records that an executor serves are the driver's alone.
        port = until(lambda: self.state()["hosts"][0]["agent"], PATIENCE).rsplit(":", 1)[1]
        for request in (f"http://127.0.0.1:{port}/rings",
                        *([f"http://[::1]:{port}/rings"] if has_ipv6() else []),
                        urllib.request.Request(f"http://127.0.0.1:{port}/metrics", headers={
                            "Authorization": "Bearer " + self.token()})):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                urllib.request.urlopen(request, timeout=PATIENCE)
            self.assertEqual(refused.exception.code, 401)
        self.assertIn("<title>weft-driver", self.call("GET", "/"))
        self.assertEqual((self.folder / "state" / "page-token").stat().st_mode & 0o77, 0)
        self.assertEqual(self.hosts(), ["a", "b", "c"])
        self.assertIn("place node 0 on c", self.call("POST", "/evict/a", self.token()))
        self.where(1, 1, 0)
        self.end(driver)


if __name__ == "__main__":
    unittest.main()
