"""Discovery according to the TD-MQTT paper: which brokers there are, and which topics each of them has.

- `ranges`: the addresses that a scan may try, as an operator writes them.
- `packets`: the few packets that discovery sends, and a reader that keeps only the topic of a publication.
- `asking`: one connection to a broker: CONNECT, CONNACK, and for topics SUBSCRIBE, PUBLISH, PUBACK, DISCONNECT.
- `brokers`: algorithm 1, bounded and concurrent; and the brokers that a manager knows.
- `listening`: figure 1, one run at one broker.
- `topics`: the table of the topics that each broker has, matched by filters.
- `watch`: updates of that table, periodic and on demand.
"""
