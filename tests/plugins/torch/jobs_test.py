"""Whole jobs: torchrun with a worker that dies, and training that goes on after that; agents that
meet at our store, weft-run, backends composed by device, TORCH_DISTRIBUTED_DEBUG, profiler, and the
package's own programs."""

import installed

import contextlib
import io
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree

from weft.torch.bench import steps
from weft.torch.bench.__main__ import main as bench_main

WORKER = r"""
import os, signal, sys
import torch, torch.distributed as dist
dist.init_process_group("weft")
t = torch.ones(4)
dist.all_reduce(t)
attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT")
if attempt == "0" and dist.get_rank() == 1 and "die" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
dist.all_reduce(t)
# One write: the ranks share a pipe.
os.write(1, f"sum {t.sum().item()} attempt {attempt}\n".encode())
dist.destroy_process_group()
"""


# As the tutorial of torchrun: what was learned is saved after each epoch, and loaded by whatever
# workers there are then.
ELASTIC = r"""
import os, signal, sys
import torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

snapshot, attempt = sys.argv[1], os.environ["TORCHELASTIC_RESTART_COUNT"]
dist.init_process_group(os.environ["BACKEND"])
rank = dist.get_rank()
torch.manual_seed(3)
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
first = 0
if os.path.exists(snapshot):
    saved = torch.load(snapshot)
    model.load_state_dict(saved["model"])
    optimizer.load_state_dict(saved["optimizer"])
    first = saved["epochs"]
module = DistributedDataParallel(model)
for epoch in range(first, 4):
    if epoch == 2 and attempt == "0" and rank == 1 and "die" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    data = torch.randn(8, 16, generator=torch.Generator().manual_seed(10 * epoch + rank))
    loss = (module(data) - data).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    # One write: the ranks share a pipe.
    os.write(1, f"attempt {attempt} epoch {epoch} rank {rank} loss {loss.item().hex()}\n".encode())
    if rank == 0:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(),
                    "epochs": epoch + 1}, snapshot + ".new")
        os.replace(snapshot + ".new", snapshot)
    dist.barrier()
""" + installed.LEAVE


def run(command: list, **environment) -> subprocess.CompletedProcess:
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          timeout=installed.LIMIT, env={**os.environ, **environment})


def script(folder: str, text: str) -> pathlib.Path:
    path = pathlib.Path(folder, "worker.py")
    path.write_text(text)
    return path


TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]


class Jobs(unittest.TestCase):
    def test_torchrun_starts_a_job_again_whose_worker_was_killed(self):
        with tempfile.TemporaryDirectory() as folder:
            done = run([*TORCHRUN, "--nproc-per-node=2", "--max-restarts=1", "--master-port",
                        installed.free_port(), script(folder, WORKER), "die"])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.split("\n").count("sum 16.0 attempt 1"), 2, done.stdout)

    def test_training_goes_on_after_a_killed_worker_to_gloos_losses(self):
        printed = {}
        # Gloo's workers live: started again by this agent, they find addresses of the dead at its store.
        for backend, words in (("weft", ["die"]), ("gloo", [])):
            with tempfile.TemporaryDirectory() as folder:
                done = run([*TORCHRUN, "--nproc-per-node=2", "--max-restarts=1", "--master-port",
                            installed.free_port(), script(folder, ELASTIC), f"{folder}/snapshot", *words],
                           BACKEND=backend, GLOO_SOCKET_IFNAME="lo")
            self.assertEqual(done.returncode, 0, done.stderr)
            printed[backend] = sorted(line for line in done.stdout.splitlines()
                                      if line.startswith("attempt "))
        self.assertEqual([line.partition(" loss ")[0] for line in printed["weft"]],
                         [f"attempt {epoch // 2} epoch {epoch} rank {rank}"
                          for epoch in range(4) for rank in range(2)])
        self.assertEqual([line.partition(" epoch ")[2] for line in printed["weft"]],
                         [line.partition(" epoch ")[2] for line in printed["gloo"]])

    def test_torchrun_agents_meet_at_our_store(self):
        port = installed.free_port()
        with tempfile.TemporaryDirectory() as folder:
            worker = script(folder, WORKER)
            agents = [subprocess.Popen(
                [*TORCHRUN, "--nnodes=2", "--nproc-per-node=1", "--rdzv-backend=weft",
                 f"--rdzv-endpoint=127.0.0.1:{port}", "--rdzv-id=job-7", worker],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
            try:
                for agent in agents:
                    printed, errors = agent.communicate(timeout=installed.LIMIT)
                    self.assertEqual(agent.returncode, 0, errors)
                    self.assertIn("sum 16.0 attempt 0", printed)
            finally:
                for agent in agents:
                    agent.kill()
                    agent.wait()

    def test_weft_run_starts_a_job(self):
        if not (installed.BUILD / "bin/weft-run").exists():
            self.skipTest("this build has no weft-run")
        with tempfile.TemporaryDirectory() as folder:
            done = run([installed.BUILD / "bin/weft-run", "-n", "2", "--", sys.executable,
                        script(folder, WORKER.replace(
                            '"weft")', '"weft", init_method="weft://")'))])
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("sum 16.0"), 2, done.stdout)

    def test_backends_are_composed_by_device(self):
        text = """
import torch, torch.distributed as dist
dist.init_process_group("cpu:weft,cuda:gloo", store=dist.HashStore(), rank=0, world_size=1)
t = torch.ones(3)
dist.all_reduce(t)
backend = dist.group.WORLD._get_backend(torch.device("cpu"))
print(backend.name(), t.sum().item())
"""
        done = run([sys.executable, "-c", text])
        self.assertEqual(done.stdout.split(), ["weft", "3.0"], done.stderr)

    def test_the_debug_wrapper_works_and_names_who_differs(self):
        with installed.programs(2, """
import os
import torch, torch.distributed as dist
dist.init_process_group("weft")
dist.all_reduce(torch.ones(3))
try:
    dist.all_reduce(torch.ones(3 + int(os.environ["RANK"])))
except RuntimeError as error:
    print("error:", error)
os._exit(0)
""", TORCH_DISTRIBUTED_DEBUG="DETAIL") as ranks:
            for rank in ranks:
                self.assertEqual(rank.wait(), 0, rank.output())
                self.assertIn("error: Detected mismatch between collectives", rank.output())

    def test_the_profiler_sees_calls_with_their_shapes_and_groups(self):
        text = """
import torch, torch.distributed as dist
dist.init_process_group("weft", store=dist.HashStore(), rank=0, world_size=1)
with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU],
                            record_shapes=True) as profile:
    dist.all_reduce(torch.ones(3, 4))
events = {event.name: event.input_shapes for event in profile.events()}
print(events["weft:all_reduce"], "record_param_comms" in events)
"""
        done = run([sys.executable, "-c", text])
        self.assertEqual(done.stdout.strip(), "[[3, 4]] True", done.stderr)


class Programs(unittest.TestCase):
    def test_info_tells_what_there_is(self):
        done = run([sys.executable, "-m", "weft.torch.info"])
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"transports: +shm, tcp, multipath")
        done = run([sys.executable, "-m", "weft.torch.info", "--json"], WEFT_TCP_SOCKETS="3")
        self.assertEqual(json.loads(done.stdout)["settings"], {"tcp.sockets": "3 (environment)"})

    def test_info_ends_with_1_where_the_library_is_missing(self):
        done = run([sys.executable, "-m", "weft.torch.info"],
                   WEFT_TORCH_LIBRARY="/nowhere/libweft_torch.so")
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no /nowhere/libweft_torch.so", done.stdout)

    def test_info_ends_with_1_where_a_setting_is_wrong(self):
        done = run([sys.executable, "-m", "weft.torch.info", "--json"], WEFT_TCP_SOCKETS="many")
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertRegex(json.loads(done.stdout)["problem"], "tcp.sockets.*many")

    def bench(self, part: str, *arguments: str) -> list[dict]:
        done = run([sys.executable, "-m", "weft.torch.bench", "--parts", part, "--quick",
                    "--rounds", "1", "--json", *arguments])
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = [json.loads(line) for line in done.stdout.splitlines()]
        for row in rows:
            self.assertEqual(row["part"], part)
            self.assertGreater(row["weft_us"], 0)
        return rows

    def test_bench_refuses_before_it_measures(self):
        for arguments, said in ((["--ranks", "2", "1"], "--ranks 1: at least 2 processes"),
                                (["--processes", "0"], "--processes 0: at least 2 processes"),
                                (["--rounds", "-1"], "--rounds -1: at least 1 round"),
                                (["--sizes", "16", "--ranks", "2", "8"],
                                 "--sizes 16: each of 8 ranks has a part of 4 bytes"),
                                (["--svg", "/nowhere/x.svg"], "--svg /nowhere/x.svg: no file"),
                                (["--svg", "/tmp"], "--svg /tmp: no file"),
                                (["--svg", "x.svg", "--parts", "start"], "which --parts leaves out")):
            output = io.StringIO()
            with self.subTest(arguments), contextlib.redirect_stderr(output), \
                    self.assertRaises(SystemExit) as ended:
                bench_main(arguments)
            self.assertEqual(ended.exception.code, 2)
            self.assertIn(said, output.getvalue())

    def test_bench_measures_what_python_costs(self):
        for row, ranks in zip(self.bench("overhead"), (1, 2, 4), strict=True):
            self.assertEqual(row["ranks"], ranks)
            self.assertGreater(row["core_us"], 0)
            self.assertAlmostEqual(row["overhead_us"], row["weft_us"] - row["core_us"])
            self.assertAlmostEqual(row["overhead_by_minima_us"],
                                   row["fastest_us"] - row["core_fastest_us"])
            self.assertLessEqual(row["fastest_us"], row["weft_us"])

    def test_bench_measures_how_groups_start(self):
        rows = self.bench("start", "--processes", "3", "--imports")
        self.assertEqual([(row["operation"], row["ranks"]) for row in rows],
                         [("init + first all_reduce", 3), ("new_group", 3),
                          ("first all_reduce of a group", 3),
                          ("process + imports + init + first all_reduce", 3)])
        for row in rows:
            self.assertAlmostEqual(row["ratio"], row["gloo_us"] / row["weft_us"])
        start = rows[0]
        self.assertLess(start["init_us"], start["weft_us"])
        self.assertLess(start["gloo_init_us"], start["gloo_us"])
        for backend in ("weft", "gloo", "fake"):
            self.assertGreater(start[f"{backend}_cpu_us"], 0)

    def test_bench_measures_steps_and_their_exposed_communication(self):
        rows = self.bench("steps")
        self.assertEqual([row["operation"] for row in rows],
                         [f"{kind} step, {precision}"
                          for kind in ("DDP", "FSDP2", "FSDP2 with group's memory",
                                       "tensor parallel")
                          for precision in ("fp32", "bf16")])
        for row in rows:
            self.assertAlmostEqual(row["exposed_weft_us"], row["weft_us"] - row["removed_us"])
            self.assertAlmostEqual(row["exposed_gloo_us"], row["gloo_us"] - row["removed_us"])

    def test_bench_bounds_what_is_recovered_by_how_much_the_rounds_differ(self):
        bounds = steps.recovered_bounds
        # Gloo exposes 4 of 14, ours 1 of 11: three quarters are gone.
        equal = {"removed": [10.0] * 9, "gloo": [14.0] * 9, "weft": [11.0] * 9}
        self.assertEqual(bounds(equal), (0.75, 0.75))
        low, high = bounds({**equal, "weft": [10.6, 10.7, 10.8, 10.9, 11.0, 11.1, 11.2, 11.3, 11.4]})
        self.assertTrue(0.65 <= low < 0.75 < high <= 0.85, (low, high))
        self.assertEqual(bounds({**equal, "gloo": [10.1] * 9}), (None, None))  # nothing is exposed

    def test_bench_measures_both(self):
        rows = self.bench("collectives", "--ranks", "2", "--sizes", "1K", "--operations",
                          "all_reduce", "barrier")
        self.assertEqual([(row["operation"], row["bytes"]) for row in rows],
                         [("all_reduce", 1024), ("barrier", 0)])

    def test_bench_draws_what_it_measured(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder, "bench.svg")
            done = run([sys.executable, "-m", "weft.torch.bench", "--parts", "collectives",
                        "--ranks", "2", "--sizes", "1K", "64K", "--rounds", "1",
                        "--operations", "all_reduce", "broadcast", "barrier", "--svg", file])
            self.assertEqual(done.returncode, 0, done.stderr)
            svg = xml.etree.ElementTree.parse(file).getroot()
        names = [element.tag.split("}")[1] for element in svg.iter()]
        self.assertEqual(names.count("polyline"), 4)  # two operations, two backends
        self.assertEqual(names.count("circle"), 8)
        self.assertIn("all_reduce, 2 ranks", [element.text for element in svg.iter()])

    def test_bench_refuses_sizes_that_are_none(self):
        done = run([sys.executable, "-m", "weft.torch.bench", "--sizes", "huge"])
        self.assertEqual(done.returncode, 2)
        self.assertIn("'huge' is no size; right are 4096, 64K, 16M", done.stderr)


if __name__ == "__main__":
    unittest.main(verbosity=2)
