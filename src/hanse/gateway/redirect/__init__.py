"""Redirects: the TD-MQTT paper's transparent topic subscription, for clients that follow Server References.

In a worker:

- `redirector`: the clients that are redirected, and the steps from CONNECT to the reference.
- `exchange`: the gateway's side of figure 2, without IO: CONNECT, CONNACK, SUBSCRIBE, SUBACK, DISCONNECT.
- `credentials`: the check that a broker has accepted a client's credentials.
- `returns`: clients that were redirected a moment ago, and are proxied now.
- `targets`: the address of each broker for a client.

Beside the supervisor:

- `knowledge`: the sources of groups, topics and reports, and the answer to a worker's question.
- `choice`: the broker for a client's topics, as a pure function that gives its reasons.
- `groups`: the brokers that carry each group, from federators or the manager.
"""
