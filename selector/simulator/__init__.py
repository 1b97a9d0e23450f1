"""The same policies on recorded traces: a discrete-event simulation of a fleet.

`server` models one SGLang server, `draws` its accept lengths, `engine` runs a trace through a policy and a fleet,
`report` turns a run into the numbers of the command line, `page` into an HTML page, `compare` two runs into a
verdict; `sweep` runs many.
"""
