"""Runs every command of README.md, in its order, in a folder that looks like the tree."""

import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from _path import BIN, SOURCE

DICTIONARY = pathlib.Path("/usr/share/dictd/gcide.dict.dz")


def commands() -> list[str]:
    blocks = re.findall(r"^```sh\n(.*?)^```", (SOURCE / "README.md").read_text(),
                        re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [line.split(" #")[0].strip() for line in lines if line.split("#")[0].strip()]


class Readme(unittest.TestCase):
    def test_every_command_works(self):
        found = commands()
        self.assertGreaterEqual(len(found), 2)
        with tempfile.TemporaryDirectory(prefix="weft-readme-") as folder:
            tree = self.lay_out(pathlib.Path(folder))
            for command in found:
                with self.subTest(command):
                    self.execute(command, tree)

    def lay_out(self, tree: pathlib.Path) -> pathlib.Path:
        (tree / "build/release").mkdir(parents=True)
        for name in ("bin", "lib"):
            (tree / "build/release" / name).symlink_to(BIN.parent / name)
        for name in ("README.md", "tools", "trainer"):
            (tree / name).symlink_to(SOURCE / name)
        (tree / "data").mkdir()
        if (SOURCE / "data/gcide/gcide.json").exists():
            (tree / "data/gcide").symlink_to(SOURCE / "data/gcide")
        elif "demo.toml" in " ".join(commands()):
            self.execute(f"build/release/bin/weft-data prepare --input {DICTIONARY} "
                         "--cleaner gcide --output-prefix data/gcide/gcide --vocab-size 4096 "
                         "--validation-fraction 0.01", tree)
        return tree

    def execute(self, command: str, tree: pathlib.Path) -> None:
        if command == "tools/dev demo":  # the whole way, with fewer steps
            command += f" --run-dir {tree}/runs/demo --set train.steps=20 --set validation.batches=1"
        elif command.startswith("tools/dev "):  # this very test is part of it
            command += " --help"
        environment = {name: value for name, value in os.environ.items() if name != "GTEST_OUTPUT"}
        # -e: each part of "a & b; c; wait" counts, where the last one's status is all that sh would return.
        done = subprocess.run(["sh", "-ec", command], cwd=tree, env=environment, timeout=240,
                              stdin=subprocess.DEVNULL, capture_output=True, text=True)
        self.assertEqual(done.returncode, 0,
                         f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}")


if __name__ == "__main__":
    unittest.main()
