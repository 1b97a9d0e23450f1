"""The page about a profile: what every arm costs, where it saves, and how far the numbers can be trusted.

subject     a profile with what is known beside it: raw cells, the board over time
trace       the board over time, from what the meter recorded
costs       steps, J per accepted token, TBT and break-even over the batch
front       energy against latency, with the TBT targets
rooflines   where each arm sits under the roofline
overtime    power and clocks over time
tables      cells, checks, refusals, provenance
document    the page
"""
