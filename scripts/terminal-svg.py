#!/usr/bin/env python3
"""Draws a transcript of a terminal as SVG: scripts/terminal-svg.py docs/demo.txt > docs/demo.svg

Lines that begin with "$ " are what was typed. Words that stand for states are coloured as `muster`
colours them on a terminal.
"""

import re
import sys
from html import escape

COLUMN, ROW, MARGIN, BAR = 8.4, 19, 16, 28
STATES = {"running": "#7ee787", "complete": "#7ee787", "active": "#7ee787", "failure": "#ff7b72"}


def coloured(line):
    if line.startswith("$ "):
        return f'<tspan fill="#79c0ff">{escape(line)}</tspan>'
    parts = re.split(r"(\b(?:%s)\b)" % "|".join(STATES), line)
    # A line stays one piece of text where nothing in it is a state.
    shown = [
        f'<tspan fill="{STATES[part]}">{part}</tspan>' if part in STATES else escape(part, quote=False)
        for part in parts
    ]
    return "".join(shown)


def main():
    with open(sys.argv[1], encoding="utf-8") as file:
        lines = file.read().rstrip("\n").split("\n")
    width = round(2 * MARGIN + COLUMN * max(len(line) for line in lines))
    height = BAR + 2 * MARGIN + ROW * len(lines)
    print(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" role="img">'
    )
    print(f"<title>{escape(lines[0])}</title>")
    print(f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>')
    for place, colour in ((18, "#ff5f56"), (38, "#ffbd2e"), (58, "#27c93f")):
        print(f'<circle cx="{place}" cy="16" r="6" fill="{colour}"/>')
    print(
        '<g font-family="ui-monospace,SFMono-Regular,Menlo,Consolas,monospace" font-size="14" '
        'fill="#c9d1d9">'
    )
    for number, line in enumerate(lines):
        y = BAR + MARGIN + ROW * (number + 0.7)
        print(
            f'<text x="{MARGIN}" y="{y:.0f}" xml:space="preserve" '
            f'textLength="{COLUMN * len(line):.0f}">{coloured(line)}</text>'
            if line
            else ""
        )
    print("</g>\n</svg>")


main()
