"""Finds links of Markdown pages that lead nowhere: to a file that is not there, or to a heading that a page lacks.

Links to other sites are not looked at, nor is what stands in code.
"""

import pathlib
import re
import urllib.parse

from common import ROOT, tracked

LINK = re.compile(r"!?\[(?:[^\[\]]|\[[^\]]*\])*\]\(\s*<?([^()\s<>]+(?:\([^()\s]*\)[^()\s<>]*)*)>?(?:\s+\"[^\"]*\")?\s*\)")
HEADING = re.compile(r" {0,3}#{1,6}\s+(.*?)\s*#*\s*$")
NAMED = re.compile(r"<a\s+(?:id|name)=\"([^\"]+)\"")
FENCE = re.compile(r"\s*(```|~~~)")


def problems() -> list[str]:
    pages = tracked("*.md")
    return [problem for page in pages for problem in page_problems(page, (ROOT / page).read_text(), ROOT)]


def page_problems(name: str, text: str, root: pathlib.Path) -> list[str]:
    """What is wrong with the links of one page, which is `name` below `root`."""
    found = []
    for number, line in prose_lines(text):
        for target in LINK.findall(re.sub(r"`[^`]*`", lambda code: "x" * len(code.group(0)), line)):
            if re.match(r"[a-z][a-z0-9+.-]*:", target):
                continue
            path, _, anchor = urllib.parse.unquote(target).partition("#")
            page = (root / name).parent / path if path else root / name
            if path and not page.exists():
                found.append(f"{name}:{number}: the link {target} leads to no file")
            elif anchor and page.suffix == ".md" and anchor not in anchors(page.read_text() if path else text):
                found.append(f"{name}:{number}: the link {target} leads to no heading of {page.name}")
    return found


def prose_lines(text: str):
    """Numbers and lines of what is not within a fence."""
    fenced = False
    for number, line in enumerate(text.splitlines(), 1):
        if FENCE.match(line):
            fenced = not fenced
        elif not fenced:
            yield number, line


def anchors(text: str) -> set[str]:
    """What a page's headings are called in links, as GitHub has it, and what it names itself."""
    out, seen = set(NAMED.findall(text)), {}
    for _, line in prose_lines(text):
        heading = HEADING.match(line)
        if not heading:
            continue
        words = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", heading.group(1)).lower()
        slug = re.sub(r"[^\w\- ]", "", words).replace(" ", "-")
        count = seen.get(slug, 0)
        seen[slug] = count + 1
        out.add(slug if count == 0 else f"{slug}-{count}")
    return out
