"""The federator: the agent beside a host broker. It drives `hanse.protocol` with sockets, a clock and a disk.

running         from the command to its end, one life after another
agent           one life: how the rooms hang together, the clock, the two entrances of the data path
effects         what the protocol wants done, done
leaf            a federator without a host broker, for who takes what comes instead: a collector

host            the session at the host broker
batches         what the host handed in and waits to hear of
copies          one publication out of the copies that overlapping host subscriptions bring
wanted          what others want of this broker: the subscriptions at it
delivery        what the host is given: gate, crossing, echoes, and who hears that it is there
gate            what neighbours hand in, looked at before the broker gets it
crossing        what may leave this broker and what may enter
obligations     who is acknowledged when: upstream after downstream
echoes          what comes back through somebody else's bridge
custodian       the disk behind custody

linking         which links there are, and to whom at the start
links           the links to the neighbours
doubles         two processes with one id, found out
broker_link     links by way of the neighbour's broker, as in the papers
membership      the manager's word, and `dialling`, which keeps the links to it

local_interest  what this broker's clients want, from adapters to protocol and disk
management      what federators tell each other
bridges         which brokers hang together by bridges of their hosts
retained        retained state at this broker: looks, the book on disk, what the others are told
tracing         probes that follow a topic hop by hop, and tell where it ends, why

pages, gauges, metrics, accounting    what it shows
notices, reporter, logs               what it tells
settings, store, http                 what an operator gives and asks
"""
