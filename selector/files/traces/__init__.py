"""Request traces, one published format a module; `selector.files.trace` is the front door.

    request.py        what the rest of the program sees: `TraceRequest`, `Trace`
    rows.py           what a reader yields for a line, number fields, opening a file
    slicing.py        which rows of a long file belong to a slice, decided as they come
    azure.py          Azure LLM inference traces 2023 and 2024 (CSV)
    burstgpt.py       BurstGPT (CSV)
    mooncake.py       Mooncake (JSONL, with the ids of prompt blocks)
    servegen.py       workloads that ServeGen wrote (CSV)
    servegen_pool.py  ServeGen's fitted clients, from which a workload is drawn
    decisions.py      this project's decision log (JSONL)
    textmix.py        text types for requests whose trace does not say
    reshape.py        rate, spread of shared arrivals, merging

A format is a `Format`: how its first line is recognised, and a reader of its lines.
"""
