"""A job of weft-driver and weft-executors, all on this machine under names of their own."""

import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request

TESTS = os.path.join(os.environ["WEFT_SOURCE"], "tests")
sys.path[:0] = [TESTS, os.path.join(TESTS, "tools/run")]
from ports import free_port  # noqa: E402
from processes import of_job, program, until  # noqa: E402

PATIENCE = 120  # seconds, a bound on hangs


class DrivenJob:
    """Two nodes. Programs write their errors to files of `folder`, which is the caller's."""

    def __init__(self, folder: pathlib.Path, name: str, ranks_per_node: int = 2):
        self.folder = folder
        self.job = name
        self.ranks_per_node = ranks_per_node
        self.environment = dict(os.environ, WEFT_JOB_SECRET="5a" * 32)
        # A port that no socket is given which asks for none: a driver that comes back has it again.
        self.address = f"127.0.0.1:{free_port()}"
        self.page = None
        self.driver = None
        self.executors = {}
        self.started = []

    def close(self) -> None:
        """Nothing of the job is left afterwards."""
        for process in self.started:
            process.kill()
            process.wait(PATIENCE)
        until(lambda: not of_job(self.job), PATIENCE)

    def start(self, name: str, *arguments: str, environment=None) -> subprocess.Popen:
        """With its errors in the file NAME."""
        with open(self.folder / name, "a", encoding="utf-8") as log:
            process = subprocess.Popen([program(arguments[0]), *arguments[1:]], stdout=log,
                                       stderr=log, stdin=subprocess.DEVNULL,
                                       env=environment or self.environment)
        self.started.append(process)
        return process

    def said(self, name: str) -> str:
        try:
            return (self.folder / name).read_text(encoding="utf-8")
        except FileNotFoundError:
            return ""

    def until_said(self, name: str, pattern: str) -> re.Match:
        try:
            return until(lambda: re.search(pattern, self.said(name)), PATIENCE)
        except AssertionError as error:
            raise AssertionError(f"{name} does not say '{pattern}' but: {self.said(name)}") from error

    def drive(self, *arguments: str, lease: str = "20s") -> subprocess.Popen:
        before = self.said("driver").count("page at")
        self.driver = self.start("driver", "weft-driver", "--nodes", "2", "-n",
                                 str(self.ranks_per_node), "--job", self.job, "--listen",
                                 self.address, "--state-dir", str(self.folder / "state"), "--page",
                                 "127.0.0.1:0", "--lease", lease, *arguments)
        until(lambda: self.said("driver").count("page at") > before
              or self.driver.poll() is not None, PATIENCE)
        if self.driver.poll() is not None:
            raise AssertionError(self.said("driver"))
        self.address = re.findall(r"serving job '.*' at (\S+),", self.said("driver"))[-1]
        self.page = re.findall(r"page at (http://\S+)/,", self.said("driver"))[-1]
        return self.driver

    def execute(self, host: str, *arguments: str, command: list[str],
                environment=None) -> subprocess.Popen:
        self.executors[host] = self.start(
            host, "weft-executor", "--driver", self.address, "--job", self.job, "--host", host,
            "--grace", "5s", *arguments, "--", *command, environment=environment)
        return self.executors[host]

    def join(self, *arguments: str, command: list[str]) -> None:
        """Node 0 on host a, node 1 on host b, and c a spare."""
        for node, host in enumerate("abc"):
            self.execute(host, *arguments, command=command)
            if node < 2:
                self.until_said("driver", f"place node {node} on {host}")
        until(lambda: "c" in self.hosts(), PATIENCE)

    def hosts(self) -> list[str]:
        return [host["host"] for host in self.state()["hosts"]]

    def state(self):
        return json.loads(self.call("GET", "/job.json", self.token()))

    def call(self, method: str, path: str, token: str | None = None) -> str:
        request = urllib.request.Request(self.page + path, method=method)
        if token is not None:
            request.add_header("Authorization", "Bearer " + token)
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return answer.read().decode()

    def token(self) -> str:
        return (self.folder / "state" / "page-token").read_text(encoding="utf-8").strip()


class DrivenTest(DrivenJob, unittest.TestCase):
    """A test that is such a job itself, in a folder of its own."""

    def __init__(self, *arguments):
        unittest.TestCase.__init__(self, *arguments)

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        DrivenJob.__init__(self, pathlib.Path(folder.name),
                           f"test-{os.getpid()}-{self.id().rsplit('.', 1)[1]}"[:63])
        self.addCleanup(self.close)
