"""What no policy can beat: lower bounds on joules per accepted token, proved in docs/oracle.md.

    work.py      what each request asks of each kind of backend
    windows.py   when its steps can happen at all
    sharing.py   prices that share the fixed part of a step among those who can be there
    end.py       prices of the end of the run, to which idle power runs
    search.py    the ascent over all prices
    branch.py    with few requests: cases by who goes where
    bound.py     `oracle`, the bound of a trace
"""

from selector.simulator.oracle.bound import OracleBound, oracle

__all__ = ["OracleBound", "oracle"]
