"""The decision core: pure functions and state machines without I/O, clock, randomness of their own or async.

Time comes in as seconds of a monotonic clock, randomness as a seed. `policy` holds the contract that the rest serves.
"""
