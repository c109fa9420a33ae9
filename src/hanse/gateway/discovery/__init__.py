"""Discovery, as the TD-MQTT paper has it: which brokers there are, and which topics each of them has.

- `ranges`: what a scan may try, as an operator writes it.
- `packets`: the few packets that discovery sends, and a reader that keeps of a publication no more than its topic.
- `asking`: one connection to a broker: CONNECT, CONNACK, and for topics SUBSCRIBE, PUBLISH, PUBACK, DISCONNECT.
- `brokers`: algorithm 1, bounded and concurrent; and the brokers that a manager knows.
- `listening`: figure 1, one run at one broker.
- `topics`: the table of the topics that each broker has, matched by filters.
- `watch`: keeps that table fresh, from time to time and on demand.
"""
