"""The page about simulated runs, drawn with `selector.page`.

charts      front, distributions, energy, each from plain numbers
timelines   load, batch, arm and power over time
explained   a sample of decisions: what was predicted, what came
document    the page
"""
