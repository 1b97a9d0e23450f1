"""Replays a trace against an HTTP endpoint as clients would: open loop, streaming, measured from the outside.

`prompts` gives each trace request a real text of its type and length, `replay` sends them when they are due.
Used by the demo and the live benchmarks.
"""
