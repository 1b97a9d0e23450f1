"""One self-contained HTML page about simulated runs: no script, no outside asset, readable offline and on a phone.

svg         elements, escaped
scales      data to pixels, and round ticks
frame       axes with units around a plotting area
styles      colours, dashes, markers and the style sheet: told apart in grayscale and by colour-blind readers
charts      front, distributions, energy, each from plain numbers
timelines   load, batch, arm and power over time
tables      HTML tables
explained   a sample of decisions: what was predicted, what came
document    the page
"""
