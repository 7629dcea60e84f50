"""What README.md and docs/ say of the tree: figures, programs, folders, decisions, what an image needs."""

import re
import unittest

from _path import SOURCE
import demo
from readme_commands import commands

LAYERS = ("topology", "net", "collectives", "plugins", "trainer", "tools")


def read(name: str) -> str:
    return (SOURCE / name).read_text()


def numbers(text: str) -> set[str]:
    """Figures; not the digits of words such as fp32."""
    return set(re.findall(r"(?<![\w.,])\d+(?:,\d{3})*(?:\.\d+)?(?![\w])", text))


def current(page: str) -> str:
    """The page without its sections of earlier figures."""
    return re.sub(r"^## Earlier.*?(?=^## |\Z)", "", page, flags=re.MULTILINE | re.DOTALL)


class Readme(unittest.TestCase):
    def test_figures_stand_in_the_linked_page_and_are_not_its_earlier_ones(self):
        rows = re.findall(r"^\|.*\]\(docs/benchmarks/.*$", read("README.md"), re.MULTILINE)
        self.assertGreaterEqual(len(rows), 3)
        for row in rows:
            (name,) = re.findall(r"\]\((docs/benchmarks/[\w-]+\.md)\)", row)
            shown = numbers(re.sub(r"\]\([^)]*\)", "]", row))
            with self.subTest(row):
                self.assertTrue(shown)
                self.assertEqual(shown - numbers(current(read(name))), set())

    def test_earlier_figures_are_none_of_a_page(self):
        page = "## Numbers\n\n| 12 |\n\n## Earlier numbers\n\n| 34 |\n\n### More\n\n56\n\n## Why\n\n7,890 of fp32\n"
        self.assertEqual(numbers(current(page)), {"12", "7,890"})

    def test_a_program_is_used_only_once_it_was_built(self):
        built = set(demo.PROGRAMS)
        for command in commands():
            if command == "tools/dev build":
                return
            with self.subTest(command):
                self.assertLessEqual(set(re.findall(r"build/release/bin/([\w-]+)", command)), built)
        self.fail("README.md has no line tools/dev build")


class Docs(unittest.TestCase):
    def test_every_folder_of_a_layer_is_in_the_architecture(self):
        page = read("docs/architecture.md")
        for layer in LAYERS:
            section = re.search(rf"^### {layer}/.*?(?=^##)", page, re.MULTILINE | re.DOTALL).group(0)
            for folder in sorted((SOURCE / layer).iterdir()):
                if folder.is_dir() and not folder.name.startswith(("_", ".")):
                    named = f"`{folder.name}/`" in section or f"{layer}/{folder.name}" in page
                    self.assertTrue(named, f"docs/architecture.md says nothing of {layer}/{folder.name}/")

    def test_decisions_are_numbered_without_a_gap_and_all_in_the_table(self):
        pages = sorted(path.name for path in (SOURCE / "docs/decisions").glob("0*.md"))
        self.assertEqual([int(name[:4]) for name in pages], list(range(1, len(pages) + 1)))
        table = re.findall(r"^\| \[(\d{4})\]\((.+\.md)\) \| (.+) \|$", read("docs/decisions/README.md"), re.MULTILINE)
        self.assertEqual([name for _, name, _ in table], pages)
        for number, name, title in table:
            heading = read(f"docs/decisions/{name}").splitlines()[0]
            self.assertEqual(heading, f"# {number} {title.removesuffix(' (withdrawn)')}")

    def test_settings_of_one_kind_stand_together(self):
        headings = re.findall(r"^## .*$", read("docs/settings.md"), re.MULTILINE)
        self.assertEqual(len(headings), len(set(headings)), headings)


class Image(unittest.TestCase):
    def test_what_git_ignores_is_not_copied_into_it(self):
        ignored = {line.strip("/") for line in read(".gitignore").splitlines() if not line.startswith("*")}
        left_out = {line.removeprefix("**/") for line in read(".dockerignore").splitlines()}
        self.assertEqual(ignored - left_out - {"compile_commands.json"}, set())

    def test_it_has_the_programs_that_a_driver_on_kubernetes_calls(self):
        needed = re.search(r"for name in \((.+)\):", read("tests/tools/driver/kubernetes_test.py")).group(1)
        installed = re.search(r"apt-get install (.*)", read("docs/launch/Containerfile")).group(1).split()
        self.assertLessEqual({name.strip('" ') for name in needed.split(",")}, set(installed))


if __name__ == "__main__":
    unittest.main()
