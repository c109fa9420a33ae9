"""Faults with real processes, and an account of their cost: the code behind `hanse chaos`.

- `stamp`: a payload that names its publisher, and reveals any change.
- `history`: the messages that publishers sent and subscribers saw, one by one.
- `clients`: the publishers and subscribers that write the history.
- `judge`: history in, accounting and verdicts out; pure.
- `ground`: the federation under test: started for the test, or already running.
- `faults`: each a small class with a beginning and an end.
- `pages`: the federators' own counters, before and after.
- `rounds`: one fault in the middle of one workload.
- `report`: a round as text and as JSON.
- `outage`, `storm`, `topics`: longer drills, with figures.

An unacknowledged publication is *unknown*, never lost. Publications that a killed broker had acknowledged but not yet
saved are counted separately (*not durable*), because only that broker ever had them.
"""
