"""The command line of tools/dev, and what weft-settings prints."""

import json
import os
import subprocess
import unittest

from _path import BIN, SOURCE


def run(*command, **environment):
    clean = {name: value for name, value in os.environ.items() if not name.startswith("WEFT_")}
    return subprocess.run([str(word) for word in command], capture_output=True, text=True,
                          env={**clean, **environment}, timeout=120)


class DevCommandLine(unittest.TestCase):
    def test_every_command_has_help(self):
        for command in ("setup", "build", "demo", "test", "bench", "check", "docs"):
            done = run(SOURCE / "tools/dev", command, "--help")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"usage: tools/dev {command}", done.stdout)

    def test_an_unknown_command_names_those_there_are(self):
        done = run(SOURCE / "tools/dev", "biuld")
        self.assertEqual(done.returncode, 2)
        self.assertIn("'build'", done.stderr)

    def test_an_unknown_benchmark_is_an_error(self):
        done = run(SOURCE / "tools/dev", "bench", "nonsense")
        self.assertEqual(done.returncode, 1)
        self.assertIn("there is no benchmark nonsense", done.stderr)


class WeftSettings(unittest.TestCase):
    def test_shows_who_set_a_value(self):
        done = run(BIN / "weft-settings", "--json", "--set", "tcp.sockets=4", WEFT_SHM_SLOTS="16")
        self.assertEqual(done.returncode, 0, done.stderr)
        rows = {row["name"]: row for row in json.loads(done.stdout)}
        self.assertEqual((rows["tcp.sockets"]["value"], rows["tcp.sockets"]["origin"]),
                         ("4", "--set"))
        self.assertEqual((rows["shm.slots"]["value"], rows["shm.slots"]["origin"]),
                         ("16", "environment"))
        self.assertEqual(rows["tcp.family"]["origin"], "default")
        self.assertEqual(rows["tcp.sockets"]["environment"], "WEFT_TCP_SOCKETS")

    def test_prints_a_table_for_people(self):
        done = run(BIN / "weft-settings")
        self.assertRegex(done.stdout, r"(?m)^setting +value +origin$")
        self.assertRegex(done.stdout, r"(?m)^tcp\.interface +\(empty\) +default$")

    def test_a_typing_error_is_not_ignored(self):
        done = run(BIN / "weft-settings", WEFT_TCP_SOKETS="4")
        self.assertEqual(done.returncode, 2)
        self.assertIn("did you mean WEFT_TCP_SOCKETS?", done.stderr)
        done = run(BIN / "weft-settings", "--set", "tcp.sockets=0")
        self.assertEqual(done.returncode, 2)
        self.assertIn("must lie in 1..64", done.stderr)

    def test_the_page_of_settings_is_current(self):
        done = run(BIN / "weft-settings", "--markdown")
        self.assertEqual(done.stdout, (SOURCE / "docs/settings.md").read_text())


if __name__ == "__main__":
    unittest.main()
