"""The federator: the agent beside a host broker. It drives `hanse.protocol` with sockets, a clock and a disk.

running         from the command to its end, one run after another
agent           one run: the modules together, the clock, the two entrances of the data path
effects         execution of the protocol's effects
leaf            a federator without a host broker, which delivers to a taker: a collector

host            the session at the host broker
batches         batches from the host broker that wait for their acknowledgement
copies          merger of the duplicates that overlapping host subscriptions cause
wanted          interest of the others: the subscriptions at this broker
delivery        deliveries to the host broker: gate, crossing, echoes, acknowledgements
gate            check of publications from neighbours before the host broker gets them
crossing        rules and names for leaving and entering this broker
obligations     order of acknowledgements: upstream after downstream
echoes          detection of publications that come back through a foreign bridge
custodian       the disk behind custody

linking         the kind of links, and their neighbours at the start
links           the links to the neighbours
doubles         detection of two processes with one id
broker_link     links through the neighbour's broker, as in the papers
membership      the manager's instructions, and `dialling`, which keeps the links to them

local_interest  interest of this broker's clients, from adapters to protocol and disk
unknown         subscriptions that the host broker's log never showed
management      messages between federators
bridges         brokers that are joined by bridges of their hosts
retained        retained state at this broker: looks, the book on disk, messages to the others
tracing         probes that follow a topic hop by hop, and report where and why it ends

pages, gauges, metrics, accounting    pages and metrics
notices, reporter, logs               notices and telemetry
settings, store, http                 the operator's settings and requests
"""
