"""The census: layers of all kinds of networks, drawn with a fixed seed, on jaxconv and on lax.

templates.py    kinds of networks, and the shapes that their layers may have
draw.py         the layers and passes that are drawn
report.py       how the ratios to lax and to the floor are distributed
default.py      where lax answers if no implementation is named, and whether that is right
command.py      `python -m benchmarks census`
"""
