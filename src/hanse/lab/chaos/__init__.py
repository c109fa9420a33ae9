"""Faults with real processes, and an account of what they cost: the kit behind `hanse chaos`.

- `stamp`: a payload that says whose it is, and shows when it was altered.
- `history`: what publishers sent and subscribers saw, message by message.
- `clients`: the publishers and subscribers that write it.
- `judge`: history in, accounting and verdicts out; pure.
- `ground`: the federation that suffers: one that is started for it, or one that runs already.
- `faults`: each a small class with a begin and an end.
- `pages`: the federators' own counters, before and after.
- `rounds`: one fault in the middle of one workload.
- `report`: a round as text and as JSON.
- `outage`, `storm`, `topics`: longer drills, with figures.

A publication that was not acknowledged is *unknown*, never lost; what a killed broker had acknowledged and not yet
saved is counted apart (*not durable*), because nobody but that broker ever had it.
"""
