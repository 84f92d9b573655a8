"""Draws the pictures of docs/kernels.md: `python docs/kernels/draw.py`. Offset tables come from jaxconv itself."""

from __future__ import annotations

from pathlib import Path
from xml.sax.saxutils import escape

import jax
from jax import lax

from jaxconv.arguments import normalised, read
from jaxconv.problem import ConvProblem
from jaxconv.problem.offsets import offset_tables

HERE = Path(__file__).parent
BLUE, LIGHT_BLUE, ORANGE, LIGHT_ORANGE = "#0072B2", "#dcebf7", "#E69F00", "#fdeccf"
GREEN, LIGHT_GREEN, GREY, LIGHT_GREY = "#009E73", "#d6efe6", "#8C8C8C", "#f2f2f2"
# Of the 16-byte vectors 0 to 7 of a row.
VECTORS = ("#dcebf7", "#fdeccf", "#d6efe6", "#f6dbe9", "#e8e3f5", "#fff6c9", "#dff3f7", "#ece4da")


class Picture:
    """An SVG as it grows. Lengths are in pixels."""

    def __init__(self, width: int, height: int, title: str):
        self.lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" font-family="sans-serif" font-size="13">',
            f"<title>{escape(title)}</title>",
            '<defs><marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'orient="auto"><path d="M0,0 L8,4 L0,8 z" fill="#444"/></marker></defs>',
            f'<rect width="{width}" height="{height}" fill="white"/>',
        ]

    def text(self, x, y, text, anchor="middle", size=None, bold=False, fill=None):
        options = f' font-size="{size}"' if size else ""
        options += ' font-weight="bold"' if bold else ""
        options += f' fill="{fill}"' if fill else ""
        self.lines.append(f'<text x="{x}" y="{y}" text-anchor="{anchor}"{options}>{escape(str(text))}</text>')

    def rect(self, x, y, w, h, fill=LIGHT_GREY, stroke=GREY, text="", size=None, width=1, dashed=False, bold=False):
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.lines.append(
            f'<rect x="{x}" y="{y}" width="{w}" height="{h}" fill="{fill}" stroke="{stroke}" '
            f'stroke-width="{width}"{dash}/>'
        )
        lines = str(text).split("\n") if text != "" else []
        for i, line in enumerate(lines):
            middle = y + h / 2 + 4.5 + (i - (len(lines) - 1) / 2) * 15
            self.text(x + w / 2, middle, line, size=size, bold=bold and i == 0)

    def line(self, x1, y1, x2, y2, arrow=True, stroke="#444", dashed=False):
        end = ' marker-end="url(#arrow)"' if arrow else ""
        dash = ' stroke-dasharray="4 3"' if dashed else ""
        self.lines.append(f'<path d="M{x1},{y1} L{x2},{y2}" stroke="{stroke}" fill="none"{end}{dash}/>')

    def svg(self) -> str:
        return "\n".join([*self.lines, "</svg>", ""])


def problem_of(lhs: tuple, rhs: tuple, layout: tuple, **arguments) -> ConvProblem:
    x, w = (jax.ShapeDtypeStruct(shape, "float32") for shape in (lhs, rhs))
    arguments = {"window_strides": (1,) * (len(lhs) - 2), "dimension_numbers": layout} | arguments
    return read(lax.conv_general_dilated, x, w, normalised(x, w, arguments))[0]


def product() -> Picture:
    """The matrix product that a convolution is."""
    p = Picture(760, 330, "A convolution as a matrix product")
    k, n, step = 240, 150, 48
    x, y, m = 60, 120, 180  # of A
    p.rect(x, y, k, m, "white", BLUE, dashed=True)
    p.rect(x, y + 60, k, 50, LIGHT_BLUE, BLUE)
    p.rect(x + 2 * step, y + 60, step, 50, ORANGE, BLUE)
    p.text(x + k / 2, y - 28, "A: pixels that windows see", bold=True)
    p.text(x + k / 2, y - 10, "K: (tap, input channel)")
    p.text(x + k / 2, y + m + 20, "no kernel but im2col writes this matrix", size=12)
    p.text(x - 12, y + m / 2, "M", bold=True)
    p.text(x + 2.5 * step, y + 126, "BLOCK_K", size=12)
    p.text(x + 52, y + 90, "BLOCK_M", size=12)
    p.text(x + k + 22, y + m / 2 + 5, "×", size=22)
    x, height = x + k + 44, 168  # of B
    p.rect(x, y, n, height, "white", GREEN)
    p.rect(x + 50, y, 50, height, LIGHT_GREEN, GREEN)
    p.rect(x + 50, y + 2 * 34, 50, 34, ORANGE, GREEN)
    p.text(x + n / 2, y - 28, "B: filter", bold=True)
    p.text(x + n / 2, y - 10, "N: output channels")
    p.text(x + 75, y + height + 17, "BLOCK_N", size=12)
    p.text(x + n + 22, y + m / 2 + 5, "=", size=22)
    x += n + 44  # of C
    p.rect(x, y, n, m, "white", GREY)
    p.rect(x + 50, y + 60, 50, 50, LIGHT_ORANGE, ORANGE, text="tile")
    p.text(x + n / 2, y - 28, "results", bold=True)
    p.text(x + n / 2, y - 10, "positions × channels")
    p.text(60, 30, "M: output positions of all images. A thread block computes a tile, step by step along K.", "start")
    p.text(
        60,
        50,
        "In each step it copies the orange blocks of A and B to shared memory, and multiplies them.",
        "start",
    )
    return p


def offsets() -> Picture:
    """The rows of an offset table, and what they mean for a position."""
    problem = problem_of((1, 5, 6, 2), (3, 3, 2, 4), ("NHWC", "HWIO", "NHWC"), padding="SAME")
    *taps, _ = offset_tables(problem).taps.tolist()
    height, width, channels = 5, 6, 2
    p = Picture(800, 400, "The offset table of a 3x3 window")
    cell, left, top = 44, 70, 92
    at = {(h, w): (left + w * cell, top + h * cell) for h in range(-1, height) for w in range(-1, width)}
    for h in range(height):
        for w in range(width):
            p.rect(*at[h, w], cell, cell, "white", GREY, text=(h * width + w) * channels, size=12)
    inside, corner = (2, 3), (0, 0)
    for base, fill, stroke in ((inside, LIGHT_BLUE, BLUE), (corner, LIGHT_ORANGE, ORANGE)):
        for number, (src, _, _, h, w) in enumerate(taps):
            pixel = base[0] + h, base[1] + w
            if 0 <= pixel[0] < height and 0 <= pixel[1] < width:
                offset = (base[0] * width + base[1]) * channels + src
                p.rect(*at[pixel], cell, cell, fill, stroke, text=offset, size=12, width=3 if number == 4 else 1)
            else:
                p.rect(*at[pixel], cell, cell, "white", stroke, text="zero", size=11, dashed=True)
    p.text(20, 26, "Image of 5 × 6 pixels, 2 channels. A number is a pixel's offset in memory, in elements.", "start")
    p.text(left, 345, "Thick: the base of a position. Blue: position (2, 3), all taps are inside.", "start")
    p.text(left, 365, "Orange: position (0, 0). Base + shift is outside for five taps, so they read zero.", "start")
    x, columns = 400, ("tap", "source", "filter", "shift (d, h, w)")
    places = [x + 20, x + 80, x + 150, x + 260]
    for place, name in zip(places, columns):
        p.text(place, 76, name, bold=True)
    for number, (src, rhs, *shift) in enumerate(taps):
        y = 92 + number * 25
        p.rect(x, y, 350, 25, LIGHT_GREY if number % 2 else "white", "#ddd")
        for place, value in zip(places, (number, f"{src:+d}", rhs, f"({', '.join(map(str, shift))})")):
            p.text(place, y + 17, value)
    return p


def residues() -> Picture:
    """The residue classes of a data gradient with stride 2."""
    problem = problem_of((1, 4, 1), (3, 1, 1), ("NWC", "WIO", "NWC"), padding=((2, 1),), lhs_dilation=(2,))
    tables = offset_tables(problem)
    p = Picture(800, 300, "Residue classes of a dilated input")
    size, step, left, source_y, result_y = problem.in_spatial[0], 70, 200, 70, 200
    p.text(
        20,
        28,
        "lhs_dilation 2, as in the data gradient of a stride of 2. Window of 3 taps, w0 to w2.",
        "start",
    )
    p.text(left - 20, source_y + 26, "source, as it lies", "end")
    p.text(left - 20, result_y + 26, "output positions", "end")
    source = lambda i: left + 30 + i * 2 * step
    result = lambda o: left + o * step
    for i in range(size):
        p.rect(source(i), source_y, 44, 40, LIGHT_GREY, GREY, text=i)
    colors = ((LIGHT_BLUE, BLUE), (LIGHT_ORANGE, ORANGE))
    for (first, count, _, _, phase, _, _, positions), (fill, stroke) in zip(tables.classes.tolist(), colors):
        for q in range(positions):
            o = phase + q * problem.periods[0]
            p.rect(result(o), result_y, 44, 40, fill, stroke, text=o)
            for _, tap, _, _, shift in tables.taps[first : first + count].tolist():
                if 0 <= q + shift < size:
                    x1, x2 = source(q + shift) + 22, result(o) + 22
                    p.line(x1, source_y + 40, x2, result_y - 2, stroke=stroke)
                    p.text(x1 + (x2 - x1) * 0.72 + 9, source_y + 40 + 88 * 0.72, f"w{tap}", size=11)
        taps = ", ".join(f"w{tap} with shift {s}" for _, tap, _, _, s in tables.taps[first : first + count].tolist())
        y = 262 + 20 * phase
        p.rect(left, y - 12, 14, 14, fill, stroke)
        p.text(left + 24, y, f"class {phase}: {taps}", "start")
    return p


def swizzle() -> Picture:
    """Rows of 128 bytes, as they are and swizzled."""
    p = Picture(800, 330, "The swizzle of rows of 128 bytes")
    cell, height, top = 44, 26, 84
    for left, title, place in ((50, "without swizzle", lambda r, v: v), (430, "swizzled", lambda r, v: v ^ r % 8)):
        p.text(left + 4 * cell, 48, title, bold=True)
        for slot in range(8):
            p.text(left + slot * cell + cell / 2, 74, f"{4 * slot}-{4 * slot + 3}", size=11)
        for row in range(8):
            p.text(left - 12, top + row * height + 18, row)
            for vector in range(8):
                x, y = left + place(row, vector) * cell, top + row * height
                p.rect(x, y, cell, height, VECTORS[vector], GREY, text=vector, size=12)
        for row in range(8):
            p.rect(left + place(row, 2) * cell, top + row * height, cell, height, "none", "black", width=2.5)
    p.text(
        12,
        24,
        "Eight rows of shared memory. A cell is a 16-byte vector, numbered as in the operand's row.",
        "start",
    )
    p.text(12, 74, "banks", "start", size=11)
    p.text(50, 318, "vector 2 of all rows is in the same four banks", "start")
    p.text(430, 318, "vector v of row r is at place v xor r: in all 32 banks", "start")
    return p


def pipeline() -> Picture:
    """Producer and consumers of wgmma, and when they work."""
    stages, steps, copy, multiply = 4, 8, 44, 62
    p = Picture(820, 540, "Producer and consumers of a wgmma thread block")
    p.rect(10, 60, 110, 170, LIGHT_GREY, GREY, text="device memory\n\npixels, filter,\nresults", size=12, bold=True)
    p.rect(150, 10, 660, 310, "none", GREY, dashed=True)
    p.text(160, 28, "thread block", "start", size=12)
    for i in range(stages):
        p.rect(270, 60 + i * 46, 160, 38, LIGHT_GREEN, GREEN, text=f"stage {i}: pixels, filter", size=12)
    p.text(350, 50, "shared memory", size=12)
    for i in range(2):
        text = f"consumer warpgroup {i}\n128 threads, wgmma\nsums in registers"
        p.rect(610, 60 + i * 92, 180, 78, LIGHT_BLUE, BLUE, text=text, size=12, bold=True)
    p.rect(170, 266, 150, 42, LIGHT_ORANGE, ORANGE, text="producer\none thread", size=12, bold=True)
    p.rect(390, 266, 150, 42, LIGHT_ORANGE, ORANGE, text="tile scheduler\none thread", size=12, bold=True)
    p.line(120, 130, 268, 130)
    p.text(210, 122, "TMA copies", size=12)
    p.line(210, 266, 210, 136)
    p.text(204, 200, "asks", "end", size=12)
    p.line(300, 240, 300, 264, dashed=True)
    p.text(308, 256, "empty", "start", size=12)
    p.line(430, 100, 608, 100)
    p.text(520, 92, "full: multiply", size=12)
    p.line(608, 190, 432, 190, dashed=True)
    p.text(520, 206, "empty: has been read", size=12)
    p.line(390, 292, 322, 292)
    p.text(355, 284, "next tile", size=12)
    p.line(540, 292, 700, 292, arrow=False)
    p.line(700, 292, 700, 232)
    p.text(620, 284, "next tile", size=12)
    p.line(790, 180, 802, 180, arrow=False)
    p.line(802, 180, 802, 340, arrow=False)
    p.line(802, 340, 65, 340, arrow=False)
    p.line(65, 340, 65, 232)
    p.text(440, 336, "results of a tile", size=12)
    # A copy takes less time than a multiplication, so the producer is ahead until all stages are full.
    left, top = 190, 390
    p.text(10, 372, "When, with four stages:", "start", bold=True)
    for row, name in enumerate(("producer", "consumers")):
        p.text(left - 12, top + row * 60 + 21, name, "end")
    copied, done = [], []
    for step in range(steps):
        begin = max(copied[-1] if copied else 0, done[step - stages] if step >= stages else 0)
        copied.append(begin + copy)
        multiplied = max(copied[-1], done[-1] if done else 0)
        done.append(multiplied + multiply)
        p.rect(left + begin, top, copy, 32, LIGHT_ORANGE, ORANGE, text=f"s{step % stages}", size=11)
        p.rect(left + multiplied, top + 60, multiply, 32, LIGHT_BLUE, BLUE, text=f"s{step % stages}", size=11)
        if step == 0:
            p.line(left + copied[0], top + 32, left + multiplied + 2, top + 58)
            p.text(left + copied[0] - 6, top + 50, "full", "end", size=11)
        if step == stages:
            p.line(left + done[0], top + 60, left + begin, top + 34, dashed=True)
            p.text(left + begin + 8, top + 50, "empty: stage 0 may be filled again", "start", size=11)
    p.line(left, top + 112, left + 590, top + 112)
    p.text(left + 590, top + 130, "time", "end", size=12)
    p.text(10, top + 134, "s0 to s3: the stage of a step of K", "start", size=12)
    return p


def halo() -> Picture:
    """The halo tile of 8 x 8 positions under a 3x3 window, and what one tap reads of it."""
    unit, window, tap = 8, 3, (1, 2)
    size = unit + window - 1
    p = Picture(820, 400, "A halo tile of wgmma")
    cell, left, top = 30, 40, 70
    first = tap[0] * size + tap[1]
    for row in range(size):
        for col in range(size):
            is_read = 0 <= row - tap[0] < unit and 0 <= col - tap[1] < unit
            fill, stroke = (LIGHT_BLUE, BLUE) if is_read else (LIGHT_GREY, GREY)
            p.rect(left + col * cell, top + row * cell, cell, cell, fill, stroke, text=row * size + col, size=11)
    p.rect(left + tap[1] * cell, top + tap[0] * cell, cell, cell, ORANGE, BLUE, text=first, size=11)
    p.text(
        20,
        28,
        f"{unit} × {unit} output positions, 3x3 window: TMA copies {size} × {size} pixels once, for all nine taps.",
        "start",
    )
    p.text(left + size * cell / 2, 58, "halo tile, numbered as its pixels lie in shared memory", size=12)
    p.text(20, 390, f"Blue: what tap {tap} reads, for its {unit * unit} positions.", "start")
    x, y = 430, 92
    p.text(x, 58, "the same in shared memory: a row of 128 bytes for each pixel", "start", size=12)
    for group in range(3):
        begin = first + group * size
        p.rect(
            x, y + group * 84, 150, 44, LIGHT_BLUE, BLUE, text=f"pixels {begin} to {begin + unit - 1}\n8 rows", size=12
        )
        p.rect(x, y + group * 84 + 44, 150, 40, LIGHT_GREY, GREY, text="2 rows that this tap skips", size=11)
    p.text(x + 75, y + 268, "⋮", size=18)
    p.line(x + 190, y, x + 154, y, stroke=ORANGE)
    p.text(x + 196, y + 4, f"descriptor begins at pixel {first}", "start", size=12)
    p.text(x + 196, y + 20, f"= {tap[0]} · {size} + {tap[1]}", "start", size=12)
    p.line(x + 170, y + 2, x + 170, y + 82)
    p.text(x + 196, y + 62, f"the next eight rows are {size} rows", "start", size=12)
    p.text(x + 196, y + 78, "further on", "start", size=12)
    p.text(x, y + 296, "wgmma multiplies these 64 rows by the filter of this tap.", "start", size=12)
    return p


def toeplitz() -> Picture:
    """A filter row as a Toeplitz matrix."""
    window, pixels, outputs = 5, 16, 8
    p = Picture(820, 430, "A row of a depthwise filter as a Toeplitz matrix")
    cell, top = 20, 100

    def strips(columns, fill, stroke, numbered=False):
        """The first three of sixteen strips and the last one, from x on."""
        for strip in (0, 1, 2, 15):
            for n in range(columns):
                p.rect(x + n * cell, top + strip * cell, cell, cell, fill, stroke, text=8 * strip + n, size=8)
            if numbered:
                p.text(x - 6, top + strip * cell + 14, strip, "end", size=11)
        p.rect(x, top + 3 * cell, columns * cell, 12 * cell, "white", GREY, text="⋮", dashed=True)

    p.text(
        20,
        28,
        "One channel, one source row, a filter row of 5 taps, 16 strips of 8 neighbouring outputs.",
        "start",
    )
    x = 50
    p.text(x + pixels * cell / 2, 66, "A: source pixels", bold=True)
    p.text(x + pixels * cell / 2, 84, "16 pixels of each strip", size=12)
    strips(pixels, LIGHT_BLUE, BLUE, numbered=True)
    p.text(x + pixels * cell + 20, top + 160, "×", size=22)
    x += pixels * cell + 40
    p.text(x + outputs * cell / 2, 66, "B: Toeplitz matrix", bold=True)
    p.text(x + outputs * cell / 2, 84, "8 outputs", size=12)
    for k in range(pixels):
        for n in range(outputs):
            is_tap = 0 <= k - n < window
            fill = LIGHT_ORANGE if is_tap else "white"
            p.rect(x + n * cell, top + k * cell, cell, cell, fill, "#ccc", text=f"w{k - n}" if is_tap else "", size=9)
    p.rect(x, top, outputs * cell, pixels * cell, "none", ORANGE)
    p.text(x + outputs * cell + 20, top + 160, "=", size=22)
    x += outputs * cell + 40
    p.text(x + outputs * cell / 2, 66, "sums", bold=True)
    p.text(x + outputs * cell / 2, 84, "8 outputs of each strip", size=12)
    strips(outputs, LIGHT_GREEN, GREEN)
    return p


def lags() -> Picture:
    """How sums move while source rows pass."""
    rows, window = 5, 3
    p = Picture(820, 330, "Rows of sums while source rows pass")
    left, top, width, height = 150, 90, 128, 48
    p.text(20, 28, "A filter of 3 rows. T0 to T2: the Toeplitz matrices of its rows, which stay in registers.", "start")
    p.text(
        20,
        48,
        "In each step a source row is read once. It is multiplied by T0, T1 and T2, for three rows of results.",
        "start",
    )
    for lag in range(window):
        p.text(left - 12, top + lag * 66 + 30, f"sums {lag}, times T{lag}", "end")
    colors = ((LIGHT_BLUE, BLUE), (LIGHT_ORANGE, ORANGE), (LIGHT_GREEN, GREEN), ("#f6dbe9", "#CC79A7"))
    for step in range(rows):
        x = left + step * width
        p.text(x + 50, top - 12, f"source row {step}", bold=True, size=12)
        for lag in range(window):
            result = step - lag
            y = top + lag * 66
            if result < 0:
                p.rect(x, y, 100, height, "white", GREY, text="no row yet", size=11, dashed=True)
                continue
            fill, stroke = colors[result % len(colors)]
            text = f"result row {result}\n+ source {step} · T{lag}"
            p.rect(x, y, 100, height, fill, stroke, text=text, size=11)
            if lag + 1 < window and step + 1 < rows:
                p.line(x + 100, y + height - 8, x + width - 1, y + 66 + 8)
        if step - (window - 1) >= 0:
            p.line(x + 50, top + 2 * 66 + height, x + 50, top + 2 * 66 + height + 24)
            p.text(x + 50, top + 2 * 66 + height + 42, "complete: stored", size=11)
    return p


PICTURES = {f.__name__: f for f in (product, offsets, residues, swizzle, pipeline, halo, toeplitz, lags)}


def main() -> None:
    for name, draw in PICTURES.items():
        (HERE / f"{name}.svg").write_text(draw().svg())


if __name__ == "__main__":
    main()
