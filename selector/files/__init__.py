"""Every format on disk, versioned and validated: profiles, fleets, traces, decision logs, policy files.

Readers raise an `InputError` with file, field, value and remedy; nothing else in the package parses files.
"""
