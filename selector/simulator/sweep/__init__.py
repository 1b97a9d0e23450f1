"""Sweeps: policies × traces × fleets × targets × seeds × rate scales × text mixes.

config      the TOML file
cells       what one cell is, the key of everything that determines it, and its run
workers     cells on local processes
cluster     cells on Ray
folder      finished cells on disk, so that a sweep resumes
summary     means over seeds
page        the summary as an HTML page
"""
