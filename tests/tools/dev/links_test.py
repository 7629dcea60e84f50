"""tools/dev check docs: links of pages that lead nowhere."""

import pathlib
import tempfile
import unittest

import _path  # noqa: F401
import links


class Links(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        (self.root / "docs").mkdir()
        (self.root / "docs" / "other.md").write_text(
            "# Other page\n\n## What `it` costs: 5 %, or less\n\n## Twice\n\n## Twice\n\n```\n# no heading\n```\n")
        (self.root / "one.cc").write_text("")

    def check(self, text):
        return links.page_problems("docs/page.md", text, self.root)

    def test_links_that_lead_somewhere_are_right(self):
        page = ("# Page\n\n## Regret\n\n[a](#regret) [b](other.md) [c](other.md#what-it-costs-5--or-less)\n"
                "[d](other.md#twice-1) [e](../one.cc) ![f](other.md) [g](https://example.org/#x)\n"
                "`[not](a/link)`\n\n```\n[nor](this)\n```\n")
        self.assertEqual(self.check(page), [])

    def test_a_heading_that_is_not_there_is_named(self):
        self.assertEqual(self.check("# Page\n\n60 Regret\n\n[a](#regret)\n"),
                         ["docs/page.md:5: the link #regret leads to no heading of page.md"])
        self.assertEqual(self.check("[a](other.md#twice-2) [b](other.md#no-heading)\n"),
                         ["docs/page.md:1: the link other.md#twice-2 leads to no heading of other.md",
                          "docs/page.md:1: the link other.md#no-heading leads to no heading of other.md"])

    def test_a_file_that_is_not_there_is_named(self):
        self.assertEqual(self.check("[a](gone.md#x)\n"), ["docs/page.md:1: the link gone.md#x leads to no file"])


if __name__ == "__main__":
    unittest.main()
