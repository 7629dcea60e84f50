"""Finds what only tests can reach: functions and types of headers that nothing else names.

By names, as text: a function is used where its name stands in a file outside tests/ and is neither
its declaration nor its definition. Two functions of one name hide each other, so what this lists is
a lower bound, and what it lists is worth a look. Exceptions stand in callers.txt, each with its
reason.
"""

import re
from collections import defaultdict
from dataclasses import dataclass

from common import ROOT, tracked

ALLOWED = "tools/dev.d/callers.txt"
FOLDERS = ("base/", "topology/", "net/", "collectives/", "plugins/", "trainer/", "tools/")
# Names that the language and libraries call.
IMPLIED = {"begin", "end", "operator", "main", "AbslHashValue", "deallocate"}

WORD = re.compile(r"[A-Za-z_]\w*")
# A declaration's name: behind a type, at the start of a line or behind its indentation.
FUNCTION = re.compile(r"^\s*(?:template\s*<[^>]*>\s*)?(?:\[\[\w+\]\]\s*)?"
                      r"(?:(?:virtual|static|inline|constexpr|explicit|friend|extern)\s+)*"
                      r"(?:const\s+)?[\w:]+(?:<.*>)?(?:::\w+)?[\s*&]+(?:const\s+)?"
                      r"(?P<name>[A-Za-z_]\w*)\(")
TYPE = re.compile(r"^\s*(?:class|struct|enum class)\s+(?P<name>[A-Z]\w*)\s*(?:final\s*)?"
                  r"(?::[^:;].*)?\{?\s*(?:\}?;)?$")
NO_TYPES = {"return", "else", "new", "delete", "case", "throw", "using", "goto", "operator"}
DEFINITION = re.compile(r"^[A-Za-z~\[].*?(?P<name>[A-Za-z_]\w*)\(")


@dataclass(frozen=True)
class Named:
    """A function or type, where it is declared."""
    file: str
    line: int
    name: str
    what: str


def without_comments(text: str) -> list[str]:
    """Lines of C++ with comments and texts blanked."""
    blank = lambda match: re.sub(r"[^\n]", " ", match.group(0))
    text = re.sub(r'R"(\w*)\((?:.|\n)*?\)\1"', blank, text)
    text = re.sub(r'"(?:[^"\\\n]|\\.)*"', '""', text)
    text = re.sub(r"//[^\n]*|/\*(?:.|\n)*?\*/", blank, text)
    return text.splitlines()


def declared(name: str, lines: list[str]) -> list[Named]:
    """What a header declares in public: functions and types."""
    found = []
    sections = []  # (indentation of a class, whether its current section is public)
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        indentation = len(line) - len(line.lstrip())
        while sections and line.strip().startswith("}") and indentation <= sections[-1][0]:
            sections.pop()
        label = re.match(r"\s*(public|protected|private):", line)
        if label and sections:
            sections[-1] = (sections[-1][0], label.group(1) == "public")
            continue
        is_public = all(public for _, public in sections)
        kind = TYPE.match(line)
        if kind and line.rstrip().endswith("{"):
            if is_public:
                found.append(Named(name, number, kind.group("name"), "type"))
            sections.append((indentation, not line.strip().startswith("class")))
            continue
        function = FUNCTION.match(line)
        if not function or not is_public:
            continue
        whole = re.split(r"[;{]", " ".join(lines[number - 1:number + 5]), maxsplit=1)[0]
        if re.search(r"\boverride\b|= delete", whole):  # the base class' callers use it
            continue
        words = line.split("(")[0].split()
        if words and words[0] not in NO_TYPES and function.group("name") not in IMPLIED:
            found.append(Named(name, number, function.group("name"), "function"))
    return found


def uses(lines: list[str], is_header: bool, own: set[tuple[int, str]]) -> set[str]:
    """The names in a file, but for what it declares or defines itself on the line."""
    found = set()
    for number, line in enumerate(lines, 1):
        words = set(WORD.findall(line))
        if not is_header:
            definition = DEFINITION.match(line)
            if definition:  # `Type Class::Name(`: neither is used by that
                name = definition.group("name")
                if line.count(name) == 1:
                    words.discard(name)
        words -= {name for where, name in own if where == number and line.count(name) == 1}
        found |= words
    return found


def parse_exceptions(text: str) -> dict[str, str]:
    """FILE:NAME -> reason."""
    rows = {}
    for line in text.splitlines():
        if line.strip() and not line.startswith("#"):
            place, _, reason = line.partition(" ")
            rows[place] = reason.strip()
    return rows


def same_file_uses(files: dict[str, list[str]], found: Named) -> bool:
    """Whether a type is used by what stands beside it, outside of its own body."""
    stem = found.file.rsplit(".", 1)[0]
    mention = re.compile(rf"(?<!~)\b{found.name}\b(?!::|\()")
    return sum(bool(mention.search(line)) for name, lines in files.items()
               if name.rsplit(".", 1)[0] == stem for line in lines) > 1


def find(texts: dict[str, str], exceptions: dict[str, str]) -> list[str]:
    """What is wrong with a tree: `texts` is file -> content."""
    blanked = {name: without_comments(text) for name, text in texts.items()}
    files = {name: lines for name, lines in blanked.items() if name.startswith(FOLDERS)}
    tested = {word for name, lines in blanked.items() if name.startswith("tests/")
              for line in lines for word in WORD.findall(line)}
    public, own = [], defaultdict(set)
    for name, lines in files.items():
        if name.endswith(".h"):
            for found in declared(name, lines):
                public.append(found)
                own[name].add((found.line, found.name))
    used = defaultdict(set)  # name -> files
    for name, lines in files.items():
        for word in uses(lines, name.endswith(".h"), own[name]):
            used[word].add(name)
    out, met = [], set()
    for found in public:
        users = used[found.name]
        if found.what == "type" and not same_file_uses(files, found):
            stem = found.file.rsplit(".", 1)[0]  # its own members name it, too
            users = {user for user in users if user.rsplit(".", 1)[0] != stem}
        if users:
            continue
        place = f"{found.file}:{found.name}"
        met.add(place)
        if not exceptions.get(place):
            who = "nothing but tests uses" if found.name in tested else "nothing uses"
            out.append(f"{found.file}:{found.line}: {who} the {found.what} {found.name}; use it, "
                       f"remove it, or say why in {ALLOWED}")
    return out + [f"{ALLOWED}: {place} is used, or gone: take the row out"
                  for place in exceptions if place not in met]


def problems() -> list[str]:
    """What only tests reach in this tree, and exceptions that are none any more."""
    return find({name: (ROOT / name).read_text() for name in tracked("*.h", "*.cc", "*.cu")},
                parse_exceptions((ROOT / ALLOWED).read_text()))
