"""What no policy can beat: lower bounds on joules per accepted token, proved in docs/oracle.md.

Reading guide
    bound.py     `oracle`, the bound of a trace
    kinds.py     backends that are alike, and what a step or a prefill on one costs at least
    work.py      what each request asks of each kind
    windows.py   when its steps can happen at all, by worstserver.py at the latest
    sharing.py   prices that share the fixed part of a step among those who can be there
    end.py       prices of the end of the run, to which idle power runs
    attained.py  a reward for requests within their target
    search.py    the ascent over all prices
    branch.py    with few requests: cases by who goes where
    compared.py  the bound beside the results of policies
    steady.py    the bound of a steady load, where arrivals depend on the policy
"""

from selector.simulator.oracle.bound import OracleBound, oracle
from selector.simulator.oracle.search import Effort
from selector.simulator.oracle.steady import steady_j_per_accepted_token

__all__ = ["Effort", "OracleBound", "oracle", "steady_j_per_accepted_token"]
