"""Others' programs read what ours write: Prometheus scrapes the agent and a rule of docs/monitoring fires, Perfetto's
own protos parse the trace, TensorBoard reads a run's events, and Chromium draws the page.

`tools/dev test observe` installs them; each test is skipped, with the reason, where its program is not there.
"""

import html
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BIN, SOURCE = (pathlib.Path(os.environ[name]) for name in ("WEFT_BIN", "WEFT_SOURCE"))
PYTHON = pathlib.Path(os.environ.get("WEFT_DEPS_DIR", "")) / "observe-venv/bin/python"
sys.path[:0] = [str(SOURCE / "tests"), str(SOURCE / "tests/tools/run")]

import tiny_training  # noqa: E402
from ports import free_port  # noqa: E402
from processes import until  # noqa: E402

PATIENCE_S = 120
HANG = "hang outside of communication"

PARSE = """
import collections, json, sys
from google.protobuf.unknown_fields import UnknownFieldSet
from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import Trace, TrackEvent
trace = Trace()
trace.ParseFromString(open(sys.argv[1], "rb").read())
unknown = UnknownFieldSet(trace), *(UnknownFieldSet(packet) for packet in trace.packet)
assert not any(len(fields) for fields in unknown), "fields that Perfetto does not know"
seen, depth, processes, flows = collections.Counter(), collections.Counter(), set(), set()
for packet in trace.packet:
    if packet.HasField("track_descriptor") and packet.track_descriptor.HasField("process"):
        processes.add(packet.track_descriptor.process.process_name)
    if packet.HasField("track_event"):
        event = packet.track_event
        flows.update(event.flow_ids)
        if event.type == TrackEvent.TYPE_SLICE_BEGIN:
            depth[event.track_uuid] += 1
            seen[event.name] += 1
        elif event.type == TrackEvent.TYPE_SLICE_END:
            depth[event.track_uuid] -= 1
            assert depth[event.track_uuid] >= 0, "an end without its beginning"
print(json.dumps({"seen": seen, "processes": sorted(processes), "open": sum(depth.values()),
                  "flows": len(flows)}))
"""

EVENTS = """
import json, sys
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
events = EventAccumulator(sys.argv[1])
events.Reload()
print(json.dumps({tag: [(one.step, one.value) for one in events.Scalars(tag)]
                  for tag in events.Tags()["scalars"]}))
"""


def python_with(module: str) -> None:
    if not PYTHON.exists() or subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True,
                                    check=False).returncode != 0:
        raise unittest.SkipTest(f"no Python here has {module}: tools/dev test observe installs it")


def run_python(script: str, argument) -> dict:
    done = subprocess.run([PYTHON, "-c", script, str(argument)], capture_output=True, text=True,
                          check=False, timeout=PATIENCE_S)
    if done.returncode != 0:
        raise AssertionError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def get(port: int, path: str):
    """The answer as JSON; None while there is none."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE_S)
    try:
        connection.request("GET", path)
        return json.loads(connection.getresponse().read())
    except (OSError, ValueError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class Interop(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weft-interop-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.rings = self.folder / "rings"

    def start(self, command, **options):
        """A program that is ended with the test."""
        process = subprocess.Popen([str(word) for word in command], **options)

        def end():
            process.terminate()
            try:
                process.wait(timeout=30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.addCleanup(end)
        return process

    def hanging_job(self, *launcher) -> None:
        """Rank 2 of 4 waits for its data, and weft-diagnose says so."""
        self.start([BIN / "weft-run", "-n", "4", "--output", "none", *launcher, "--set",
                    f"records.folder={self.rings}", "--", BIN / "weft-fault", "run", "--fault",
                    "hang-data", "--rank", "2", "--step", "4", "--step-time", "20ms"],
                   stderr=subprocess.DEVNULL)
        until(lambda: f"\n{HANG}: rank" in subprocess.run(
            [BIN / "weft-diagnose", "--records", self.rings], capture_output=True, text=True, check=False,
            timeout=PATIENCE_S).stdout, PATIENCE_S, f"{HANG!r} of weft-diagnose")

    def test_prometheus_scrapes_the_agent_and_an_alert_fires(self):
        if shutil.which("prometheus") is None:
            self.skipTest("no prometheus here: tools/dev test observe installs it")
        agent, server = free_port(), free_port()
        self.hanging_job("--agent", f"127.0.0.1:{agent}")
        # As in docs/monitoring, but for the port and how long things take.
        config = (SOURCE / "docs/monitoring/prometheus.yml").read_text()
        config = config.replace(": 5s", ": 1s").replace("127.0.0.1:9400", f"127.0.0.1:{agent}")
        rules = (SOURCE / "docs/monitoring/weft-alerts.yml").read_text().replace("for: 10s", "for: 1s")
        (self.folder / "prometheus.yml").write_text(config)
        (self.folder / "weft-alerts.yml").write_text(rules)
        self.start(["prometheus", f"--config.file={self.folder}/prometheus.yml",
                    f"--storage.tsdb.path={self.folder}/tsdb",
                    f"--web.listen-address=127.0.0.1:{server}"],
                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

        def firing() -> list[dict]:
            answer = get(server, "/api/v1/alerts")
            alerts = answer["data"]["alerts"] if answer else []
            return [alert["labels"] for alert in alerts if alert["state"] == "firing"
                    and alert["labels"]["alertname"] == "WeftJobFinding" and alert["labels"]["fault"] == HANG]

        def ranks_up() -> int:
            answer = get(server, "/api/v1/query?query=weft_rank_up")
            return len(answer["data"]["result"]) if answer else 0
        self.assertEqual([alert["component"] for alert in until(firing, PATIENCE_S, "an alert that fires")], ["data"])
        until(lambda: ranks_up() == 4, PATIENCE_S, "weft_rank_up of four ranks")

    def test_perfettos_own_protos_parse_the_trace(self):
        python_with("perfetto")
        job = self.start([BIN / "weft-run", "-n", "3", "--output", "none", "--set",
                          f"records.folder={self.rings}", "--set", "records.keep=true", "--",
                          BIN / "weft-fault", "run", "--steps", "6", "--step-time", "20ms"],
                         stderr=subprocess.DEVNULL)
        self.assertEqual(job.wait(timeout=PATIENCE_S), 0)
        trace = self.folder / "t.pftrace"
        subprocess.run([BIN / "weft-trace", "--replay", "--records", self.rings, "--perfetto",
                        trace], check=True, stdout=subprocess.DEVNULL)
        told = run_python(PARSE, trace)
        self.assertEqual(told["open"], 0)
        self.assertEqual(len(told["processes"]), 3)
        self.assertEqual(told["seen"]["optimizer"], 3 * 6)
        self.assertEqual(told["seen"]["all_reduce"], 3 * 6 * 4)  # two buckets and two norms a step
        self.assertGreater(told["flows"], 6 * 4)

    def test_tensorboard_reads_the_events_of_a_run(self):
        python_with("tensorboard")
        if not (BIN / "weft-train").exists():
            self.skipTest("weft-train is not built")
        text, prefix, run = self.folder / "text", self.folder / "tiny", self.folder / "run"
        tiny_training.write_text(str(text), random.Random(1))
        subprocess.run([BIN / "weft-data", "prepare", "--input", text, "--output-prefix", prefix,
                        "--vocab-size", "300"], check=True, capture_output=True, timeout=PATIENCE_S)
        config = self.folder / "tiny.toml"
        config.write_text(tiny_training.config(prefix, 3, global_batch=4, checkpoint_every=0))
        done = subprocess.run(
            [BIN / "weft-train", config, "--run-dir", run, "--set",
             "train.tensorboard=true"],
            capture_output=True, text=True, check=False, timeout=PATIENCE_S, cwd=self.folder,
            env={**os.environ, "WEFT_RECORDS_FOLDER": str(self.rings)})
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        scalars = run_python(EVENTS, run / "tensorboard")
        written = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        losses = {line["step"]: line["loss"] for line in written if "loss" in line}
        tag = "loss/train"
        self.assertEqual({step for step, _ in scalars[tag]}, set(losses))
        for step, value in scalars[tag]:
            self.assertAlmostEqual(value, losses[step], places=4)
        numbers = {key for line in written if "loss" in line for key in line} - {"step"}
        self.assertEqual(len(scalars), len(numbers), "every number of metrics.jsonl has its tag")

    def test_chromium_draws_the_page(self):
        if shutil.which("chromium") is None:
            self.skipTest("no chromium here: tools/dev test observe installs it")
        self.hanging_job()
        page = self.folder / "trace.html"
        subprocess.run([BIN / "weft-trace", "--records", self.rings, "--html", page], check=True,
                       stdout=subprocess.DEVNULL)
        done = subprocess.run(
            ["chromium", "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
             f"--user-data-dir={self.folder}/chromium", "--virtual-time-budget=2000", "--dump-dom",
             page.as_uri() + "#rank=3"], capture_output=True, text=True, check=False, timeout=PATIENCE_S)
        self.assertEqual(done.returncode, 0, done.stderr)
        text = html.unescape(re.sub(r"<script.*?</script>", "", done.stdout, flags=re.DOTALL))
        self.assertIn("4 of 4 ranks", text)
        self.assertIn("hang outside of communication: rank 2 (data)", text)
        self.assertRegex(text, r'<canvas id="lines"[^>]*width="\d{3,}"')
        self.assertRegex(text, r'<canvas id="space"[^>]*width="\d{3,}"')
        self.assertIn("backward", text[text.index('id="heat"'):])
        chosen = text[text.index('id="side"'):]
        self.assertIn("rank 3 on ", chosen)
        self.assertIn("group world: 4 ranks, neighbours 2 and 0", chosen)
        self.assertRegex(chosen, r"to \d over \w+: \d+ bytes")


if __name__ == "__main__":
    unittest.main(verbosity=2)
