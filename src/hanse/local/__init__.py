"""Federation on one machine: brokers and agents as supervised processes, and links with emulated faults.

- `mosquitto`: the broker's configuration and the path of its program.
- `ports`: free ports on the loopback.
- `processes`: one supervised process: ready by condition, restarted with back-off, never left behind.
- `overlay`: `ring`, `line`, `full`, `star`, `grid:RxC` as edges.
- `state`: the state file that `hanse down`, `hanse pub` and `hanse sub` read.
- `supervise`: all of it together, as `Federation`.
- `agents`: the command line of a federator, and the test for convergence.
- `managed`: the topology manager beside them.
- `readiness`: what a federation lacks until messages cross.
- `table`: the running processes, for the terminal.
- `emulator`: a link with delay, jitter, bandwidth and cuts, between two federators.
"""
