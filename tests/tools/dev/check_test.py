"""tools/dev check: what each check finds, and what it lets pass."""

import contextlib
import pathlib
import tempfile
import threading
import unittest
from unittest import mock

import _path  # noqa: F401
import check
import tidy


class IncludeDirection(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        for header in ("base/status.h", "net/transport.h", "collectives/endpoint.h",
                       "trainer/config.h"):
            (root / header).parent.mkdir(exist_ok=True)
            (root / header).touch()
        patch = mock.patch.object(check, "ROOT", root)
        patch.start()
        self.addCleanup(patch.stop)

    def test_downwards_is_allowed(self):
        for name, header in (("tools/a.cc", "trainer/config.h"), ("net/a.cc", "base/status.h"),
                             ("collectives/a.h", "net/transport.h"),
                             ("tests/base/a.cc", "collectives/endpoint.h")):
            self.assertEqual(check.include_problems(name, f'#include "{header}"\n'), [], name)

    def test_upwards_is_refused_with_file_and_line(self):
        (problem,) = check.include_problems(
            "base/a.h", '#include "base/status.h"\n\n#  include "net/transport.h"\n')
        self.assertEqual(problem, "base/a.h:3: base/ may not include net/; it may: base")
        self.assertEqual(len(check.include_problems("net/a.cc", '#include "trainer/config.h"')), 1)
        self.assertEqual(
            len(check.include_problems("plugins/a.cc", '#include "trainer/config.h"')), 1)

    def test_torch_stays_where_it_is_paid_for(self):
        for header in ("torch/torch.h", "ATen/ATen.h", "c10/util/Half.h"):
            line = f"#include <{header}>\n"
            self.assertEqual(len(check.include_problems("net/a.cc", line)), 1)
            self.assertEqual(len(check.include_problems("collectives/a.cc", line)), 1)
            self.assertEqual(check.include_problems("collectives/c10d/a.cc", line), [])
            self.assertEqual(check.include_problems("trainer/model/a.cc", line), [])

    def test_a_path_must_start_at_the_root(self):
        self.assertEqual(check.include_problems("base/a.cc", "#include <net/if.h>\n"), [])
        (problem,) = check.include_problems("base/a.cc", '#include "status.h"\n')
        self.assertIn('base/a.cc:1: "status.h" is no path from the root', problem)


class Dates(unittest.TestCase):
    def test_durations_and_deadlines_are_by_the_steady_clock(self):
        text = "int a;\nabsl::Time end = absl::Now() + limit;\n"
        (problem,) = check.date_problems("trainer/loop/saver.cc", text)
        self.assertTrue(problem.startswith("trainer/loop/saver.cc:2: the date jumps"), problem)
        steady = text.replace("absl::Now()", "SystemClock().Now()")
        self.assertEqual(check.date_problems("trainer/loop/saver.cc", steady), [])

    def test_a_file_that_writes_a_date_reads_it_as_often_as_it_may(self):
        name = "trainer/files/folder_lock.cc"
        date = "const absl::Time now = absl::Now();\n"
        self.assertEqual(check.date_problems(name, date), [])
        self.assertEqual(len(check.date_problems(name, date + "while (absl::Now() < end) {\n")), 2)

    def test_the_tree_has_none_but_dates(self):
        self.assertEqual(check.check_dates(None), [])


class WideComments(unittest.TestCase):
    def test_a_comment_is_at_most_100_columns_wide(self):
        fits = "//" + 98 * "a"
        self.assertEqual(check.wide_comments("net/a.h", f"int a;\n{fits}\n"), [])
        (problem,) = check.wide_comments("net/a.h", f"int a;\n  {fits}\n")
        self.assertIn("net/a.h:2: a comment of 102 columns", problem)

    def test_a_long_text_in_code_is_not_a_comment(self):
        self.assertEqual(check.wide_comments("net/a.h", f'char a[] = "{98 * "a"}";\n'), [])


class MachinePaths(unittest.TestCase):
    def find(self, text: str) -> list[str]:
        with tempfile.TemporaryDirectory() as root:
            (pathlib.Path(root) / "notes.md").write_text(text)
            with mock.patch.object(check, "ROOT", pathlib.Path(root)), \
                    mock.patch.object(check, "tracked", return_value=["notes.md"]):
                return check.check_paths(None)

    def test_a_home_folder_is_found(self):
        for folder in ("root", "home", "work"):
            (problem,) = self.find(f"fine\nsee /{folder}/someone/notes\n")
            self.assertTrue(problem.startswith("notes.md:2: "), problem)

    def test_other_paths_are_not(self):
        self.assertEqual(self.find("/usr/share/dictd, tests/work/a, from the root/branch\n"), [])


class TidyMemory(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        patch = mock.patch.object(tidy, "ROOT", self.root)
        patch.start()
        self.addCleanup(patch.stop)
        (self.root / "a.cc").write_text('#include "b.h"\n#include <vector>\n')
        (self.root / "b.h").write_text('#include "c.h"\n')
        (self.root / "c.h").write_text('#include "b.h"\n// a circle\n')
        (self.root / "d.h").write_text("")

    def test_changes_with_every_header_of_ours_and_with_nothing_else(self):
        before = tidy.fingerprint("a.cc", "command")
        (self.root / "d.h").write_text("int unrelated;\n")
        self.assertEqual(tidy.fingerprint("a.cc", "command"), before)
        self.assertNotEqual(tidy.fingerprint("a.cc", "another command"), before)
        (self.root / "c.h").write_text("int changed;\n")
        self.assertNotEqual(tidy.fingerprint("a.cc", "command"), before)

    def test_clang_gets_no_precompiled_header_of_gcc(self):
        plain = tidy.plain_command("/usr/bin/ccache /usr/bin/c++ -O2 -Winvalid-pch "
                                   "-include /b/cmake_pch.hxx -o a.o -c a.cc")
        self.assertEqual(plain, "/usr/bin/c++ -O2 -o a.o -c a.cc")

    def test_files_that_were_changed_last_come_first(self):
        names = ["old.cc", "never.cc", "new.cc"]
        self.assertEqual(tidy.newest_first(names, ["new.cc", "other.cc", "old.cc", "new.cc"]),
                         ["new.cc", "old.cc", "never.cc"])

    def test_when_its_time_is_over_it_says_how_many_files_are_left(self):
        names = [f"{number}.cc" for number in range(9)]
        for name in names:
            (self.root / name).write_text("")
        (self.root / ".clang-tidy").write_text("")
        looked_at, said, is_over = [], [], threading.Event()

        def look_at(_program, _database, name):
            looked_at.append(name)
            if len(looked_at) == 2:
                is_over.wait(60)
            return [f"{name}:1:1: warning"]

        def say(text):
            said.append(text)
            if "minutes are over" in text:
                is_over.set()

        patches = {"look_at": look_at, "say": say, "jobs": lambda: 1, "CACHE": self.root / "cache",
                   "output": lambda _words: "", "selected_commands": lambda *_: {n: {"command": ""} for n in names}}
        with contextlib.ExitStack() as stack:
            for name, value in patches.items():
                stack.enter_context(mock.patch.object(tidy, name, value))
            stack.enter_context(mock.patch.object(tidy.build, "configure", lambda _: self.root))
            stack.enter_context(mock.patch.object(tidy.setup, "install_clang_tidy", lambda: "clang-tidy"))
            found = tidy.problems(everything=False, since=None, minutes=0)
            self.assertLessEqual(len(looked_at), 2)
            self.assertIn(f"clang-tidy: {9 - len(looked_at)} files are not looked at: 0 minutes are over", said)
            self.assertEqual(found, ["0.cc:1:1: warning"])
            self.assertEqual(len(tidy.problems(everything=False, since=None)), len(names))


if __name__ == "__main__":
    unittest.main()
