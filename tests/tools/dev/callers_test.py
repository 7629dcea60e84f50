"""tools/dev check callers: what it takes for a use, and what not."""

import unittest

import _path  # noqa: F401
import callers

HEADER = """// Say(), to whom it may concern.
class Speaker final {
 public:
  Speaker();
  void Say(int words);
  int words() const { return words_; }
  void OnTurn() override;

 private:
  void Whisper();
  int words_ = 0;
};
int Listen(const Speaker& speaker,
           int patience);
"""
SOURCE = """#include "net/speaker.h"
Speaker::Speaker() = default;
void Speaker::Say(int words) { words_ = words; }
void Speaker::OnTurn() {}
void Speaker::Whisper() {}
int Listen(const Speaker& speaker, int patience) { return speaker.words() + patience; }
"""
TEST = """TEST(Speaker, Speaks) { Speaker speaker; speaker.Say(3); }
"""


def found(exceptions=None, **more):
    texts = {"net/speaker.h": HEADER, "net/speaker.cc": SOURCE, "tests/net/speaker_test.cc": TEST}
    texts.update({name.replace("__", "/") + ".cc": text for name, text in more.items()})
    return callers.find(texts, exceptions or {})


class Callers(unittest.TestCase):
    def test_what_only_tests_use_and_what_nobody_uses_are_found(self):
        by_tests, by_nobody = sorted(found(), key=lambda problem: "nothing uses" in problem)
        self.assertTrue(by_tests.startswith("net/speaker.h:5: nothing but tests uses the function "
                                            "Say; "), by_tests)
        self.assertTrue(by_nobody.startswith("net/speaker.h:13: nothing uses the function Listen; "),
                        by_nobody)

    def test_a_call_anywhere_outside_of_tests_is_a_use(self):
        program = "int main() {\n  Speaker speaker;\n  speaker.Say(Listen(speaker, 1));\n}\n"
        self.assertEqual(found(tools__speak=program), [])

    def test_a_comment_or_a_text_is_no_use(self):
        program = '// Say() and Listen()\nconst char* kHelp = "Say, Listen";\n'
        self.assertEqual(len(found(tools__speak=program)), 2)

    def test_functions_of_a_program_in_a_text_are_none_of_ours(self):
        texts = {"net/a.h": 'inline constexpr char kProgram[] = R"python(\n'
                            'raise ValueError("(a)")\n  raise Other(1)\n)python";\n'}
        self.assertEqual(callers.find(texts, {}), [])

    def test_an_exception_needs_a_reason_and_must_be_needed(self):
        rows = callers.parse_exceptions("# why\nnet/speaker.h:Say tests speak\n"
                                        "net/speaker.h:Listen\nnet/speaker.h:words all use it\n")
        problems = found(rows)
        self.assertEqual(len(problems), 2)
        self.assertIn("Listen", problems[0])
        self.assertIn("net/speaker.h:words is used, or gone", problems[1])

    def test_a_type_that_only_its_own_file_names_in_its_members_is_unused(self):
        texts = {"net/a.h": "struct Alone {\n  Alone();\n};\n", "net/a.cc": "Alone::Alone() {}\n"}
        (problem,) = callers.find(texts, {})
        self.assertIn("the type Alone", problem)
        texts["net/a.h"] += "struct Other {\n  Alone alone;\n};\n"
        texts["net/b.cc"] = "Other other;\n"
        self.assertEqual(callers.find(texts, {}), [])


if __name__ == "__main__":
    unittest.main()
