"""Time over size as an SVG."""

import math

from weft.torch.bench.collectives import BACKENDS
from weft.torch.bench.rows import size_text

_PANEL, _HEIGHT, _MARGIN = 300, 210, 46  # of the picture, in pixels
_COLOURS = {"weft": "#1f6fb4", "gloo": "#d1495b"}


def picture(rows: list[dict]) -> str:
    """An SVG of time over size, both logarithmic: a panel for each operation (across) and number
    of ranks (down). Barriers have no size and are left out."""
    rows = [row for row in rows if row["bytes"] > 0]
    operations = list(dict.fromkeys(row["operation"] for row in rows))
    ranks = list(dict.fromkeys(row["ranks"] for row in rows))
    width, height = _PANEL * max(len(operations), 1), _HEIGHT * max(len(ranks), 1) + 30
    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
             'font-family="Helvetica,Arial,sans-serif" font-size="11">',
             '<rect width="100%" height="100%" fill="white"/>']
    for i, (name, colour) in enumerate(_COLOURS.items()):
        parts.append(f'<rect x="{_MARGIN + i * 80}" y="10" width="14" height="4" fill="{colour}"/>'
                     f'<text x="{_MARGIN + 20 + i * 80}" y="16">{name}</text>')
    for column, operation in enumerate(operations):
        for line, count in enumerate(ranks):
            panel = [row for row in rows if (row["operation"], row["ranks"]) == (operation, count)]
            if panel:
                parts.append(_panel(panel, f"{operation}, {count} ranks", column * _PANEL,
                                    30 + line * _HEIGHT))
    return "\n".join([*parts, "</svg>\n"])


def _panel(rows: list[dict], title: str, left: int, top: int) -> str:
    wide, high = _PANEL - _MARGIN - 14, _HEIGHT - 60
    x0, y0 = left + _MARGIN, top + 24
    sizes = [math.log2(row["bytes"]) for row in rows]
    times = [math.log10(row[f"{name}_us"]) for row in rows for name in BACKENDS]
    low, top_decade = math.floor(min(times)), max(math.ceil(max(times)), math.floor(min(times)) + 1)

    def x(size: float) -> float:
        return x0 + wide * (size - min(sizes)) / max(max(sizes) - min(sizes), 1)

    def y(time_: float) -> float:
        return y0 + high * (1 - (time_ - low) / (top_decade - low))

    parts = [f'<text x="{x0}" y="{top + 14}" font-weight="bold">{title}</text>']
    for decade in range(low, top_decade + 1):
        parts.append(f'<path d="M{x0} {y(decade):.1f}h{wide}" stroke="#ddd"/>'
                     f'<text x="{x0 - 6}" y="{y(decade) + 4:.1f}" text-anchor="end">'
                     f'{_time_text(decade)}</text>')
    for row, size in zip(rows, sizes, strict=True):
        parts.append(f'<text x="{x(size):.1f}" y="{y0 + high + 16}" text-anchor="middle">'
                     f'{size_text(row["bytes"]).replace("iB", "")}</text>')
    for name in BACKENDS:
        points = [(x(size), y(math.log10(row[f"{name}_us"])))
                  for row, size in zip(rows, sizes, strict=True)]
        line = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="{_COLOURS[name]}" '
                     'stroke-width="2"/>')
        parts += [f'<circle cx="{a:.1f}" cy="{b:.1f}" r="2.5" fill="{_COLOURS[name]}">'
                  f'<title>{name}, {size_text(row["bytes"])}: {row[f"{name}_us"]:.1f} us</title>'
                  '</circle>' for row, (a, b) in zip(rows, points, strict=True)]
    return "\n".join(parts)


def _time_text(decade: int) -> str:
    if decade < 3:
        return f"{10 ** decade:g} us"
    return f"{10 ** (decade - 3):g} ms" if decade < 6 else f"{10 ** (decade - 6):g} s"
