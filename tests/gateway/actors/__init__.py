"""Unmodified clients of several libraries, each in a process of its own, driven by JSON lines.

Commands on standard input: `connect`, `subscribe`, `publish`, `disconnect`. Answers on standard output, in order; a
message is a line of its own. One story therefore runs with every library, and a client can really die: by SIGKILL.
"""
