"""tools/dev docs --wrap: what of a page is wrapped, and what is left as it is."""

import unittest

import _path  # noqa: F401
import prose

LONG = "word " * 30 + "end"


class Prose(unittest.TestCase):
    def test_a_wide_paragraph_is_wrapped_and_says_the_same(self):
        page = f"# Title\n\nBefore\n{LONG}\nafter.\n\nShort\nlines stay.\n"
        wrapped = prose.wrap(page)
        self.assertLessEqual(max(map(len, wrapped.splitlines())), prose.COLUMNS)
        self.assertEqual(wrapped.split(), page.split())
        self.assertTrue(wrapped.startswith("# Title\n\nBefore word"))
        self.assertTrue(wrapped.endswith("after.\n\nShort\nlines stay.\n"))

    def test_an_item_keeps_its_indentation(self):
        lines = prose.wrap(f"- one\n  - {LONG}\n- three\n").splitlines()
        self.assertEqual([line[:4] for line in lines], ["- on", "  - ", "    ", "- th"])

    def test_code_tables_headings_and_html_stay(self):
        page = f"# {LONG}\n\n| {LONG} |\n\n```\n{LONG}\n```\n\n    {LONG}\n    {LONG}\n\n<p>{LONG}\n"
        self.assertEqual(prose.wrap(page), page)

    def test_no_word_becomes_a_marker(self):
        wrapped = prose.wrap("w" * 117 + " - " + "minus what\n")
        self.assertEqual([line for line in wrapped.splitlines() if line.startswith("-")], [])
        self.assertEqual(wrapped.split(), ["w" * 117, "-", "minus", "what"])

    def test_code_in_a_line_is_not_broken(self):
        wrapped = prose.wrap("w" * 105 + " `weft-topo learn-hash` learns\n")
        self.assertEqual(wrapped, "w" * 105 + "\n`weft-topo learn-hash` learns\n")

    def test_wrapping_twice_changes_nothing(self):
        once = prose.wrap(f"- {LONG}\n\n1. {LONG}\n{LONG}\n")
        self.assertEqual(prose.wrap(once), once)


if __name__ == "__main__":
    unittest.main()
