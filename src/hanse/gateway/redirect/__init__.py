"""Redirects: the TD-MQTT paper's transparent topic subscription, for clients that follow Server References.

- `exchange`: the gateway's side of figure 2, without IO: CONNECT, CONNACK, SUBSCRIBE, SUBACK, DISCONNECT.
- `choice`: the broker for a client's topics, as a pure function that gives its reasons.
- `groups`: which brokers carry which groups, from federators or the manager.
- `returns`: who was redirected a moment ago, and is proxied now.
- `credentials`: whether a broker has accepted a client's credentials.
"""
