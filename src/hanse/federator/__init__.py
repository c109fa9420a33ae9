"""The federator: the agent beside a host broker. It drives `hanse.protocol` with sockets, a clock and a disk.

agent        one federator: events in, effects carried out
host         the session at the host broker
links        the links to the neighbours
copies       one publication out of the copies that overlapping host subscriptions bring
obligations  who is acknowledged when: upstream after downstream
echoes       what comes back through somebody else's bridge
bridges      which brokers hang together by such bridges
retained     retained messages for a broker's first interest in a filter
crossing     what may leave this broker and what may enter
broker_link  links by way of the neighbour's broker, as in the papers
tracing      probes that follow a topic hop by hop, and tell where it ends, why
accounting   the page of what became of publications
settings, store, http, logs    what an operator sees
"""
