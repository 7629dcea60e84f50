"""tools/dev check sizes: what is counted, where, and beside what."""

import unittest

import _path  # noqa: F401
import sizes

HEADER = """// struct Comment {};
class Speaker {
 public:
  struct Word {
    int length;
  };

 private:
  struct Hidden {
    int length;
  };
};
class Ahead;
"""


class Sizes(unittest.TestCase):
    def test_lines_and_public_types_are_counted_by_folder(self):
        lines, types = sizes.count({"net/tcp/a.h": HEADER, "net/tcp/a.cc": "1\n2\n", "net/b.h": HEADER,
                                    "tests/net/tcp/a.h": HEADER, "README.md": "words\n"})
        self.assertEqual(dict(lines), {"net/tcp": 15, "net": 13, "tests": 13})
        self.assertEqual({name: number for name, number in types.items() if number}, {"net/tcp": 2, "net": 2})

    def test_what_has_come_and_gone_stands_beside(self):
        now, before = ({"net/a.h": HEADER}, {"net/a.h": HEADER + HEADER, "base/gone.cc": "1\n"})
        rows = [" ".join(row.split()) for row in sizes.table(sizes.count(now), sizes.count(before))]
        self.assertEqual(rows, ["folder lines public types", "base 0 (-1) 0 (+0)", "net 13 (-13) 2 (-2)",
                                "all 13 (-14) 2 (-2)"])


if __name__ == "__main__":
    unittest.main()
