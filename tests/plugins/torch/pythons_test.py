"""The wheel in other versions of Python than the tests': it is one file for all of them.

Runs where such an interpreter has PyTorch: `tools/dev test pythons` makes one for each version that
this machine has."""

import installed

import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

sys.path.insert(0, str(installed.SOURCE / "tools/dev.d"))
import setup  # noqa: E402

PYTHONS = setup.other_torch_pythons()

PROGRAM = """
import sys
import torch, torch.distributed as dist
dist.init_process_group("weft")
rank, size = dist.get_rank(), dist.get_world_size()
tensor = torch.full((5,), float(rank + 1))
dist.all_reduce(tensor, async_op=True).get_future().wait()
assert tensor.eq(sum(range(1, size + 1))).all(), tensor
group = dist.new_group([0, 1])
gathered = [None] * size
dist.all_gather_object(gathered, {"rank": rank}, group=group)
assert gathered == [{"rank": r} for r in range(size)], gathered
import weft.torch
assert weft.torch.statistics()[0]["calls"]["all_reduce"]["calls"] == 1
dist.barrier()
dist.destroy_process_group()
print("python", *sys.version_info[:2])
"""


class Pythons(unittest.TestCase):
    def test_each_runs_a_job_on_the_one_wheel(self):
        for version, python in PYTHONS.items():
            with self.subTest(version), tempfile.TemporaryDirectory() as folder:
                self.check(version, python, pathlib.Path(folder))

    def check(self, version: str, python: pathlib.Path, folder: pathlib.Path) -> None:
        installed.install(installed.make_wheel(folder), folder / "site", python)
        script = folder / "program.py"
        script.write_text(PROGRAM)
        port = str(installed.free_port())
        ranks = [subprocess.Popen(
            [python, script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**os.environ, "PYTHONPATH": str(folder / "site"), "RANK": str(rank),
                 "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})
            for rank in range(2)]
        try:
            for rank in ranks:
                printed, _ = rank.communicate(timeout=installed.LIMIT)
                self.assertEqual(rank.returncode, 0, printed)
                self.assertIn(f"python {version.replace('.', ' ')}", printed)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()


if __name__ == "__main__":
    if not PYTHONS:
        installed.skip("no other Python has PyTorch: tools/dev test pythons installs one")
    unittest.main()
