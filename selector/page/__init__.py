"""Self-contained HTML pages with charts: no script, no outside asset, readable offline, on a phone and in grayscale.

svg         elements, escaped
scales      data to pixels, and round ticks
frame       axes with units around a plotting area
styles      colours, dashes, markers and the style sheet: told apart in grayscale and by colour-blind readers
front       points that no other beats in both of two measures
tables      HTML tables
document    sections, figures, grids of them
facts       what ran, and what a profile's numbers rest on
picture     figures with their legend as one image, and PNGs of them

What is drawn is said elsewhere: `simulator/page` shows runs of policies, `profiler/page` what a sweep measured.
"""
